"""The list of rules that run by default."""

from __future__ import annotations

from ddscope.diagnose.accept_curve import AcceptCurve
from ddscope.diagnose.accept_low import AcceptLow
from ddscope.diagnose.base import Detector
from ddscope.diagnose.config_effective import RequestedVsEffective
from ddscope.diagnose.nan_logits import NanLogits
from ddscope.diagnose.rank_divergence import RankDivergence
from ddscope.diagnose.replay_mismatch import ReplayMismatch
from ddscope.diagnose.shape_mismatch import ShapeMismatch
from ddscope.diagnose.token_flood import TokenFlood
from ddscope.diagnose.tree_invalid import TreeAudit, TreeInvalid


def all_detectors() -> list[Detector]:
    """One fresh instance of every rule."""
    totals = TreeAudit()  # counted by the one, read by the other: whether mask and positions can be the cause
    return [
        NanLogits(),
        TokenFlood(),
        ShapeMismatch(),
        TreeInvalid(totals),
        ReplayMismatch(totals),
        AcceptCurve(),
        AcceptLow(),
        RequestedVsEffective(),
        RankDivergence(),
    ]
