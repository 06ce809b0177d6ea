"""What StepList and RequestList share: a row a line, a row cursor that follows the time cursor, keys and mouse."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import BindingType

from ddscope.tui import foreign
from ddscope.tui.actions import DEFAULT_KEYS
from ddscope.tui.widgets.pane import LinePane, Piece, over


class Listing(LinePane):
    """A list, a line a row. Subclasses say how many rows there are, which is chosen, and what choosing one tells."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [*DEFAULT_KEYS.bindings("list")]

    DEFAULT_CSS = """
    Listing { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    hover: int | None = None
    """Row under the mouse."""

    def count(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    def place(self) -> int | None:
        """The row of the time cursor."""
        raise NotImplementedError

    def choose(self, place: int) -> None:
        """Tell that a person chose a row."""
        raise NotImplementedError

    def row_style(self, place: int) -> Style:
        """What lies under a whole row."""
        if place == self.place():
            return self.palette.cursor
        return self.palette.selected if place == self.hover else Style.null()

    def finish_row(self, pieces: list[Piece], place: int, width: int) -> list[Piece]:
        """Pieces filled up to the pane's width, with the style of the row under them."""
        used = sum(foreign.cells(text) for text, _ in pieces)
        base = self.row_style(place)
        return [(text, over(base, style)) for text, style in pieces] + [(" " * max(width - used, 0), base)]

    def keep_in_view(self) -> None:
        """Scroll to the row of the time cursor."""
        place = self.place()
        if place is not None and self.is_mounted and self.scrollable_size.height:
            self.show_line(place, margin=1)

    def on_resize(self) -> None:
        """A pane that got smaller still shows the cursor."""
        self.keep_in_view()

    # keys and mouse -------------------------------------------------------------------------------------------

    def _move(self, by: int) -> None:
        if not self.count():
            return
        place = self.place()
        goal = self.count() - 1 if place is None else min(max(place + by, 0), self.count() - 1)
        if goal != place:
            self.choose(goal)

    def action_line_up(self) -> None:
        """The row above."""
        self._move(-1)

    def action_line_down(self) -> None:
        """The row below."""
        self._move(+1)

    def action_page_up(self) -> None:
        """A screenful up."""
        self._move(-max(self.scrollable_size.height - self.HEADING_LINES - 1, 1))

    def action_page_down(self) -> None:
        """A screenful down."""
        self._move(max(self.scrollable_size.height - self.HEADING_LINES - 1, 1))

    def action_open(self) -> None:
        """Choose the row of the cursor again, to jump back to it."""
        place = self.place()
        if place is not None:
            self.choose(place)

    def row_at(self, event: events.MouseEvent) -> int | None:
        """The row under the mouse."""
        offset = event.get_content_offset(self)
        line = None if offset is None else self.line_at(offset.y)
        return line if line is not None and 0 <= line < self.count() else None

    def on_click(self, event: events.Click) -> None:
        """Choose the row under the mouse."""
        place = self.row_at(event)
        if place is not None:
            self.choose(place)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show which row a click would choose, and say in words what its marks mean."""
        self._hover_over(self.row_at(event))

    def on_leave(self) -> None:
        """The mouse left."""
        self._hover_over(None)

    def _hover_over(self, place: int | None) -> None:
        if place != self.hover:
            self.hover = place
            self.tooltip = foreign.content(words) if place is not None and (words := self.words(place)) else None
            self.refresh()

    def words(self, place: int) -> str:
        """A row's marks in words, for the tooltip."""
        return ""
