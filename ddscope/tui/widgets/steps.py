"""StepList: one row a step of the request, any number of them: a bar of accepted tokens, the bonus, marks."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message
from textual.reactive import reactive

from ddscope.session.views import StepRow
from ddscope.tui.widgets.pane import LinePane


class StepList(LinePane):
    """Steps of the request under the time cursor, newest at the bottom. Only rows on the screen are read."""

    class StepSelected(Message):
        """A step was chosen by key or click; `record` is its record number."""

        def __init__(self, record: int) -> None:
            super().__init__()
            self.record = record

    rows: reactive[Sequence[StepRow]] = reactive((), always_update=True)
    """Lazy; set it again (the same object will do) when it has grown. Records ascend."""
    cursor: reactive[int | None] = reactive(None)
    """Record number of the step under the time cursor."""
    marked: reactive[frozenset[int]] = reactive(frozenset())
    """Record numbers that carry a bookmark or note."""
