"""DraftTree: the draft tree of one step, as a sentence or as an outline. Layout is `tree_layout` and `tree_outline`."""

from __future__ import annotations

from textual.message import Message
from textual.reactive import reactive

from ddscope.session.views import TreeView
from ddscope.tui.widgets.pane import LinePane


class DraftTree(LinePane):
    """The tree of the step under the time cursor.

    Set `view`; a tree of another record puts `cursor` on the last node of the path. The widget keeps its own border title
    and subtitle.
    """

    class NodeSelected(Message):
        """The node cursor moved to `index` (by key or click)."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    class NodeHovered(Message):
        """The mouse is over node `index`; None when it left."""

        def __init__(self, index: int | None) -> None:
            super().__init__()
            self.index = index

    view: reactive[TreeView | None] = reactive(None)
    cursor: reactive[int] = reactive(0)
    outline: reactive[bool] = reactive(False)
    show_probabilities: reactive[bool] = reactive(False)
    stopped: reactive[str] = reactive("")
    """Why a breakpoint holds this step before its commit; empty when it does not."""
