"""The DFlash drafter: a small block-parallel model whose context is the target's hidden states.

One pass fills a whole block: row 0 carries the anchor (the last token of the text), the others the mask token; row i
predicts the token at its own position. Keys and values of the context come from fused target features, so the drafter
never reads the text itself. Layout of the checkpoint: z-lab's. Source: DFlash, arXiv 2602.06036.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import DrafterConfig, read_drafter_config
from ddscope.engine.errors import DraftShapeError
from ddscope.engine.layers import KVCache, Rope, Weights, rotate, run_layer
from ddscope.engine.linear import Linear
from ddscope.engine.target import Target
from ddscope.engine.weights import layer_shapes, load_tensors


class Drafter:
    """Weights and forward pass; `config` is the configuration in force (a fault may change it, the weights stay)."""

    def __init__(self, config: DrafterConfig, weights: Weights, target: Target) -> None:
        stack = config.stack
        self.config = config
        self._target = target
        self._heads: dict[int, Linear] = {}  # of parts of the vocabulary, made when first asked for
        self.fc = weights.linear("fc")
        self.hidden_norm = weights.norm("hidden_norm.weight", stack.norm_eps)
        self.norm = weights.norm("norm.weight", stack.norm_eps)
        self.layers = weights.layers(stack, "")
        self.rope = Rope(stack, weights.dtype, weights.device)
        # K and V of the context depend on the features alone: one product serves all layers.
        attention = [f"layers.{number}.self_attn." for number in range(stack.layers)]
        self.context_kv = weights.linear(*(f"{here}{part}" for here in attention for part in ("k_proj", "v_proj")))
        self.context_k_norm = torch.stack([weights.plain(f"{here}k_norm.weight") for here in attention])

    @classmethod
    def load(cls, folder: Path, target: Target) -> Drafter:
        """From a folder in the z-lab layout. Raises EngineError when it does not fit its own config.json."""
        config = read_drafter_config(folder)
        hidden = config.stack.hidden
        expected = {
            "fc.weight": (hidden, hidden * len(config.target_layer_ids)),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
            **layer_shapes(config.stack, ""),
        }
        weights = Weights(load_tensors(folder, expected), target.dtype, target.device)
        return cls(config, weights, target)

    def with_config(self, **changes: object) -> Drafter:
        """The same drafter (weights shared) with other values in force."""
        other = copy(self)
        other.config = replace(self.config, **changes)  # type: ignore[arg-type]
        return other

    def new_cache(self, rows: int) -> KVCache:
        """An empty cache with room for `rows` tokens of context and block."""
        return KVCache(self.config.stack, rows, self._target.dtype, self._target.device)

    def check_features(self, features: Tensor) -> None:
        """Raises DraftShapeError when features [n, layers × hidden] do not fit `fc`."""
        want = self.fc.columns
        if features.shape[-1] != want:
            hidden, layers = self.config.stack.hidden, len(self.config.target_layer_ids)
            raise DraftShapeError(
                "draft.target_hidden",
                list(features.shape),
                [None, want],
                f"fc takes {layers} layers × {hidden} = {want}, and {features.shape[-1] / hidden:g} arrived",
            )

    def read(self, features: Tensor, cache: KVCache) -> None:
        """Commit n tokens of context: features [n, layers × hidden] of the tokens that follow the cache's rows.

        Raises DraftShapeError when they do not fit `fc`.
        """
        stack = self.config.stack
        start, end = cache.length, cache.length + len(features)
        try:
            fused = self.fc(features)
        except RuntimeError:
            self.check_features(features)
            raise
        cache.reserve(end)
        kv = self.context_kv(self.hidden_norm(fused))
        kv = kv.view(end - start, stack.layers, 2, stack.kv_heads, stack.head_dim)
        k, v = kv.permute(2, 1, 0, 3, 4).unbind(0)  # [layers, n, kv_heads, head_dim] each
        k = F.rms_norm(k, (stack.head_dim,), None, stack.norm_eps) * self.context_k_norm[:, None, None]
        k = rotate(k, *self.rope.keys(range(start, end)))
        cache.data[:, : stack.kv_heads, start:end] = k.transpose(1, 2)
        cache.data[:, stack.kv_heads :, start:end] = v.transpose(1, 2)
        cache.length = end

    def draft(self, anchor: int, rows: int, cache: KVCache) -> Tensor:
        """Hidden states [rows - 1, hidden] of the drafted positions, depth 1 first, after the final norm.

        anchor: id of the last token of the text, at position cache.length; rows: of the block, the anchor included.
        Every row sees the whole context and the whole block. The block's K and V stay scratch.
        """
        stack = self.config.stack
        start = cache.length
        cache.reserve(start + rows)
        rope = self.rope.all(range(start, start + rows))
        x = self._target.embed([anchor] + [self.config.mask_token_id] * (rows - 1))
        for layer, kv in zip(self.layers, cache.data.unbind(), strict=True):
            x = run_layer(layer, stack, x, rope, kv, start, None)
        return self.norm(x[1:])

    def logits(self, hidden: Tensor, vocab: int | None = None) -> Tensor:
        """[D, V] logits of drafted positions, through the target's head; vocab: of the ids below it only."""
        if vocab is None:
            return self._target.head(hidden)
        if vocab not in self._heads:
            self._heads[vocab] = self._target.head_of(vocab)
        return self._heads[vocab](hidden)
