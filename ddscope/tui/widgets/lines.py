"""LineView: a virtual list of one-line entries that open to more lines. Only what is on the screen is ever drawn.

Lines are plain (text, style) spans, never markup. Subclasses say how many entries there are and how one looks; moving,
opening, mouse, the reason why it is empty and the cut at the right edge (marked, never silent) are here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from ddscope.tui.actions import DEFAULT_KEYS
from ddscope.tui.foreign import ELLIPSIS, cells, head
from ddscope.tui.widgets.pane import LinePane, Piece


@dataclass(frozen=True)
class Line:
    """One line of the screen. target: the record Enter or a click jumps to; copy: what `y` takes, else the text."""

    spans: tuple[Piece, ...] = ()
    target: int | None = None
    copy: str = ""

    @property
    def text(self) -> str:
        """The line without styles."""
        return "".join(text for text, _ in self.spans)


def strip_of(spans: Iterable[Piece], width: int, base: Style, mark: Style | None = None) -> Strip:
    """Spans as a strip of exactly `width` cells over `base`; what does not fit is cut and ends in "…"."""
    segments: list[Segment] = []
    used = 0
    for text, style in spans:
        size = cells(text)
        if used + size <= width:
            segments.append(Segment(text, base + style))
            used += size
            continue
        if used == width and segments:  # full to the brim: the mark takes the last cell
            last = segments.pop()
            kept = head(last.text, cells(last.text) - 1)
            segments.append(Segment(kept, last.style))
            used += cells(kept) - cells(last.text)
        kept = head(text, width - used - 1)
        segments += [Segment(kept, base + style), Segment(ELLIPSIS, base + (mark or style))]
        used += cells(kept) + 1
        break
    if used < width:
        segments.append(Segment(" " * (width - used), base))
    return Strip(segments, max(width, used))


class LineView(LinePane, can_focus=True, inherit_bindings=False):
    """A scrolled list with a selected line. `selected` is a line of the virtual screen, an opened entry has several."""

    BINDINGS: ClassVar[list[BindingType]] = [*DEFAULT_KEYS.bindings("list")]

    SELECTS: ClassVar[bool] = True
    """Whether one line is selected; without it the arrow keys scroll."""

    DEFAULT_CSS = """
    LineView { overflow-x: hidden; }
    """

    class Jump(Message):
        """A person wants the time cursor at this record."""

        def __init__(self, record: int) -> None:
            super().__init__()
            self.record = record

    class Picked(Message):
        """Enter or a double click on an entry that neither opens nor points anywhere."""

        def __init__(self, entry: int) -> None:
            super().__init__()
            self.entry = entry

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.selected = 0
        self._open: list[int] = []
        self._details: dict[int, list[Line]] = {}

    # for subclasses -------------------------------------------------------------------------------------------

    def entry_count(self) -> int:
        """How many entries there are now."""
        raise NotImplementedError

    def entry_line(self, entry: int, width: int) -> Line:
        """The one line of an entry."""
        raise NotImplementedError

    def entry_detail(self, entry: int, width: int) -> list[Line]:
        """The lines an entry opens to; empty: it does not open."""
        return []

    def empty_text(self) -> str:
        """Why there is nothing, when there is nothing."""
        return "" if self.entry_count() else self.empty_reason

    # what is where --------------------------------------------------------------------------------------------

    def line_count(self) -> int:
        """Lines of the virtual screen."""
        return self.entry_count() + sum(len(self._details[entry]) for entry in self._open)

    def locate(self, y: int) -> tuple[int, int]:
        """(entry, line within it, 0 = its head) of a virtual line."""
        before = 0
        for entry in self._open:
            head = entry + before
            if y <= head:
                break
            size = len(self._details[entry])
            if y <= head + size:
                return entry, y - head
            before += size
        return y - before, 0

    def line_of(self, entry: int) -> int:
        """The virtual line of an entry's head."""
        return entry + sum(len(self._details[e]) for e in self._open[: bisect_left(self._open, entry)])

    def content_at(self, y: int) -> Line:
        """The content of a virtual line."""
        entry, sub = self.locate(y)
        if sub:
            return self._details[entry][sub - 1]
        return self.entry_line(entry, self.content_width)

    @property
    def content_width(self) -> int:
        """Cells a line may use."""
        return max(self.scrollable_content_region.width, 1)

    # changes --------------------------------------------------------------------------------------------------

    def content_changed(self, opened: Iterable[int] | None = None) -> None:
        """Entries came, went or look different. opened: the entries that are open now, when their places changed."""
        count = self.entry_count()
        self._open = sorted(entry for entry in (self._open if opened is None else opened) if 0 <= entry < count)
        self._details = {entry: self.entry_detail(entry, self.content_width) for entry in self._open}
        self._sized()

    def _sized(self) -> None:
        lines = self.line_count()
        self.selected = min(max(self.selected, 0), max(lines - 1, 0))
        self.set_extent(self.content_width, lines)
        self.refresh()

    def set_open(self, entry: int, opened: bool) -> None:
        """Open or close an entry; one without detail stays closed."""
        if opened and entry not in self._details:
            detail = self.entry_detail(entry, self.content_width)
            if not detail:
                return
            insort(self._open, entry)
            self._details[entry] = detail
        elif not opened and entry in self._details:
            self._open.remove(entry)
            del self._details[entry]
        self._sized()

    @property
    def opened(self) -> tuple[int, ...]:
        """Entries that show their detail."""
        return tuple(self._open)

    def is_open(self, entry: int) -> bool:
        """Whether an entry shows its detail."""
        return entry in self._details

    def select(self, line: int) -> None:
        """Move the selected line and keep it in view."""
        self.selected = min(max(line, 0), max(self.line_count() - 1, 0))
        self.show_line(self.selected)
        self.refresh()

    # keys and mouse -------------------------------------------------------------------------------------------

    def _move(self, by: int) -> None:
        if self.SELECTS:
            self.select(self.selected + by)
        else:
            self.jump_to(y=min(self.scroll_offset.y + by, max(self.max_scroll_y, 0)))

    def action_line_up(self) -> None:
        """The line above."""
        self._move(-1)

    def action_line_down(self) -> None:
        """The line below."""
        self._move(+1)

    def action_page_up(self) -> None:
        """A page up."""
        self._move(-max(self.scrollable_content_region.height - 1, 1))

    def action_page_down(self) -> None:
        """A page down."""
        self._move(max(self.scrollable_content_region.height - 1, 1))

    def action_open(self) -> None:
        """Open or close the entry, or jump to what the line points at."""
        if self.line_count() == 0:
            return
        entry, sub = self.locate(self.selected)
        line = self.content_at(self.selected)
        if sub and line.target is not None:
            self.post_message(self.Jump(line.target))
        elif sub:
            self.select(self.line_of(entry))
            self.set_open(entry, False)
        elif self.is_open(entry):
            self.set_open(entry, False)
        else:
            self.set_open(entry, True)
            if not self.is_open(entry):
                self.post_message(self.Picked(entry) if line.target is None else self.Jump(line.target))
            else:
                self.show_line(
                    self.selected + min(len(self._details[entry]), self.scrollable_content_region.height - 1)
                )

    def on_click(self, event: events.Click) -> None:
        """Select the line; a second click on it opens it or jumps."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        line = offset.y + self.scroll_offset.y
        if line < self.line_count():
            again = event.chain >= 2
            self.select(line)
            if again:
                self.action_open()

    def on_resize(self, _event: events.Resize) -> None:
        """Details wrap to the width, so they are made again."""
        self.content_changed()

    def draw_line(self, y: int) -> Iterable[Piece]:
        """A line of the virtual screen."""
        return self.content_at(y).spans if y < self.line_count() else ()

    # drawing --------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line of what is in view."""
        width = self.content_width
        if self.entry_count() == 0:
            return super().render_line(y)
        base = Style()
        line = y + self.scroll_offset.y
        if line >= self.line_count():
            return self.finish(Strip.blank(width))
        if self.SELECTS and line == self.selected and self.has_focus:
            base = self.palette.cursor
        return self.finish(strip_of(self.content_at(line).spans, width, base, self.palette.faint))
