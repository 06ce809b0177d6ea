"""A new prompt for the engine, with the parameters that may differ from the last one's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, TextArea

from ddscope.tui.screens.dialog import Dialog, budget, decimal, entry, field, whole_number
from ddscope.tui.widgets.choice import Choice

ALGORITHMS = ("ddtree", "dflash", "autoregressive")
MAX_BUDGET = 1024
MAX_TOKENS = 1 << 20


@dataclass(frozen=True)
class Params:
    """What the engine runs with now; the dialogs begin with it."""

    algorithm: str = "ddtree"
    budget: int | str = 15  # or "auto"
    temperature: float = 0.0
    max_new_tokens: int = 128
    self_check: int = 0


class PromptText(TextArea):
    """Several lines of prompt; Enter sends, ^j makes a new line."""

    class Sent(Message):
        """The prompt is finished."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Sent())
        elif event.key == "ctrl+j":
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.key == "tab":  # the next field, not a tab in the prompt
            event.stop()
            event.prevent_default()
            self.screen.focus_next()
        else:
            await super()._on_key(event)


class NewPrompt(Dialog[dict[str, Any]]):
    """Answers with the arguments of `submit`."""

    DEFAULT_CSS = """
    NewPrompt #text { height: 6; margin-bottom: 1; border: none; padding: 0 1; background: $background; }
    """
    TITLE_TEXT = "New prompt"
    FOOT = "Enter sends · ^j new line · Tab next field · Esc closes"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "send", "Send", show=False)]

    def __init__(self, params: Params) -> None:
        super().__init__()
        self._params = params

    def fields(self) -> Iterable[Widget]:
        """The text, then one line a parameter."""
        params = self._params
        yield PromptText(
            id="text", soft_wrap=True, show_line_numbers=False, placeholder="What should the model answer?"
        )
        yield field("algorithm", Choice(ALGORITHMS, params.algorithm, id="algorithm"))
        yield field("budget", entry(str(params.budget), id="budget"))
        yield field("temperature", entry(f"{params.temperature:g}", id="temperature"))
        yield field("new tokens", entry(str(params.max_new_tokens), id="max_new_tokens"))

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one("#text").focus()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Enter in a field sends too."""
        self.action_send()

    def on_prompt_text_sent(self, _event: PromptText.Sent) -> None:
        """Enter in the text sends."""
        self.action_send()

    def action_send(self) -> None:
        """Check every field, then answer."""
        text = self.query_one("#text", TextArea).text
        try:
            if not text.strip():
                raise ValueError("The prompt is empty: type what the model should answer.")
            answer = {
                "prompt": text,
                "algorithm": self.query_one("#algorithm", Choice).value,
                "budget": budget(self.query_one("#budget", Input).value, MAX_BUDGET),
                "temperature": decimal(self.query_one("#temperature", Input).value, "temperature", 0, 10),
                "max_new_tokens": whole_number(
                    self.query_one("#max_new_tokens", Input).value, "new tokens", 1, MAX_TOKENS
                ),
            }
        except ValueError as problem:
            self.wrong(str(problem))
            return
        self.dismiss(answer)
