"""What the drafter should be given (its own configuration) against what it is given, from facts. No rates, no steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddscope.diagnose.base import Evidence, evidence_of
from ddscope.diagnose.words import excerpt, number_word
from ddscope.model import Fact


@dataclass(frozen=True, slots=True)
class Cause:
    """One way in which the inputs are wrong. words: an end of a sentence; evidence: the facts that say so."""

    kind: str
    words: str
    evidence: tuple[Evidence, ...]
    next: tuple[str, ...]


class DrafterInputs:
    """Keeps the latest `drafter.checkpoint`, `drafter.in_force` and `draft.features` facts."""

    def __init__(self) -> None:
        self._checkpoint: tuple[Mapping[str, Any], Evidence] | None = None
        self._in_force: tuple[Mapping[str, Any], Evidence] | None = None
        self._features: tuple[int, int, Evidence] | None = None  # captured layers, distinct ones

    def observe(self, fact: Fact, index: int | None) -> None:
        """Takes in a fact; any other name, and any value that is not as described, is ignored."""
        value = fact.value
        if not isinstance(value, Mapping):
            return
        if fact.name == "drafter.checkpoint":
            self._checkpoint = (value, evidence_of(fact, index, f"checkpoint: {_config(value)}"))
        elif fact.name == "drafter.in_force":
            self._in_force = (value, evidence_of(fact, index, f"in force: {_config(value)}"))
        elif fact.name == "draft.features":
            self._observe_features(value, fact, index)

    def _observe_features(self, value: Mapping[str, Any], fact: Fact, index: int | None) -> None:
        layers, distinct = _count(value.get("layers")), _count(value.get("distinct"))
        if layers is None or distinct is None or not 0 < distinct <= layers:
            return
        if self._features is None or self._features[:2] != (layers, distinct):  # keep the first that says so
            evidence = evidence_of(fact, index, f"{layers} captured layers, {distinct} distinct")
            self._features = (layers, distinct, evidence)

    def checkpoint_layers(self) -> int | None:
        """How many target layers the drafter's own configuration names."""
        ids = _layer_ids(self._checkpoint)
        return len(ids) if ids else None

    def hidden_size(self) -> int | None:
        """Hidden size by the drafter's own configuration."""
        return _count(self._checkpoint[0].get("hidden_size")) if self._checkpoint is not None else None

    def agrees(self) -> bool | None:
        """Whether both configurations are known and equal where it matters; None when one is not known."""
        if self._checkpoint is None or self._in_force is None:
            return None
        return not self._config_causes()

    def causes(self) -> list[Cause]:
        """Everything that is wrong with the inputs, the most certain first."""
        return self._config_causes() + self._feature_causes()

    def _config_causes(self) -> list[Cause]:
        if self._checkpoint is None or self._in_force is None:
            return []
        said, used = self._checkpoint[0], self._in_force[0]
        evidence = (self._checkpoint[1], self._in_force[1])
        causes = []
        mask_said, mask_used = _count(said.get("mask_token_id")), _count(used.get("mask_token_id"))
        if mask_said is not None and mask_used is not None and mask_said != mask_used:
            words = f"the mask token in force is {mask_used}, the drafter's checkpoint says {mask_said}"
            todo = f"Set the mask token to {mask_said}, as in the drafter's own configuration (`mask_token_id`)."
            causes.append(Cause("mask_token", words, evidence, (todo,)))
        ids_said, ids_used = _layer_ids(self._checkpoint), _layer_ids(self._in_force)
        if ids_said and ids_used and ids_said != ids_used:
            causes.append(_layer_cause(ids_said, ids_used, evidence))
        for key, name in (("hidden_size", "hidden size"), ("num_target_layers", "number of target layers")):
            a, b = _count(said.get(key)), _count(used.get(key))
            if a is not None and b is not None and a != b:
                words = f"the {name} in force is {b:,}, the drafter's checkpoint says {a:,}"
                todo = "Check that this drafter is made for this target."
                causes.append(Cause(key, words, evidence, (todo,)))
        return causes

    def _feature_causes(self) -> list[Cause]:
        if self._features is None:
            return []
        layers, distinct, evidence = self._features
        ids = _layer_ids(self._in_force) or _layer_ids(self._checkpoint)
        wanted = len(set(ids)) if ids and len(ids) == layers else layers
        if distinct >= wanted:
            return []
        same = "are all identical" if distinct == 1 else f"are only {number_word(distinct)} different ones"
        words = f"the {number_word(layers)} captured layers {same}: one layer stands in for others"
        todo = "Check the capture of hidden states: every layer must be stored by itself, not the last one for all."
        return [Cause("identical_layers", words, (evidence,), (todo,))]


def _layer_cause(said: list[int], used: list[int], evidence: tuple[Evidence, ...]) -> Cause:
    pair = f"in force {used}, in the drafter's checkpoint {said}"
    offsets = {u - s for u, s in zip(used, said, strict=False)}
    if used == said[::-1]:
        kind, words = "layer_order", f"the target layers are in reverse order: {pair}"
    elif sorted(used) == sorted(said):
        kind, words = "layer_order", f"the target layers are in another order: {pair}"
    elif len(used) == len(said) and len(offsets) == 1:
        kind, words = "layer_ids", f"the target layers are off by {offsets.pop():+d}: {pair}"
    else:
        kind, words = "layer_ids", f"other target layers are captured: {pair}"
    todo = "Capture `target_layer_ids` of the drafter's own configuration, in that order; never guess a missing key."
    return Cause(kind, words, evidence, (todo,))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _layer_ids(known: tuple[Mapping[str, Any], Evidence] | None) -> list[int] | None:
    ids = known[0].get("target_layer_ids") if known is not None else None
    if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        return ids
    return None


def _config(value: Mapping[str, Any]) -> str:
    keys = ("mask_token_id", "target_layer_ids", "block_size", "num_target_layers", "hidden_size")
    return excerpt(", ".join(f"{key} {value[key]}" for key in keys if key in value) or "nothing known")
