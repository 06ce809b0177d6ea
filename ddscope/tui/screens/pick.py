"""A list to pick from: what to copy, which bookmark to jump to, and the list of keys (where nothing is picked)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from textual import events
from textual.widget import Widget

from ddscope.tui.screens.dialog import Dialog
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import Line, LineView

Draw = Callable[[Palette, int], Sequence[Line]]
"""Lines for a palette and a width, so that a list follows theme and size."""


class PickLines(LineView):
    """Lines that are picked by Enter, double click or their first letter."""

    def __init__(self, draw: Draw, reason: str) -> None:
        super().__init__(id="lines")
        self._draw = draw
        self._lines: Sequence[Line] = ()
        self.empty_reason = reason

    def redraw(self) -> None:
        """Make the lines anew."""
        self._lines = self._draw(self.palette, self.content_width)
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

    CSS = """
    Pick #box { width: 100; max-width: 96%; }
    Pick #lines { height: auto; max-height: 70vh; min-height: 1; background: $surface; }
    """
    FOOT = "Enter picks · Esc closes"

    def __init__(
        self,
        title: str,
        draw: Draw,
        *,
        count: int,
        reason: str = "Nothing to pick.",
        letters: str = "",
        foot: str = FOOT,
    ) -> None:
        super().__init__()
        self._title, self._letters, self._foot = title, letters, foot
        self._list = PickLines(draw, reason)
        self._list.styles.height = max(min(count, 40), 2 if not count else 1)

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
