"""One question on one line: the text of a note, the number of a step, the filter of the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.widget import Widget
from textual.widgets import Input, Static

from ddscope.tui.screens.dialog import Dialog, entry

Check = Callable[[str], str]
"""Says what is wrong with an answer; an empty text when nothing is."""


class Ask(Dialog[str]):
    """Asks for one line. `check` keeps the dialog open until the answer is usable."""

    FOOT = "Enter takes it · Esc closes"

    def __init__(
        self, title: str, *, value: str = "", hint: str = "", said: str = "", check: Check | None = None
    ) -> None:
        super().__init__()
        self._title, self._value, self._hint, self._said = title, value, hint, said
        self._check = check

    def heading(self) -> str:
        """The question."""
        return self._title

    def fields(self) -> Iterable[Widget]:
        """One line, and what can be said about it."""
        if self._said:
            yield Static(self._said, classes="said", markup=False)
        yield entry(self._value, id="answer", placeholder=self._hint)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Check, then answer."""
        problem = self._check(event.value) if self._check else ""
        if problem:
            self.wrong(problem)
        else:
            self.dismiss(event.value)
