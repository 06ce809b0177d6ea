"""NodeInspector: all that is known of one node, why it is or is not in the text, and a small depth curve."""

from __future__ import annotations

from textual.reactive import reactive

from ddscope.session.views import Curve, NodeView, TreeView
from ddscope.tui.widgets.pane import LinePane


class NodeInspector(LinePane):
    """The node under the node cursor. Set `view` and `node` (one of its nodes)."""

    view: reactive[TreeView | None] = reactive(None)
    node: reactive[NodeView | None] = reactive(None)
    entropy: reactive[float | None] = reactive(None)
    """Drafter's entropy in nats at the node's depth (`step.draft.entropy[depth - 1]`); None when unknown."""
    curve: reactive[Curve] = reactive(Curve.empty())
    """P(accepted ≥ depth) of the request, drawn small below; empty to leave it out."""
    run_curve: reactive[Curve] = reactive(Curve.empty())
    """The same over the whole run, for comparison."""
