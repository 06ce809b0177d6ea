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
        if not core.capture or core.cargo is None:
            return
        size, nodes = candidates.shape
        core.about(n=nodes, size=size, chain=True, algorithm="DFLASH")
        if "draft" not in core.cargo.parts:
            core.put("draft", candidates)
        core.logits(None if predicted is not None else logits)
        core.put("target", predicted)

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
        self._last: Any = None
        self._layers = 0

    def features(self, worker: Any, hidden: Any) -> None:
        """hidden: [rows, layers · hidden size of the target]."""
        if hidden is None or not self._core.place.lead:
            return
        if hidden.shape != self._last:
            self._look(worker, hidden)
        if self._layers:
            self._core.layers(hidden, self._layers)

    def _look(self, worker: Any, hidden: Any) -> None:
        """Features of another shape than the last ones."""
        if not self._configured:
            self._configured = True
            self._settings(worker)
        draft = worker.draft_model
        width = drafters.features_expected(draft)
        expect = None if width is None else [None, width]
        self._core.shape(_TENSOR, hidden, expect, f"{type(draft).__name__}.fc")
        size = getattr(getattr(worker.model_runner, "model_config", None), "hidden_size", None)
        whole = isinstance(size, int) and size > 0 and hidden.shape[-1] % size == 0
        self._layers, self._last = hidden.shape[-1] // size if whole else 0, hidden.shape

    def _settings(self, worker: Any) -> None:
        said = drafters.checkpoint(worker.draft_model_runner.model_config.hf_config)
        target = worker.target_worker.model_runner
        used = drafters.in_force(worker, target.model, target.model_config.hf_config, said.get("target_layer_ids"))
        self._core.fact("drafter.checkpoint", said)
        self._core.fact("drafter.in_force", used)
