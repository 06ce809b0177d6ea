"""GeneratedText: the prompt and what the request has printed so far, each token coloured by how it came to be."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message
from textual.reactive import reactive

from ddscope.session.views import TextRun
from ddscope.tui.widgets.pane import LinePane


class GeneratedText(LinePane):
    """Text of the request up to the time cursor. Tokens of the step at the cursor stand out and stay on the screen."""

    class TokenHovered(Message):
        """The mouse is over text of `step` (record number `record`); both None when it left or the text has no step."""

        def __init__(self, step: int | None, record: int | None) -> None:
            super().__init__()
            self.step = step
            self.record = record

    class TokenSelected(Message):
        """Text of `step` (record number `record`) was clicked."""

        def __init__(self, step: int, record: int) -> None:
            super().__init__()
            self.step = step
            self.record = record

    runs: reactive[Sequence[TextRun]] = reactive((), always_update=True)
    cursor: reactive[int | None] = reactive(None)
    """Record number of the step under the time cursor."""
