"""RequestList: the requests of the trace: which one the cursor is in, what was asked, how it goes, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.message import Message
from textual.reactive import reactive

from ddscope.session.views import RequestRow
from ddscope.tui.widgets.pane import LinePane


class RequestList(LinePane):
    """Requests in order of arrival."""

    class RequestSelected(Message):
        """A request was chosen by key or click."""

        def __init__(self, rid: str) -> None:
            super().__init__()
            self.rid = rid

    rows: reactive[Sequence[RequestRow]] = reactive((), always_update=True)
    cursor: reactive[str | None] = reactive(None)
    """rid of the request under the time cursor."""
    severities: reactive[Mapping[str, str]] = reactive({})
    """rid → worst severity among its findings: info, warning, high or critical."""
