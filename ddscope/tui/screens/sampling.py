"""What a server records, for busy ones: every N-th forward pass, requests of one prefix, bytes a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.widget import Widget
from textual.widgets import Input, Static

from ddscope.session import Sampling
from ddscope.tui.screens.dialog import Dialog, entry, field, whole_number

MAX_EVERY = 1 << 30
MAX_RATE = 1 << 40
MAX_PREFIX = 256


class SamplingSettings(Dialog[dict[str, Any]]):
    """Answers with what changed only: every, rid, max_bytes_per_s."""

    TITLE_TEXT = "What the server records"

    def __init__(self, sampling: Sampling) -> None:
        super().__init__()
        self._sampling = sampling

    def fields(self) -> Iterable[Widget]:
        """One line a control."""
        now = self._sampling
        yield field("every", entry("" if now.every is None else str(now.every), id="every"))
        yield field("rid prefix", entry(now.rid, id="rid", placeholder="all requests"))
        yield field("bytes a second", entry(str(now.max_bytes_per_s or 0), id="rate"))
        yield Static(
            "every: each N-th forward pass is recorded; 0 records no step, 1 each. rid prefix: only requests whose id "
            "begins with it. bytes a second: 0 is no bound. What is left out is counted as a gap. All viewers see it.",
            classes="said",
            markup=False,
        )

    def on_mount(self) -> None:
        """Every is what is changed most."""
        self.query_one("#every").focus()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Check every field, then answer with the differences."""
        try:
            chosen = {
                "every": whole_number(self.query_one("#every", Input).value, "every", 0, MAX_EVERY),
                "rid": _prefix(self.query_one("#rid", Input).value),
                "max_bytes_per_s": whole_number(self.query_one("#rate", Input).value, "bytes a second", 0, MAX_RATE),
            }
        except ValueError as problem:
            self.wrong(str(problem))
            return
        now = self._sampling
        before = {"every": now.every, "rid": now.rid, "max_bytes_per_s": now.max_bytes_per_s or 0}
        self.dismiss({name: value for name, value in chosen.items() if value != before[name]})


def _prefix(text: str) -> str:
    if len(text) > MAX_PREFIX:
        raise ValueError(f"rid prefix takes at most {MAX_PREFIX} characters.")
    return text
