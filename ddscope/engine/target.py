"""The target: a decoder of the Llama or Qwen3 family over a static KV cache, with an explicit mask inside the block.

One forward takes the tokens of a step (a prompt, a tree, one token), attends to everything committed before them, and
returns logits and the hidden states that a drafter wants. It knows nothing of trees: positions and mask are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import TargetConfig, read_target_config
from ddscope.engine.layers import KVCache, Norm, Rope, Weights, full_bias, run_layer
from ddscope.engine.linear import Linear
from ddscope.engine.weights import layer_shapes, load_tensors

PREFILL_ROWS = 512
"""Rows of one forward at most while a prompt is read: bounds the memory of its attention scores."""


@dataclass(frozen=True, slots=True)
class Forward:
    """logits: [m, V] of the rows asked for; hidden: one [n, hidden] a captured layer, in the order asked for."""

    logits: Tensor
    hidden: list[Tensor]


def load_target_tensors(folder: Path, config: TargetConfig) -> dict[str, Tensor]:
    """All tensors of a target's folder, as in the file. Raises EngineError when they do not fit its configuration."""
    stack = config.stack
    expected = {
        "model.embed_tokens.weight": (stack.vocab, stack.hidden),
        "model.norm.weight": (stack.hidden,),
        **layer_shapes(stack, "model."),
    }
    if not config.tied:
        expected["lm_head.weight"] = (stack.vocab, stack.hidden)
    buffers = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(stack.layers)]
    return load_tensors(folder, expected, ignore=["lm_head.weight", *buffers])


class Target:
    """Weights and forward pass. It holds no state of a sequence: that is the cache."""

    def __init__(self, config: TargetConfig, weights: Weights) -> None:
        stack = config.stack
        self.config = config
        self.dtype, self.device = weights.dtype, weights.device
        self.layers = weights.layers(stack, "model.")
        self.norm = weights.norm("model.norm.weight", stack.norm_eps)
        self._head_weight = weights.tensors["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
        self.head = self.head_of(stack.vocab)
        self.rope = Rope(stack, self.dtype, self.device)
        # [vocab, hidden] as in the file: rows are looked up, never multiplied, and bfloat16 to float32 is exact.
        self.embedding = weights.tensors["model.embed_tokens.weight"].to(self.device)

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> Target:
        """From a folder in Hugging Face's layout. Raises EngineError when it does not fit."""
        config = read_target_config(folder)
        return cls(config, Weights(load_target_tensors(folder, config), dtype, device))

    def embed(self, ids: Sequence[int]) -> Tensor:
        """[n, hidden] rows of the embedding."""
        return F.embedding(torch.tensor(ids, device=self.device), self.embedding).to(self.dtype)

    def head_of(self, vocab: int) -> Linear:
        """The head for the ids below `vocab`."""
        return Linear(self._head_weight[:vocab], None, self.dtype, self.device)

    def with_norm(self, weight: Tensor) -> Target:
        """The same target (weights shared) with another final norm."""
        other = copy(self)
        other.norm = Norm(weight, self.norm.eps)
        return other

    def new_cache(self, rows: int) -> KVCache:
        """An empty cache with room for `rows` tokens."""
        return KVCache(self.config.stack, rows, self.dtype, self.device)

    def forward(
        self,
        ids: Sequence[int],
        positions: list[int],
        cache: KVCache,
        block_bias: Tensor | None,
        capture: Sequence[int] = (),
        logit_rows: slice = slice(None),
    ) -> Forward:
        """One pass over n tokens that follow the committed rows of the cache.

        ids, positions: n ≥ 1. Their K and V are written behind cache.length, which does NOT move: that is a commit.
        block_bias:     [n, n] added to the attention scores among the n tokens (0 or -inf); None: all see all.
        capture:        0-based layers whose output is wanted; the last layer's is taken after the final norm, as in
                        Hugging Face's list of hidden states, entry layer + 1.
        logit_rows:     rows for which logits are computed.
        """
        stack = self.config.stack
        start = cache.length
        end = start + len(ids)
        cache.reserve(end)
        rope = self.rope.all(positions)
        bias = full_bias(block_bias, stack, end)
        x = self.embed(ids)
        wanted = set(capture)
        seen: dict[int, Tensor] = {}
        for number, (layer, kv) in enumerate(zip(self.layers, cache.data.unbind(), strict=True)):
            x = run_layer(layer, stack, x, rope, kv, start, bias)
            if number in wanted:
                seen[number] = x
        last = self.norm(x)
        if len(self.layers) - 1 in wanted:
            seen[len(self.layers) - 1] = last
        return Forward(self.head(last[logit_rows]), [seen[layer] for layer in capture])

    def read(self, ids: Sequence[int], cache: KVCache, capture: Sequence[int] = (), keep: int = 1) -> Forward:
        """Plain causal pass over ids, committed to the cache: a prompt, or a text to be checked.

        keep: logits of the last `keep` rows come back. Long texts go through in pieces; hidden states cover all of ids.
        """
        pieces: list[Forward] = []
        for first in range(0, len(ids), PREFILL_ROWS):
            piece = ids[first : first + PREFILL_ROWS]
            rows = slice(max(0, len(ids) - keep - first), None)
            at = cache.length
            bias = self.causal_bias(len(piece)) if len(piece) > 1 else None
            pieces.append(self.forward(piece, list(range(at, at + len(piece))), cache, bias, capture, rows))
            cache.length += len(piece)
        hidden = [torch.cat(parts) for parts in zip(*(piece.hidden for piece in pieces), strict=True)]
        return Forward(torch.cat([piece.logits for piece in pieces]), hidden)

    def bias(self, visible: Tensor) -> Tensor:
        """The additive form of a [n, n] bool mask, as forward takes it."""
        zeros = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
        return zeros.masked_fill_(~visible.to(zeros.device), -torch.inf)

    def causal_bias(self, count: int) -> Tensor:
        """The additive plain causal mask of `count` rows."""
        return self.bias(torch.ones(count, count, dtype=torch.bool).tril_())
