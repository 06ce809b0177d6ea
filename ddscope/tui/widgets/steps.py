"""StepList: one row a step of the request, any number of them: a bar of accepted tokens, the bonus, marks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from rich.style import Style
from textual.cache import LRUCache
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive

from ddscope.session.rows import Rows
from ddscope.session.views import StepRow
from ddscope.tui import foreign
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.listing import Listing
from ddscope.tui.widgets.pane import Piece

EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDEST_TOKEN = 2.0  # cells a token takes in a bar at most
LEAST_SCALE = 6  # accepted tokens that fit in any case, so that the bars of the first steps do not shrink later
ANOMALY_WORDS = {"nonfinite": "NaN", "truncated": "end", "tensor": "shape", "error": "error"}
SENTENCES = {
    "accepted_zero": "Nothing was accepted: the target chose another token than every drafted one.",
    "nonfinite": "NaN or infinite logits were seen in this step.",
    "truncated": "The text ended inside this step.",
    "tensor": "A tensor had an unexpected shape.",
    "error": "An error ended the request here.",
}


def bar(accepted: int, cell: float) -> str:
    """A bar of `cell` cells a token, in eighths."""
    eighths = round(accepted * cell * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def milliseconds(us: int | None) -> str:
    """µs as ms: one decimal below 10 ms, ? when unknown."""
    if us is None:
        return "?"
    return f"{us / 1000:.1f}" if us < 9_950 else f"{us / 1000:,.0f}"


class StepList(Listing):
    """Steps of the request under the time cursor, newest at the bottom. Only rows on the screen are read."""

    HEADING_LINES = 1

    class StepSelected(Message):
        """A step was chosen by key or click; `record` is its record number."""

        def __init__(self, record: int) -> None:
            super().__init__()
            self.record = record

    rows: reactive[Sequence[StepRow]] = reactive((), always_update=True)
    """Lazy; set it again (the same object will do) when it has grown. Records ascend."""
    cursor: reactive[int | None] = reactive(None)
    """Record number of the step under the time cursor."""
    marked: reactive[frozenset[int]] = reactive(frozenset())
    """Record numbers that carry a bookmark or note."""

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._read: LRUCache[int, StepRow] = LRUCache(1024)
        self._most = LEAST_SCALE
        self._rid: str | None = None
        self._place: int | None = None

    # the value ------------------------------------------------------------------------------------------------

    def watch_rows(self, rows: Sequence[StepRow]) -> None:
        """More steps, or those of another request. Follows when the cursor stands on the last one."""
        rid = rows[-1].rid if rows else None
        if rid != self._rid:
            self._rid, self._most = rid, LEAST_SCALE
            self._read.clear()
        self.set_extent(0, len(rows))
        self._label()
        self._find()

    def watch_cursor(self) -> None:
        """The time cursor moved."""
        self._find()

    def on_mount(self) -> None:
        """The border says how many steps there are."""
        self._label()

    def _find(self) -> None:
        place = self._place_of(self.cursor)
        if place != self._place:
            self._place = place
            self.keep_in_view()
        self.refresh()

    def _place_of(self, record: int | None) -> int | None:
        rows = self.rows
        if record is None or not rows:
            return None
        if isinstance(rows, Rows):
            place = rows.place_of(record)
        else:
            place = bisect_right(range(len(rows)), record, key=lambda i: rows[i].record) - 1
        return None if place is None or place < 0 else place

    def _label(self) -> None:
        count = len(self.rows)
        self.border_title = Content(f"Steps {count:,}" if count else "Steps")
        self.border_subtitle = Content("accepted/budget  ms") if count else None

    def row(self, place: int) -> StepRow:
        """A row, kept for a while: the same lines are drawn again and again."""
        rows = self.rows
        if not isinstance(rows, Rows):
            return rows[place]
        record = rows.record(place)
        row = self._read.get(record)
        if row is None:
            row = rows[place]
            self._read[record] = row
        return row

    # Listing --------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """How many steps."""
        return len(self.rows)

    def place(self) -> int | None:
        """Row of the step under the time cursor."""
        return self._place

    def choose(self, place: int) -> None:
        """Ask for the time cursor to go to a step."""
        self.post_message(self.StepSelected(self.row(place).record))

    def words(self, place: int) -> str:
        """What happened in a step."""
        row = self.row(place)
        accepted = "an unknown number" if row.accepted is None else f"{row.accepted}"
        of = "" if row.nodes is None else f" of {row.nodes:,} drafted tokens"
        said = [f"Step {row.step:,}: {accepted}{of} accepted."]
        said += [SENTENCES[anomaly] for anomaly in row.anomalies if anomaly in SENTENCES]
        if row.record in self.marked:
            said.append("Bookmarked.")
        return "\n".join(said)

    # drawing --------------------------------------------------------------------------------------------------

    def empty_text(self) -> str:
        """Why there are no steps."""
        return "" if self.rows else self.empty_reason or "No steps yet: no request has run."

    def draw_heading(self, y: int) -> Iterable[Piece]:
        """Names and units of the columns."""
        number, room, ratio, time = self._widths()
        bars = foreign.pad(foreign.head("accepted", room), room)
        line = f" {'step':>{number}} {bars}"
        line += f" {'of':>{ratio}}" if ratio else ""
        line += f" {'ms':>{time}}" if time else ""
        return [(line, self.palette.muted)]

    def _widths(self) -> tuple[int, int, int, int]:
        """Cells of number, bar, accepted/budget and milliseconds; 0 where there is no room."""
        width = self.scrollable_size.width
        last = self.row(len(self.rows) - 1)
        number = max(len(f"{last.step:,}"), 4)
        budget = last.budget if last.budget is not None else last.nodes or 0
        ratio, time = 2 * max(len(f"{budget}"), 2) + 1, 5
        for ratio_shown, time_shown in ((ratio, time), (ratio, 0), (0, 0)):
            room = width - 2 - number - (ratio_shown + 1 if ratio_shown else 0) - (time_shown + 1 if time_shown else 0)
            if room >= 8 or not ratio_shown:
                break
        return number, max(room, 1), ratio_shown, time_shown

    def draw_line(self, y: int) -> Iterable[Piece]:
        """One step."""
        if not 0 <= y < len(self.rows):
            return ()
        row, palette = self.row(y), self.palette
        number, room, ratio, time = self._widths()
        if row.accepted is not None and row.accepted > self._most:
            self._most = row.accepted
            self.call_next(self.refresh)
        flag = ("⚑", palette.info) if row.record in self.marked else ("▸" if y == self._place else " ", palette.strong)
        pieces: list[Piece] = [flag, (f"{row.step:>{number},} ", palette.muted), *self._bar(row, room, palette)]
        if ratio:
            budget = row.budget if row.budget is not None else row.nodes
            told = f"{'?' if row.accepted is None else row.accepted}/{'?' if budget is None else budget}"
            style = palette.bad if row.accepted == 0 and row.nodes else palette.text
            pieces += [(" " * (1 + ratio - len(told)), palette.text), (told, style)]
        if time:
            pieces.append((f" {milliseconds(row.total_us):>{time}}", palette.muted))
        return self.finish_row(pieces, y, self.scrollable_size.width)

    def _bar(self, row: StepRow, room: int, palette: Palette) -> list[Piece]:
        """The bar, the bonus, and a word or a mark for what is wrong; exactly `room` cells."""
        if row.accepted is None:
            told = "not told" if row.emitted is None else f"{row.emitted:,} emitted"
            return [(foreign.pad(foreign.head(told, room), room), palette.muted)]
        cell = min(WIDEST_TOKEN, max(room - 2, 1) / self._most)
        nothing = row.accepted == 0 and row.nodes != 0
        drawn = bar(row.accepted, cell)
        pieces: list[Piece] = [(drawn, palette.good)]
        if row.emitted is None or row.emitted > row.accepted:
            pieces.append(("◆", palette.bad if nothing else palette.bonus))
        said, style = self._said(row, nothing, palette)
        left = room - sum(foreign.cells(text) for text, _ in pieces)
        if said and left > len(said):
            pieces += [(" ", palette.text), (said, style)]
        elif said and left:
            pieces.append(("!", style))
        left = room - sum(foreign.cells(text) for text, _ in pieces)
        return [*pieces, (" " * left, palette.text)]

    def _said(self, row: StepRow, nothing: bool, palette: Palette) -> tuple[str, Style]:
        words = [ANOMALY_WORDS[anomaly] for anomaly in row.anomalies if anomaly in ANOMALY_WORDS]
        if words:
            quiet = words == ["end"]
            return " ".join(words), palette.muted if quiet else palette.bad
        if nothing:
            return "none", palette.bad
        return ("plain", palette.muted) if row.nodes == 0 else ("", palette.muted)
