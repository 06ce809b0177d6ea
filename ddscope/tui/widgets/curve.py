"""DepthCurve: P(accepted ≥ depth) of one request against the whole run, small for the node pane and large for a tab."""

from __future__ import annotations

from textual.reactive import reactive

from ddscope.session.views import Curve
from ddscope.tui.widgets.pane import LinePane


class DepthCurve(LinePane):
    """How deep the tree is accepted. `compact` is the form without scale and legend."""

    curve: reactive[Curve] = reactive(Curve.empty())
    """Of the request under the time cursor."""
    run: reactive[Curve] = reactive(Curve.empty())
    """Of the whole run; empty to leave the comparison out."""
    compact: reactive[bool] = reactive(False)
