"""Where this process stands among the server's: its ranks, and the settings it was started with.

Read from the call of `run_scheduler_process` that is on the stack while plugins are loaded. No imports of the server.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

ENTRY = "run_scheduler_process"


@dataclass(frozen=True)
class Place:
    """Ranks of a scheduler process. rank: over the whole server. lead: first of its tensor-parallel group.

    Data-parallel replicas count first, then pipeline stages, then tensor-parallel ranks: rank = (dp · pp_size + pp) ·
    tp_size + tp. Under data-parallel attention the replicas share the tensor-parallel ranks, so dp adds nothing.
    """

    rank: int = 0
    lead: bool = True
    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1
    dp: int = 0
    dp_size: int = 1


def scheduler_call() -> Mapping[str, Any] | None:
    """Arguments of the scheduler process's entry function, when it is on the stack; else None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == ENTRY and "server_args" in frame.f_locals:
            return dict(frame.f_locals)
        frame = frame.f_back
    return None


def place_of(call: Mapping[str, Any]) -> Place:
    """The place that the entry function was given. What is not there counts as the only one of its kind."""
    args = call.get("server_args")
    tp, pp, dp = (_count(call.get(name), 0) for name in ("tp_rank", "pp_rank", "dp_rank"))
    tp_size, pp_size, dp_size = (_count(getattr(args, name, None), 1) for name in ("tp_size", "pp_size", "dp_size"))
    shared = bool(getattr(args, "enable_dp_attention", False))
    group = max(1, tp_size // dp_size) if shared else tp_size
    return Place(
        rank=((0 if shared else dp) * pp_size + pp) * tp_size + tp,
        lead=tp % group == 0,
        tp=tp,
        tp_size=tp_size,
        pp=pp,
        pp_size=pp_size,
        dp=tp // group if shared else dp,
        dp_size=dp_size,
    )


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
