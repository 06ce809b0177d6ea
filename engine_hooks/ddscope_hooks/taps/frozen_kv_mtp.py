"""FROZEN_KV_MTP: the tree is EAGLE's and taken there; here is what enters the drafter that reads the target's cache."""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "frozen_kv_mtp"
ALGORITHMS = frozenset({"FROZEN_KV_MTP"})

_DRAFT = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"


def hooks(core: Core) -> list[list[Hook]]:
    """One place in 0.5.17 and 0.5.23. A CUDA graph runs it at its capture only, and fixes the shapes there."""

    def draft(worker: Any, batch: Any) -> None:
        hidden = getattr(batch.spec_info, "hidden_states", None)
        if hidden is None or not core.place.lead:
            return
        model = worker.draft_model_runner.model
        width = getattr(model, "backbone_hidden_size", None)
        expect = [None, int(width)] if isinstance(width, int) else None
        core.shape("drafter.target_hidden", hidden, expect, type(model).__name__)

    return [[Hook(f"{_DRAFT}.draft_forward", "before", ("self", "forward_batch"), draft)]]
