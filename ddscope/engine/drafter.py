"""The DFlash drafter: a small block-parallel model whose context is the target's hidden states.

One pass fills a whole block: row 0 carries the anchor (the last token of the text), the others the mask token; row i
predicts the token at its own position. Keys and values of the context come from fused target features, so the drafter
never reads the text itself. Layout of the checkpoint: z-lab's. Source: DFlash, arXiv 2602.06036.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import DrafterConfig, read_drafter_config
from ddscope.engine.errors import DraftShapeError
from ddscope.engine.layers import KVCache, Layer, Linear, Norm, RopeTable, make_layers, rotate, run_layer
from ddscope.engine.target import Target
from ddscope.engine.weights import cast, layer_shapes, load_tensors


@dataclass(frozen=True, slots=True)
class _Context:
    """K and V of the context for all layers at once: the stacked rows of every layer's k_proj and v_proj."""

    kv: Linear
    k_norms: Tensor  # [layers, 1, 1, head_dim]


class Drafter:
    """Weights and forward pass; `config` is the configuration in force (a fault may change it, the weights stay)."""

    def __init__(self, config: DrafterConfig, tensors: Mapping[str, Tensor], target: Target) -> None:
        stack, dtype, device = config.stack, target.embedding.dtype, target.embedding.device
        self.config = config
        self.embedding = target.embedding
        self.head = target.head
        self.fc = Linear(cast(tensors["fc.weight"], dtype, device))
        self.hidden_norm = Norm(cast(tensors["hidden_norm.weight"], dtype, device), stack.norm_eps)
        self.norm = Norm(cast(tensors["norm.weight"], dtype, device), stack.norm_eps)
        self.layers: list[Layer] = make_layers(stack, tensors, "", dtype, device)
        self.rope = RopeTable(stack, dtype, device)
        wide = stack.heads * stack.head_dim
        biases = [layer.qkv.bias[wide:] for layer in self.layers if layer.qkv.bias is not None]
        self._context = _Context(
            Linear(
                torch.cat([layer.qkv.weight[wide:] for layer in self.layers]),
                torch.cat(biases) if biases else None,
            ),
            torch.stack([layer.k_norm.weight for layer in self.layers if layer.k_norm is not None])[:, None, None],
        )

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
        return cls(config, load_tensors(folder, expected), target)

    def with_config(self, **changes: object) -> Drafter:
        """The same drafter (weights shared) with other values in force."""
        other = object.__new__(Drafter)
        other.__dict__.update(self.__dict__)
        other.config = replace(self.config, **changes)  # type: ignore[arg-type]
        return other

    def new_cache(self, rows: int) -> KVCache:
        """An empty cache with room for `rows` tokens of context and block."""
        return KVCache(self.config.stack, rows, self.embedding.dtype, self.embedding.device)

    def check_features(self, features: Tensor) -> None:
        """Raises DraftShapeError when features [n, layers × hidden] do not fit `fc`."""
        want = self.fc.weight.shape[1]
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
        kv = self._context.kv(self.hidden_norm(fused)).view(
            end - start, stack.layers, 2, stack.kv_heads, stack.head_dim
        )
        k, v = kv.permute(2, 1, 0, 3, 4).unbind(0)  # [layers, n, kv_heads, head_dim] each
        k = F.rms_norm(k, (stack.head_dim,), None, stack.norm_eps) * self._context.k_norms
        cos, sin = self.rope.at(list(range(start, end)))
        cache.data[:, 0, :, start:end] = rotate(k, cos, sin).transpose(1, 2)
        cache.data[:, 1, :, start:end] = v.transpose(1, 2)
        cache.length = end

    def draft(self, anchor: int, rows: int, cache: KVCache) -> Tensor:
        """Hidden states [rows - 1, hidden] of the drafted positions, depth 1 first, after the final norm.

        anchor: id of the last token of the text, at position cache.length; rows: of the block, the anchor included.
        Every row sees the whole context and the whole block. The block's K and V stay scratch.
        """
        stack = self.config.stack
        start = cache.length
        cache.reserve(start + rows)
        rope = self.rope.at(list(range(start, start + rows)))
        ids = torch.tensor([anchor] + [self.config.mask_token_id] * (rows - 1), device=self.embedding.device)
        x = F.embedding(ids, self.embedding)
        for number, layer in enumerate(self.layers):
            x = run_layer(layer, stack, x, rope, cache.data[number], start, None)
        return self.norm(x[1:])

    def logits(self, hidden: Tensor) -> Tensor:
        """[D, V] logits of drafted positions, through the target's head."""
        return self.head(hidden)
