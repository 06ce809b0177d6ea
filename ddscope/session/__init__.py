"""What is known at a moment of a trace: the store over a file, the time cursor, the live session that fills it.

No screen here: `ddscope.tui` and `ddscope.cli` are given the frozen values of `views`.
"""

from ddscope.session.cursor import Cursor, Mode, Timeline
from ddscope.session.first import FirstPaint
from ddscope.session.hosts import HostView, StackView, ThreadRow
from ddscope.session.live import Observer, Session, SessionError, SourceStatus
from ddscope.session.rows import Rows
from ddscope.session.servers import RankView, Sampling, TapRow
from ddscope.session.store import Store
from ddscope.session.textruns import TextRuns
from ddscope.session.tokens import TokenTable
from ddscope.session.tree import tree_view
from ddscope.session.views import (
    STAGES,
    BonusView,
    Choice,
    Counters,
    Curve,
    EngineState,
    GapRow,
    LogRow,
    MarkRow,
    NodeView,
    ProbeRow,
    RequestRow,
    StageTime,
    StepRow,
    TensorRow,
    TextRun,
    Timing,
    Totals,
    TreeView,
    Verdict,
    probability,
)

__all__ = [
    "STAGES",
    "BonusView",
    "Choice",
    "Counters",
    "Cursor",
    "Curve",
    "EngineState",
    "FirstPaint",
    "GapRow",
    "HostView",
    "LogRow",
    "MarkRow",
    "Mode",
    "NodeView",
    "Observer",
    "ProbeRow",
    "RankView",
    "RequestRow",
    "Rows",
    "Sampling",
    "Session",
    "SessionError",
    "SourceStatus",
    "StackView",
    "StageTime",
    "StepRow",
    "Store",
    "TapRow",
    "TensorRow",
    "TextRun",
    "TextRuns",
    "ThreadRow",
    "Timeline",
    "Timing",
    "TokenTable",
    "Totals",
    "TreeView",
    "Verdict",
    "probability",
    "tree_view",
]
