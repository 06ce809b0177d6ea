"""RequestList: the requests of the trace: which one the cursor is in, what was asked, how it goes, what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.style import Style
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive

from ddscope.session.views import RequestRow
from ddscope.tui import foreign
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.listing import Listing
from ddscope.tui.widgets.pane import Piece

RID_WIDEST = 8
STATE_MARKS = {"open": " ", "finished": "✓", "error": "✗"}
SEVERITY_MARKS = {"critical": "!!", "high": "!", "warning": "!", "info": "·"}


class RequestList(Listing):
    """Requests in order of arrival."""

    HEADING_LINES = 1

    class RequestSelected(Message):
        """A request was chosen by key or click."""

        def __init__(self, rid: str) -> None:
            super().__init__()
            self.rid = rid

    rows: reactive[Sequence[RequestRow]] = reactive((), always_update=True)
    cursor: reactive[str | None] = reactive(None)
    """rid of the request under the time cursor."""
    severities: reactive[Mapping[str, str]] = reactive({})
    """rid → worst severity among its findings: info, warning, high or critical."""

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._place: int | None = None

    # the value ------------------------------------------------------------------------------------------------

    def watch_rows(self, rows: Sequence[RequestRow]) -> None:
        """Requests came or went on."""
        self.set_extent(0, len(rows))
        self._label()
        self._find()

    def watch_cursor(self) -> None:
        """The time cursor is in another request."""
        self._find()

    def on_mount(self) -> None:
        """The border says how many there are."""
        self._label()

    def _label(self) -> None:
        self.border_title = Content(f"Requests {len(self.rows):,}" if self.rows else "Requests")

    def _find(self) -> None:
        rows, rid = self.rows, self.cursor
        before = self._place
        if before is None or not before < len(rows) or rows[before].rid != rid:
            self._place = next((place for place, row in enumerate(rows) if row.rid == rid), None)
        if self._place != before:
            self.keep_in_view()
        self.refresh()

    # Listing --------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """How many requests."""
        return len(self.rows)

    def place(self) -> int | None:
        """Row of the request under the time cursor."""
        return self._place

    def choose(self, place: int) -> None:
        """Ask for the time cursor to go into a request."""
        self.post_message(self.RequestSelected(self.rows[place].rid))

    def words(self, place: int) -> str:
        """State and findings of a request in words."""
        row = self.rows[place]
        tokens = f"{row.emitted:,} tokens in {row.steps:,} steps"
        state = {
            "open": f"Running: {tokens} so far.",
            "finished": f"Finished ({row.reason or 'no reason told'}): {tokens}.",
            "error": f"Ended by an error ({row.reason or 'no reason told'}) after {tokens}.",
        }[row.state]
        said = [f"{row.rid}: {row.preview}" if row.preview else row.rid, state]
        if row.anomalies:
            said.append(f"{row.anomalies:,} steps stand out: [ and ] go through them.")
        severity = self.severities.get(row.rid)
        if severity is not None:
            said.append(f"Its worst finding is {severity}.")
        return "\n".join(said)

    # drawing --------------------------------------------------------------------------------------------------

    def empty_text(self) -> str:
        """Why there are no requests."""
        return "" if self.rows else self.empty_reason or "No requests yet."

    def draw_heading(self, y: int) -> Iterable[Piece]:
        """Names of the columns."""
        rid, preview, steps = self._widths()
        line = f"  {'id':<{rid}} {foreign.pad(foreign.head('asked', preview), preview)}"
        line += f" {'steps':>{steps}}" if steps else ""
        return [(f"{line} {'τ':>5}", self.palette.muted)]

    def _widths(self) -> tuple[int, int, int]:
        """Cells of rid, preview and steps (0 where there is no room)."""
        rid = min(max((foreign.cells(foreign.line(row.rid)) for row in self.rows[:200]), default=2), RID_WIDEST)
        steps = 5 if self.scrollable_size.width >= 34 else 0
        return rid, max(self.scrollable_size.width - rid - (steps + 1 if steps else 0) - 12, 1), steps

    def draw_line(self, y: int) -> Iterable[Piece]:
        """One request."""
        if not 0 <= y < len(self.rows):
            return ()
        row, palette = self.rows[y], self.palette
        rid, preview, steps = self._widths()
        here = y == self._place
        asked = foreign.line(row.preview) or ("(prompt not in the trace)" if row.preview_of != "prompt" else "")
        name = foreign.pad(foreign.elide(foreign.line(row.rid), rid), rid)
        pieces: list[Piece] = [
            ("▸ " if here else "  ", palette.strong),
            (name + " ", palette.strong if here else palette.text),
            (foreign.pad(foreign.cut(asked, preview), preview), palette.text if row.preview else palette.muted),
        ]
        if steps:
            pieces.append((f" {row.steps:>{steps},}", palette.muted))
        pieces.append((f" {'-' if row.tau is None else f'{row.tau:.2f}':>5}", palette.good))
        pieces += self._marks(row, palette)
        return self.finish_row(pieces, y, self.scrollable_size.width)

    def _marks(self, row: RequestRow, palette: Palette) -> list[Piece]:
        """The worst finding and the state, a cell each."""
        severity = self.severities.get(row.rid, "")
        ink: dict[str, Style] = {"critical": palette.bad, "high": palette.high, "warning": palette.warn}
        state = {"open": palette.muted, "finished": palette.good, "error": palette.bad}[row.state]
        return [
            (f"{SEVERITY_MARKS.get(severity, ''):>2}", ink.get(severity, palette.muted)),
            (STATE_MARKS[row.state], state),
        ]
