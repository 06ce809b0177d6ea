"""What is known at a moment of a trace: the store over a file, the time cursor, the live session that fills it.

No screen here: `ddscope.tui` and `ddscope.cli` are given the frozen values of `views`.
"""

from ddscope.session.cursor import Cursor, Mode, Timeline
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
    RequestRow,
    StageTime,
    StepRow,
    TensorRow,
    TextRun,
    Timing,
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
    "GapRow",
    "LogRow",
    "MarkRow",
    "Mode",
    "NodeView",
    "RequestRow",
    "StageTime",
    "StepRow",
    "TensorRow",
    "TextRun",
    "Timeline",
    "Timing",
    "TokenTable",
    "TreeView",
    "Verdict",
    "probability",
    "tree_view",
]
