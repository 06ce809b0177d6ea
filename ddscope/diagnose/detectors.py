"""The list of rules that run by default."""

from __future__ import annotations

from ddscope.diagnose.accept_curve import AcceptCurve
from ddscope.diagnose.accept_low import AcceptLow
from ddscope.diagnose.base import Detector
from ddscope.diagnose.cache_conditioned import CacheConditioned
from ddscope.diagnose.config_effective import RequestedVsEffective
from ddscope.diagnose.env_abi import EnvAbi
from ddscope.diagnose.gpu_fault import GpuFault
from ddscope.diagnose.journal import Journal
from ddscope.diagnose.kv_allocator import KvAllocator
from ddscope.diagnose.logs_incomplete import LogsIncomplete
from ddscope.diagnose.metric_redefined import MetricRedefined
from ddscope.diagnose.nan_logits import NanLogits
from ddscope.diagnose.rank_divergence import RankDivergence
from ddscope.diagnose.replay_mismatch import ReplayMismatch
from ddscope.diagnose.runaway_loop import RunawayLoop
from ddscope.diagnose.serving import AliveNotServing, Down, NotReady
from ddscope.diagnose.shape_mismatch import ShapeMismatch
from ddscope.diagnose.skew_files import SkewFiles
from ddscope.diagnose.startup import CrashLoop, ImportFatal, OptionalImport, StartupPhase
from ddscope.diagnose.token_flood import TokenFlood
from ddscope.diagnose.tree_invalid import TreeAudit, TreeInvalid
from ddscope.diagnose.unit_drift import UnitDrift


def all_detectors() -> list[Detector]:
    """One fresh instance of every rule."""
    totals = TreeAudit()  # counted by the one, read by the other: whether mask and positions can be the cause
    journal = Journal()  # what the logs told, taken in once for all
    return [
        NanLogits(),
        TokenFlood(),
        RunawayLoop(journal),
        ShapeMismatch(),
        TreeInvalid(totals),
        ReplayMismatch(totals),
        AcceptCurve(),
        AcceptLow(journal),
        CacheConditioned(journal),
        RequestedVsEffective(journal),
        RankDivergence(journal),
        AliveNotServing(journal),
        NotReady(journal),
        Down(journal),
        OptionalImport(journal),
        ImportFatal(journal),
        CrashLoop(journal),
        StartupPhase(journal),
        EnvAbi(journal),
        KvAllocator(journal),
        GpuFault(journal),
        LogsIncomplete(journal),
        SkewFiles(journal),
        UnitDrift(),
        MetricRedefined(journal),
    ]
