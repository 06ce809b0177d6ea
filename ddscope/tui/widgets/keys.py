"""KeyHints: the last line: the keys that help here and now, as many as fit. A click does what the key does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from ddscope.tui.foreign import cells
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import strip_of
from ddscope.tui.widgets.pane import Piece


@dataclass(frozen=True)
class KeyHint:
    """Keys as printed, what they do, and the action a click runs."""

    keys: str
    word: str
    action: str


class KeyHints(Widget):
    """Hints in the order of their use; the last two are kept however narrow the screen is."""

    DEFAULT_CSS = "KeyHints { height: 1; background: $panel; }"

    class Pressed(Message):
        """A hint was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    hints: reactive[tuple[KeyHint, ...]] = reactive(())

    def render_line(self, y: int) -> Strip:
        """All hints that fit."""
        palette = Palette.of(self.app)
        spans: list[Piece] = [(" ", Style())]
        for place, hint in enumerate(fitting(self.hints, self.size.width)):
            spans += [("   " if place else "", Style()), (hint.keys, palette.strong), (f" {hint.word}", palette.muted)]
        return strip_of(spans, self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        """Run the action of the hint under the mouse."""
        x = 1
        for hint in fitting(self.hints, self.size.width):
            x += _size(hint)
            if event.x < x:
                self.post_message(self.Pressed(hint.action))
                return


def _size(hint: KeyHint) -> int:
    return cells(hint.keys) + 1 + cells(hint.word) + 3


def fitting(hints: Sequence[KeyHint], width: int) -> list[KeyHint]:
    """The hints that fit into `width`: from the front, but always the last two."""
    kept, rest = list(hints[:-2]), list(hints[-2:])
    room = width - 1 - sum(_size(hint) for hint in rest) + 3
    front: list[KeyHint] = []
    for hint in kept:
        room -= _size(hint)
        if room < 0:
            break
        front.append(hint)
    return front + rest
