"""DSPARK: chains like DFLASH's, taken where the worker hands each step to its own observers.

With a ragged verify a request's chain is cut to a length of its own: the rows behind it were never verified, so the
block is not told then; accepted counts and path are, as the universal tap has them.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "dspark"
ALGORITHMS = frozenset({"DSPARK"})

_OBSERVERS = "sglang.srt.speculative.dspark_components.dspark_observability.DsparkStepObservers"


def hooks(core: Core) -> list[list[Hook]]:
    """One place in 0.5.17 and 0.5.23."""

    def observe(ids: Any, logits: Any, layout: Any) -> None:
        """ids: [B, block] verified tokens, root first; logits: [B · block, V] or None; layout: of a ragged verify."""
        if not core.capture:
            return
        size, nodes = ids.shape
        core.about(n=nodes, size=size, chain=True, algorithm="DSPARK")
        if layout is not None:
            core.put("draft", ids[:, :1])  # of another size than the chain: the block is left out
            core.logits(None)
            return
        core.put("draft", ids)
        core.logits(logits)

    needs = ("verify_ids_2d", "target_logits", "layout")
    return [[Hook(f"{_OBSERVERS}.observe_verify_step", "before", needs, observe)]]
