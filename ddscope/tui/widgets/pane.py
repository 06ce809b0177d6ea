"""What every pane that draws lines shares: a pinned heading, the words of an empty pane, cropping, the palette.

A pane draws a frozen value that it is given. It knows no socket, no file, no store and no other widget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddscope.tui.foreign import cells, hang, safe
from ddscope.tui.theme import Palette

Piece = tuple[str, Style]
"""Text that is already `safe`, and its style."""


def over(base: Style, style: Style) -> Style:
    """`style` on a selection. In reverse video dim text would become a grey patch, so it is not dim there."""
    return style + base + Style(dim=False) if base.reverse else style + base


def strip_of_pieces(pieces: Iterable[Piece], left: int, width: int, base: Style) -> Strip:
    """Cells left to left + width of pieces, over the colours of `base`."""
    segments, used = [], 0
    for text, style in pieces:
        if text:
            segments.append(Segment(text, base + style))
            used += cells(text)
    if used < left + width:
        segments.append(Segment(" " * (left + width - used), base))
        used = left + width
    strip = Strip(segments, used)
    return strip if used == width else strip.crop(left, left + width)


class LinePane(ScrollView, can_focus=True, inherit_bindings=False):
    """A pane that draws line by line. Subclasses give `draw_line` and set `virtual_size` through `set_extent`."""

    HEADING_LINES: ClassVar[int] = 0
    """Lines at the top that do not scroll up."""

    KEYS: ClassVar[str] = "list"
    """Scope of the actions in the registry whose keys the pane takes, as far as it does them."""

    DEFAULT_CSS = """
    LinePane {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 1;
    }
    """

    _paint: tuple[Style, Size] | None = None

    empty_reason: reactive[str] = reactive("")
    """Why there is nothing to show, and what to do. Foreign text is welcome here: it is never markup."""

    @property
    def palette(self) -> Palette:
        """Styles by meaning, of the theme in force."""
        return Palette.of(self.app)

    def empty_text(self) -> str:
        """What to say instead of the content; empty when there is content. Subclasses say why in their own words."""
        return self.empty_reason

    def draw_heading(self, y: int) -> Iterable[Piece]:
        """Pinned line y, as it is on the screen: it does not scroll sideways by itself."""
        return ()

    def draw_line(self, y: int) -> Iterable[Piece]:
        """Content line y, from 0, not cropped."""
        raise NotImplementedError

    def set_extent(self, width: int, lines: int) -> None:
        """Tell the scrollbars how wide and long the content is (the heading not counted)."""
        size = Size(width, lines + self.HEADING_LINES)
        if size == self.virtual_size:
            return
        if not self.container_size or self.styles.auto_dimensions:
            self.virtual_size = size
            return
        # Assigning lays the whole screen out again, at every step of a film; only the scrollbars need to know.
        self.set_reactive(ScrollView.virtual_size, size)
        self._scroll_update(size)
        self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """All lines of one painting; what they share is looked up once."""
        self._paint = self.rich_style, self.scrollable_size
        try:
            return super().render_lines(crop)
        finally:
            self._paint = None

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        base, (width, height) = self._paint or (self.rich_style, self.scrollable_size)
        if words := self.empty_text():
            return self._empty_line(words, y, width, height)
        line = self.line_at(y)
        pieces = self.draw_heading(y) if line is None else self.draw_line(line)
        return strip_of_pieces(pieces, 0 if line is None else self.scroll_offset.x, width, base)

    def _empty_line(self, words: str, y: int, width: int, height: int) -> Strip:
        lines = hang(safe(words), max(width - 2, 8))
        top = max((height - len(lines)) // 3, 0)
        line = lines[y - top] if top <= y < top + len(lines) else ""
        return strip_of_pieces([(f" {line}", self.palette.muted)], 0, width, self._base())

    def _base(self) -> Style:
        return self._paint[0] if self._paint is not None else self.rich_style

    def finish(self, strip: Strip) -> Strip:
        """Lay the pane's own colours under a strip."""
        return strip.apply_style(self._base())

    def jump_to(self, x: int | None = None, y: int | None = None) -> None:
        """Scroll to a cell or line at once, also before the scrollbars know how much there is."""
        self.scroll_to(
            None if x is None else max(x, 0),
            None if y is None else max(y, 0),
            animate=False,
            force=True,
            immediate=True,
        )

    def show_line(self, line: int, margin: int = 0, foot: int = 0) -> None:
        """Scroll so that content line `line` is on the screen with `margin` lines around it, above `foot` lines."""
        room = max(self.scrollable_size.height - self.HEADING_LINES - foot, 1)
        margin = min(margin, (room - 1) // 2)
        top = self.scroll_offset.y
        goal = min(max(top, line + margin - room + 1), line - margin)
        self.jump_to(y=goal)

    def show_columns(self, start: int, end: int) -> None:
        """Scroll sideways so that cells start to end are on the screen, the start first."""
        width = self.scrollable_size.width
        left = self.scroll_offset.x
        goal = min(max(left, end - width), start)
        self.jump_to(x=goal)

    def refresh_content_line(self, line: int) -> None:
        """Draw one content line again."""
        y = line + self.HEADING_LINES - self.scroll_offset.y
        if self.HEADING_LINES <= y < self.scrollable_size.height:
            self.refresh(Region(0, y, self.scrollable_size.width, 1))

    def line_at(self, y: int) -> int | None:
        """Content line at y of the pane; None on the heading."""
        return None if y < self.HEADING_LINES else y - self.HEADING_LINES + self.scroll_offset.y


class ReadPane(LinePane):
    """A pane that is read, not chosen from: the keys that move a cursor elsewhere move its content."""

    def action_line_up(self) -> None:
        """A line up."""
        self.jump_to(y=self.scroll_offset.y - 1)

    def action_line_down(self) -> None:
        """A line down."""
        self.jump_to(y=self.scroll_offset.y + 1)

    def action_page_up(self) -> None:
        """A screenful up."""
        self.jump_to(y=self.scroll_offset.y - max(self.scrollable_size.height - 1, 1))

    def action_page_down(self) -> None:
        """A screenful down."""
        self.jump_to(y=self.scroll_offset.y + max(self.scrollable_size.height - 1, 1))
