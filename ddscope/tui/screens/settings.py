"""Settings of the engine between two steps: algorithm, budget, temperature, self-check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.widget import Widget
from textual.widgets import Input, Static

from ddscope.tui.screens.dialog import Dialog, budget, decimal, entry, field, whole_number
from ddscope.tui.screens.prompt import ALGORITHMS, MAX_BUDGET, MAX_TOKENS, Params
from ddscope.tui.widgets.choice import Choice


class Settings(Dialog[dict[str, Any]]):
    """Answers with what changed only: algorithm, budget, temperature and `self_check` (every N steps, 0 is off)."""

    TITLE_TEXT = "Settings from the next step on"

    def __init__(self, params: Params) -> None:
        super().__init__()
        self._params = params

    def fields(self) -> Iterable[Widget]:
        """One line a setting."""
        params = self._params
        yield field("algorithm", Choice(ALGORITHMS, params.algorithm, id="algorithm"))
        yield field("budget", entry(str(params.budget), id="budget"))
        yield field("temperature", entry(f"{params.temperature:g}", id="temperature"))
        yield field("self-check", entry(str(params.self_check), id="self_check"))
        yield Static(
            "budget: nodes of the tree, or auto: as many as pay. self-check: every N steps the deepest path runs once "
            "more as a plain causal forward, and its logits are compared with the tree verify's; 0 is off.",
            classes="said",
            markup=False,
        )

    def on_mount(self) -> None:
        """The budget is what is changed most."""
        self.query_one("#budget").focus()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Check every field, then answer with the differences."""
        try:
            chosen: dict[str, Any] = {
                "algorithm": self.query_one("#algorithm", Choice).value,
                "budget": budget(self.query_one("#budget", Input).value, MAX_BUDGET),
                "temperature": decimal(self.query_one("#temperature", Input).value, "temperature", 0, 10),
                "self_check": whole_number(self.query_one("#self_check", Input).value, "self-check", 0, MAX_TOKENS),
            }
        except ValueError as problem:
            self.wrong(str(problem))
            return
        self.dismiss({name: value for name, value in chosen.items() if value != getattr(self._params, name)})
