"""A list to pick from: what to copy, which bookmark to jump to, and the list of keys (where nothing is picked)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.widget import Widget

from ddscope.tui.screens.dialog import Dialog
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import Line, LineView

Draw = Callable[[Palette, int], Sequence[Line]]
"""Lines for a palette and a width, so that a list follows theme and size."""


FRAME = 9  # rows of a dialog that are not its list


class PickLines(LineView):
    """Lines that are picked by Enter, double click or their first letter."""

    def __init__(self, draw: Draw, reason: str) -> None:
        super().__init__(id="lines")
        self._draw = draw
        self._lines: Sequence[Line] = ()
        self._reason = reason

    def redraw(self) -> None:
        """Make the lines anew; the list is as high as they need and the screen allows."""
        self._lines = self._draw(self.palette, self.content_width)
        self.empty_reason = self._reason  # not before: a list that is not made yet is not empty
        self.styles.height = min(max(len(self._lines), 2), max(self.screen.size.height - FRAME, 2))
        self.content_changed()

    def on_resize(self, _event: events.Resize) -> None:
        """Lines are made for a width."""
        self.redraw()

    def entry_count(self) -> int:
        """One entry a line."""
        return len(self._lines)

    def entry_line(self, entry: int, width: int) -> Line:
        """A line."""
        return self._lines[entry]


class Pick(Dialog[int]):
    """Answers with the number of the line that was picked. `letters` pick lines directly."""

    DEFAULT_CSS = """
    Pick #box { width: 100; max-width: 96%; }
    Pick #lines { background: $surface; }
    """
    FOOT = "Enter picks · Esc closes"
    LINES: ClassVar[type[PickLines]] = PickLines

    def __init__(
        self,
        title: str,
        draw: Draw,
        *,
        reason: str = "Nothing to pick.",
        letters: str = "",
        foot: str = FOOT,
    ) -> None:
        super().__init__()
        self._title, self._letters, self._foot = title, letters, foot
        self._list = self.LINES(draw, reason)

    def heading(self) -> str:
        """What is picked."""
        return self._title

    def fields(self) -> Iterable[Widget]:
        """The list."""
        yield self._list

    def on_mount(self) -> None:
        """The list has the keys."""
        self.query_one("#foot").update(self._foot)  # type: ignore[attr-defined]
        self._list.focus()

    def on_line_view_picked(self, event: LineView.Picked) -> None:
        """Enter or a double click on a line."""
        event.stop()
        self.dismiss(event.entry)

    def on_key(self, event: events.Key) -> None:
        """A letter picks its line."""
        if event.character and event.character in self._letters:
            event.stop()
            self.dismiss(self._letters.index(event.character))
