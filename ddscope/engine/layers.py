"""What target and drafter share: RMS norm, rotary positions, attention over a static KV cache, the gated MLP.

One sequence at a time: rows are tokens, there is no batch dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import TransformerConfig
from ddscope.engine.weights import cast


@dataclass(frozen=True, slots=True)
class Linear:
    """x [n, in] → [n, out]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm over the last dimension."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one pre-norm decoder layer. qkv and gate_up are stacked row-wise, so each is one product."""

    input_norm: Norm
    qkv: Linear
    out: Linear
    post_norm: Norm
    gate_up: Linear
    down: Linear
    q_norm: Norm | None
    k_norm: Norm | None

    def mlp(self, x: Tensor) -> Tensor:
        """Gated MLP of normed rows x [n, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def make_layers(
    stack: TransformerConfig, tensors: Mapping[str, Tensor], prefix: str, dtype: torch.dtype, device: torch.device
) -> list[Layer]:
    """The layers of a stack from tensors named as in Hugging Face's files (`layer_shapes` says which)."""

    def norm(name: str) -> Norm:
        return Norm(cast(tensors[name], dtype, device), stack.norm_eps)

    def linear(here: str, *names: str) -> Linear:
        weight = torch.cat([tensors[f"{here}{name}.weight"] for name in names])
        biased = f"{here}{names[0]}.bias" in tensors
        bias = torch.cat([tensors[f"{here}{name}.bias"] for name in names]) if biased else None
        return Linear(cast(weight, dtype, device), None if bias is None else cast(bias, dtype, device))

    layers = []
    for number in range(stack.layers):
        here = f"{prefix}layers.{number}."
        attention, mlp = f"{here}self_attn.", f"{here}mlp."
        layers.append(
            Layer(
                input_norm=norm(f"{here}input_layernorm.weight"),
                qkv=linear(attention, "q_proj", "k_proj", "v_proj"),
                out=linear(attention, "o_proj"),
                post_norm=norm(f"{here}post_attention_layernorm.weight"),
                gate_up=linear(mlp, "gate_proj", "up_proj"),
                down=linear(mlp, "down_proj"),
                q_norm=norm(f"{attention}q_norm.weight") if stack.qk_norm else None,
                k_norm=norm(f"{attention}k_norm.weight") if stack.qk_norm else None,
            )
        )
    return layers


class RopeTable:
    """cos and sin of every position, [positions, 1, head_dim] each, computed in float64 and grown when needed."""

    def __init__(self, stack: TransformerConfig, dtype: torch.dtype, device: torch.device) -> None:
        frequencies = torch.tensor(stack.rope.inverse_frequencies(stack.head_dim), dtype=torch.float64)
        self._frequencies = frequencies
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._cos = self._sin = self._like
        self._rows = 0

    def at(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        """cos and sin for these positions, [n, 1, head_dim] each."""
        self._reserve(max(positions, default=0) + 1)
        first, count = positions[0], len(positions)
        if positions == list(range(first, first + count)):
            return self._cos[first : first + count], self._sin[first : first + count]
        index = torch.tensor(positions, device=self._like.device)
        return self._cos[index], self._sin[index]

    def _reserve(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = max(rows, 2 * self._rows, 512)
        angles = torch.arange(self._rows, dtype=torch.float64)[:, None] * self._frequencies
        both = torch.cat([angles, angles], dim=-1)[:, None, :]
        self._cos = both.cos().to(self._like)
        self._sin = both.sin().to(self._like)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [n, heads, head_dim]; the halves of head_dim are the pairs, as in Hugging Face's layout."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, block_bias: Tensor | None) -> Tensor:
    """Grouped-query attention of n rows over a cache of L rows; the last n rows of the cache are the block itself.

    q: [n, heads, head_dim]; k, v: [kv_heads, L, head_dim]; heads is a multiple of kv_heads.
    block_bias: [n, n], added to the scores of the block's columns (0 sees, -inf does not); None sees all.
    The prefix needs no mask: every row sees all of it. Returns [n, heads × head_dim].
    """
    rows, heads, head_dim = q.shape
    kv_heads, length, _ = k.shape
    group = heads // kv_heads
    grouped = (q * head_dim**-0.5).view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    scores = torch.bmm(grouped.reshape(kv_heads, group * rows, head_dim), k.transpose(1, 2))
    if block_bias is not None:
        scores.view(kv_heads, group, rows, length)[..., length - rows :] += block_bias
    mixed = torch.bmm(scores.softmax(dim=-1), v).view(kv_heads, group, rows, head_dim)
    return mixed.permute(2, 0, 1, 3).reshape(rows, heads * head_dim)


def run_layer(
    layer: Layer,
    stack: TransformerConfig,
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    kv: Tensor,
    start: int,
    bias: Tensor | None,
) -> Tensor:
    """One decoder layer over the rows x [n, hidden] that stand at rows start … start + n of the cache.

    rope: cos and sin of their positions; kv: [2, kv_heads, S, head_dim], written in place; bias: as in `attend`.
    """
    rows = len(x)
    end = start + rows
    qkv = layer.qkv(layer.input_norm(x)).view(rows, -1, stack.head_dim)
    q, k, v = qkv.split_with_sizes([stack.heads, stack.kv_heads, stack.kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = layer.q_norm(q), layer.k_norm(k)
    keys, values = kv[0], kv[1]
    keys[:, start:end] = rotate(k, *rope).transpose(0, 1)
    values[:, start:end] = v.transpose(0, 1)
    x = x + layer.out(attend(rotate(q, *rope), keys[:, :end], values[:, :end], bias))
    return x + layer.mlp(layer.post_norm(x))


class KVCache:
    """Static KV cache of one sequence: data [layers, 2, kv_heads, rows, head_dim]; `length` rows are committed.

    Rows behind `length` are scratch: a verify writes its nodes there, a commit keeps some of them.
    """

    def __init__(self, stack: TransformerConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.zeros(stack.layers, 2, stack.kv_heads, rows, stack.head_dim, dtype=dtype, device=device)
        self.length = 0

    def reserve(self, rows: int) -> None:
        """Room for at least `rows` rows; what is there stays."""
        have = self.data.shape[3]
        if rows <= have:
            return
        grown = self.data.new_zeros(*self.data.shape[:3], max(rows, have * 3 // 2), self.data.shape[4])
        grown[:, :, :, :have] = self.data
        self.data = grown
