"""DFLASH: a block of drafted tokens is a chain; what the target chose in it, what enters the drafter, and its settings.

The universal tap sees the block, too. This one has the logits after penalties and grammar, where the accept takes them.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps import drafters
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "dflash"
ALGORITHMS = frozenset({"DFLASH"})

_WORKER = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2"
_TENSOR = "drafter.target_hidden"


def hooks(core: Core) -> list[list[Hook]]:
    """With the accept as a function of its own (0.5.23; 0.5.17 has none), else only what enters the drafter."""
    told = _Told(core)

    def accept(_: Any, candidates: Any, logits: Any, predicted: Any) -> None:
        """candidates: [B, block]; logits: [B · block, V], None where the target's choice is given without them."""
        if not core.capture:
            return
        size, nodes = candidates.shape
        core.about(n=nodes, size=size, chain=True, algorithm="DFLASH")
        core.put("draft", candidates)
        core.logits(None if predicted is not None else logits)
        if predicted is not None:
            core.put("target", predicted.reshape(size, nodes))

    features = Hook(
        f"{_WORKER}._append_target_hidden_to_draft_kv_by_loc", "before", ("self", "target_hidden"), told.features
    )
    block = Hook(f"{_WORKER}._accept_block", "after", ("candidates", "next_token_logits", "target_predict"), accept)
    return [[block, features], [features]]


class _Told:
    """Tells what enters the drafter: its settings before the first features, shapes once and on change."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._configured = False

    def features(self, worker: Any, hidden: Any) -> None:
        """hidden: [rows, layers · hidden size of the target]."""
        if hidden is None or not self._core.place.lead:
            return
        if not self._configured:
            self._configured = True
            self._settings(worker)
        draft = worker.draft_model
        width = drafters.features_expected(draft)
        expect = None if width is None else [None, width]
        self._core.shape(_TENSOR, hidden, expect, f"{type(draft).__name__}.fc")
        hidden_size = getattr(getattr(worker.model_runner, "model_config", None), "hidden_size", None)
        if isinstance(hidden_size, int) and hidden_size > 0 and hidden.shape[-1] % hidden_size == 0:
            self._core.layers(hidden, hidden.shape[-1] // hidden_size)

    def _settings(self, worker: Any) -> None:
        said = drafters.checkpoint(worker.draft_model_runner.model_config.hf_config)
        target = worker.target_worker.model_runner
        used = drafters.in_force(worker, target.model, target.model_config.hf_config, said.get("target_layer_ids"))
        self._core.fact("drafter.checkpoint", said)
        self._core.fact("drafter.in_force", used)
