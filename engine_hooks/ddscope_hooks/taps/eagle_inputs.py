"""What enters an EAGLE drafter: hidden states of the target against what its weights take.

EAGLE3 is silent when the server captured too few layers: its projection is skipped when widths happen to agree.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps import drafters
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "eagle.inputs"
ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})

_SINGLE = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
_MULTI = "sglang.srt.speculative.multi_layer_eagle_worker_v2.MultiLayerEagleDraftWorker"


def hooks(core: Core) -> list[list[Hook]]:
    """Single-layer and multi-layer drafters where both are there, else the single-layer one."""
    inputs = _Inputs(core)
    needs = ("self", "target_hidden_states")
    single, multi = (
        Hook(f"{worker}._draft_extend_for_prefill", "before", needs, inputs.prefill) for worker in (_SINGLE, _MULTI)
    )
    return [[single, multi], [single]]


class _Inputs:
    """Tells the drafter's settings once, and shapes once and on change."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told = False

    def prefill(self, worker: Any, hidden: Any) -> None:
        """hidden: [tokens, width] of the target; None for a drafter that reads none."""
        if hidden is None or not self._core.place.lead:
            return
        runner = getattr(worker, "draft_runner", None) or worker.draft_runners[0]
        width = _width(runner, self._core.algorithm)
        if not self._told:
            self._told = True
            if self._core.algorithm == "EAGLE3":
                self._settings(worker, runner, width)
        model = type(runner.model).__name__
        self._core.shape("drafter.target_hidden", hidden, None if width is None else [None, width], model)

    def _settings(self, worker: Any, runner: Any, width: int | None) -> None:
        config = runner.model_config.hf_config
        hidden = getattr(config, "target_hidden_size", None) or getattr(config, "hidden_size", None)
        inner = getattr(config, "eagle_config", None)
        asked = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, dict) else None
        said: dict[str, Any] = {} if hidden is None else {"hidden_size": hidden}
        if isinstance(asked, (list, tuple)):
            said["target_layer_ids"] = list(asked)
        target = worker.target_worker.model_runner
        count = getattr(target.model_config, "num_hidden_layers", None)
        used: dict[str, Any] = {"hidden_size": getattr(target.model_config, "hidden_size", None)}
        layers = drafters.captured_layers(target.model, count, asked)
        if layers is not None:
            used["target_layer_ids"] = layers
        self._core.fact("drafter.checkpoint", said)
        self._core.fact("drafter.in_force", {name: value for name, value in used.items() if value is not None})


def _width(runner: Any, algorithm: str) -> int | None:
    """Width of the target's hidden states that the drafter takes: EAGLE3 by its weights, others by configuration."""
    if algorithm == "EAGLE3":
        inner = getattr(runner.model, "model", None)
        width = drafters.features_expected(inner if inner is not None else runner.model)
        if width is not None:
            return width
    width = getattr(runner.model_config, "spec_hidden_size", None)
    return width if isinstance(width, int) else None
