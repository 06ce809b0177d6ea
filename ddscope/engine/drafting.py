"""The drafter's side of one request: features of committed tokens in, marginals of the next block out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ddscope.engine.drafter import Drafter
from ddscope.engine.errors import DraftShapeError
from ddscope.engine.pair import Pair
from ddscope.engine.step import DraftStep, Numbers, Params, tensor_fields
from ddscope_kernels import topk_logprobs

CHAIN_TOPK = 8
"""Candidates a depth that a chain step records; the chain itself uses the first."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """What one draft yields; marginals is None where nothing was drafted."""

    marginals: DraftStep | None
    nonfinite: int
    tensors: list[dict[str, Any]]


class Drafting:
    """Holds the drafter's cache and the features it has not read yet.

    Features are kept as they come and read when a draft needs them, so that plain decoding pays nothing and may turn
    into a tree at any step.
    """

    def __init__(self, pair: Pair, rows: int) -> None:
        self._pair = pair
        self._cache = pair.drafter.new_cache(rows)
        self._unread: list[Tensor] = []
        self.layers = self.distinct = 0

    @property
    def capture(self) -> tuple[int, ...]:
        """Layers of the target whose output the drafter wants, in its order."""
        return self._pair.drafter.config.target_layer_ids

    def add(self, hidden: list[Tensor], path: Sequence[int] | None = None) -> None:
        """Tokens were committed: their captured layers, [n, hidden] each; path: which rows of them, None for all."""
        features = self._fuse(hidden)
        if path is not None and list(path) != list(range(len(features))):
            features = features.index_select(0, torch.tensor(path, device=features.device))
        if not self._unread and not self._cache.length:
            self.layers, self.distinct = distinct_layers(features, self._pair.checkpoint.stack.hidden)
        self._unread.append(features)

    def draft(self, anchor: int, params: Params, most: int) -> Drafted:
        """Marginals of the block after the anchor, the last token of the text. most: nodes that a tree may have.

        Raises DraftShapeError, with what the tensors were, when the features do not fit the drafter.
        """
        if params.algorithm == "autoregressive" or (params.algorithm == "ddtree" and params.budget == 0):
            return Drafted(None, 0, [])
        drafter = self._pair.drafter
        tensors = self._read(drafter)
        rows = min(params.draft_rows or drafter.config.block_size, drafter.config.block_size)
        hidden = drafter.draft(anchor, rows, self._cache)
        tensors.append(tensor_fields("draft.block_hidden", hidden, [None, drafter.config.stack.hidden], "target.head"))
        wanted = params.topk or (CHAIN_TOPK if params.algorithm == "dflash" else most)
        whole = params.draft_vocab is None or params.draft_vocab >= drafter.config.stack.vocab
        marginals = topk_logprobs(drafter.logits(hidden, None if whole else params.draft_vocab), wanted)
        step = DraftStep(
            marginals.ids.tolist(),
            [finite(row) for row in marginals.logprobs.tolist()],
            finite(marginals.logz.tolist()) if whole else None,
            finite(marginals.entropy.tolist()) if whole else None,
        )
        return Drafted(step, marginals.nonfinite, tensors)

    def _read(self, drafter: Drafter) -> list[dict[str, Any]]:
        """Hand over what is unread, if anything is; a step that is verified again has nothing new."""
        if not self._unread:
            return []
        features = torch.cat(self._unread) if len(self._unread) > 1 else self._unread[0]
        tensors = [tensor_fields("draft.target_hidden", features, [None, drafter.fc.columns], "drafter")]
        try:
            drafter.read(features, self._cache)
        except DraftShapeError as error:
            error.tensors = tensors
            raise
        self._unread = []
        return tensors

    def _fuse(self, hidden: list[Tensor]) -> Tensor:
        """Captured layers side by side, [n, layers × hidden]."""
        faults = self._pair.faults
        if "final-layer-only" in faults:
            return hidden[-1]
        if "tiled-layer" in faults:
            hidden = [hidden[-1]] * len(hidden)
        return torch.cat(hidden, dim=-1)


def finite(values: list[float]) -> Numbers:
    """Floats with None in place of NaN and ±inf."""
    if isfinite(sum(values)):
        return list(values)
    return [value if isfinite(value) else None for value in values]


def distinct_layers(features: Tensor, hidden: int) -> tuple[int, int]:
    """How many layers stand side by side in features [n, layers × hidden], and how many of them differ."""
    layers = features.view(len(features), -1, hidden).unbind(1)
    different: list[Tensor] = []
    for layer in layers:
        if not any(torch.equal(layer, other) for other in different):
            different.append(layer)
    return len(layers), len(different)
