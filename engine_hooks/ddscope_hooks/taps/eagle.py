"""The EAGLE family, and NGRAM: all accept through one function, which knows the path by its nodes.

Its logits have penalties, bias and grammar in them by then; the universal tap reads them only when the result is made.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "eagle"
ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "FROZEN_KV_MTP", "UNO", "*"})
"""`*`: an algorithm that no tap knows may well accept by the same function."""


def hooks(core: Core) -> list[list[Hook]]:
    """One place in 0.5.17 and 0.5.23."""

    def sampled(chosen: Any, output: Any) -> None:
        """chosen: (predict [B · n], accept lengths [B], accept_index [B, depth] over the batch, −1 padded)."""
        cargo = core.cargo
        if not core.capture or cargo is None:
            return
        if not cargo.chain:
            core.put("accept_index", chosen[2])
        hidden = output.hidden_states
        if core.algorithm == "EAGLE3" and hidden is not None and core.hidden_size:
            core.layers(hidden, hidden.shape[-1] // core.hidden_size)

    return [[Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "after", ("logits_output",), sampled)]]
