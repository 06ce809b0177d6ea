"""Choice: one of a few words on one line, chosen with the arrow keys or the mouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import strip_of
from ddscope.tui.widgets.pane import Piece


class Choice(Widget, can_focus=True):
    """A row of words, one of them chosen."""

    DEFAULT_CSS = "Choice { height: 1; width: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Choice to the left", show=False),
        Binding("right,l,space", "move(1)", "Choice to the right", show=False),
    ]

    class Changed(Message):
        """Another word was chosen."""

        def __init__(self, value: str) -> None:
            super().__init__()
            self.value = value

    value: reactive[str] = reactive("")

    def __init__(self, options: Sequence[str], value: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.options = tuple(options)
        self.set_reactive(Choice.value, value if value in self.options else self.options[0])

    def action_move(self, by: int) -> None:
        """Choose a neighbour, round and round."""
        self.choose(self.options[(self.options.index(self.value) + by) % len(self.options)])

    def choose(self, value: str) -> None:
        """Choose and tell."""
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(value))

    def render_line(self, y: int) -> Strip:
        """The words; the chosen one is reversed while the row has the focus, in brackets always."""
        palette = Palette.of(self.app)
        spans: list[Piece] = []
        for option in self.options:
            chosen = option == self.value
            ink = palette.selected + palette.strong if chosen and self.has_focus else palette.strong
            spans.append((f"[{option}]" if chosen else f" {option} ", ink if chosen else palette.muted))
            spans.append((" ", Style()))
        return strip_of(spans, self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        """Choose the word under the mouse."""
        x = 0
        for option in self.options:
            x += len(option) + 3
            if event.x < x:
                self.choose(option)
                return
