"""DSPARK: chains like DFLASH's, taken where the worker tells its own observers each step, and what enters the drafter.

With a ragged verify a request's chain is cut to a length of its own: the rows behind it were never verified, so the
block is not told then; accepted counts and path are, as the universal tap has them.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps import drafters
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "dspark"
ALGORITHMS = frozenset({"DSPARK"})

_PARTS = "sglang.srt.speculative.dspark_components"
_OBSERVERS = f"{_PARTS}.dspark_observability.DsparkStepObservers"
_INJECTOR = f"{_PARTS}.dspark_kv_inject.TargetHiddenKvInjector"


def hooks(core: Core) -> list[list[Hook]]:
    """With what enters the drafter where that has a place of its own (0.5.23), else the steps alone."""

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
    steps = Hook(f"{_OBSERVERS}.observe_verify_step", "before", needs, observe)
    given = ("self", "target_hidden", "target_hidden_is_projected")
    inputs = Hook(f"{_INJECTOR}._inject", "before", given, _Inputs(core).features)
    return [[steps, inputs], [steps]]


class _Inputs:
    """Tells the drafter's settings before the first features, shapes once and on change."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._configured = False

    def features(self, injector: Any, hidden: Any, projected: Any) -> None:
        """hidden: [rows, layers · hidden size of the target]; projected: `fc` has been through them already."""
        core, draft = self._core, injector.draft_model
        if hidden is None or not core.place.lead:
            return
        if not self._configured:
            self._configured = True
            self._settings(injector)
        if projected:
            return
        width = drafters.features_expected(draft)
        expect = None if width is None else [None, width]
        core.shape("drafter.target_hidden", hidden, expect, f"{type(draft).__name__}.fc")
        if core.hidden_size and hidden.shape[-1] % core.hidden_size == 0:
            core.layers(hidden, hidden.shape[-1] // core.hidden_size)

    def _settings(self, injector: Any) -> None:
        said = drafters.checkpoint(injector.draft_model_runner.model_config.hf_config)
        target = injector.model_runner
        used = drafters.in_force(None, target.model, target.model_config.hf_config, said.get("target_layer_ids"))
        used["block_size"] = int(injector.verify_num_draft_tokens) - 1  # the root is verified, too
        self._core.fact("drafter.checkpoint", said)
        self._core.fact("drafter.in_force", used)
