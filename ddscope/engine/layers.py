"""What target and drafter share: RMS norm, rotary positions, attention over a static KV cache, the gated MLP.

One sequence at a time: rows are tokens, there is no batch dimension. On a CPU small operations cost as much as
products, so q, k and v stay one tensor until the cache, and scale and rotation are one multiplication table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import TransformerConfig
from ddscope.engine.linear import Linear


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm over the last dimension."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one pre-norm decoder layer. qkv and gate_up are stacked row-wise, so each is one product.

    qk_norm: [heads + kv_heads, head_dim], the q norm's weight for every q head, then the k norm's; None without them.
    """

    input_norm: Norm
    qkv: Linear
    out: Linear
    post_norm: Norm
    gate_up: Linear
    down: Linear
    qk_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors of a file on their way into a model: where they go and in which dtype the model computes."""

    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    device: torch.device

    def plain(self, name: str) -> Tensor:
        """A tensor as it is."""
        return self.tensors[name].to(device=self.device, dtype=self.dtype).contiguous()

    def norm(self, name: str, eps: float) -> Norm:
        """A norm."""
        return Norm(self.plain(name), eps)

    def linear(self, *names: str) -> Linear:
        """Linear modules of these names (without `.weight`), stacked row-wise."""
        weight = torch.cat([self.tensors[f"{name}.weight"] for name in names])
        biased = f"{names[0]}.bias" in self.tensors
        bias = torch.cat([self.tensors[f"{name}.bias"] for name in names]) if biased else None
        return Linear(weight, bias, self.dtype, self.device)

    def layers(self, stack: TransformerConfig, prefix: str) -> list[Layer]:
        """All layers of a stack, whose tensors are named as in Hugging Face's files (`layer_shapes` says which)."""
        # Packing is most of the time a model takes to load, and releases the interpreter.
        with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
            return list(pool.map(lambda number: self._layer(stack, f"{prefix}layers.{number}."), range(stack.layers)))

    def _layer(self, stack: TransformerConfig, here: str) -> Layer:
        attention, mlp = f"{here}self_attn.", f"{here}mlp."
        qk_norm = None
        if stack.qk_norm:
            q, k = self.plain(f"{attention}q_norm.weight"), self.plain(f"{attention}k_norm.weight")
            qk_norm = torch.stack([q] * stack.heads + [k] * stack.kv_heads)
        return Layer(
            input_norm=self.norm(f"{here}input_layernorm.weight", stack.norm_eps),
            qkv=self.linear(f"{attention}q_proj", f"{attention}k_proj", f"{attention}v_proj"),
            out=self.linear(f"{attention}o_proj"),
            post_norm=self.norm(f"{here}post_attention_layernorm.weight", stack.norm_eps),
            gate_up=self.linear(f"{mlp}gate_proj", f"{mlp}up_proj"),
            down=self.linear(f"{mlp}down_proj"),
            qk_norm=qk_norm,
        )


def rope_tables(stack: TransformerConfig, rows: int) -> tuple[Tensor, Tensor]:
    """cos and sin of positions below `rows`, float64 [rows, head_dim] each: y = x · cos + roll(x, half of it) · sin."""
    frequencies = torch.tensor(stack.rope.inverse_frequencies(stack.head_dim), dtype=torch.float64)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


class Rope:
    """Rotary positions as two tables for q, k and v side by side: y = x · cos + roll(x, head_dim / 2) · sin.

    The halves of head_dim are the pairs (Hugging Face's layout), so sin carries the sign. q's rows also carry the
    attention's scale, and v's are 1 and 0: one multiplication does all of it. Angles are computed in float64.
    """

    def __init__(self, stack: TransformerConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._stack, self._dtype, self._device = stack, dtype, device
        self._cos = self._sin = torch.empty(0, dtype=torch.float64)

    def keys(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tables for k alone, [n, 1, head_dim] each."""
        rows = max(positions) + 1
        if rows > len(self._cos):
            cos, sin = rope_tables(self._stack, max(rows, 2 * len(self._cos), 512))
            self._cos = cos[:, None].to(device=self._device, dtype=self._dtype)
            self._sin = sin[:, None].to(device=self._device, dtype=self._dtype)
        index = torch.tensor(positions, device=self._device)
        return self._cos[index], self._sin[index]

    def all(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tables for q, k and v, [n, heads + 2 kv_heads, head_dim] each."""
        stack = self._stack
        cos, sin = self.keys(positions)
        scale = stack.head_dim**-0.5
        shape = (len(positions), stack.kv_heads, stack.head_dim)
        wide = (len(positions), stack.heads, stack.head_dim)
        return (
            torch.cat([(cos * scale).expand(wide), cos.expand(shape), torch.ones_like(cos).expand(shape)], dim=1),
            torch.cat([(sin * scale).expand(wide), sin.expand(shape), torch.zeros_like(sin).expand(shape)], dim=1),
        )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, head_dim] under tables of `Rope`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def full_bias(block_bias: Tensor | None, stack: TransformerConfig, length: int) -> Tensor | None:
    """[group × n, length] from [n, n]: the prefix is seen by all, the last n columns are the block; None sees all."""
    if block_bias is None:
        return None
    rows, group = len(block_bias), stack.heads // stack.kv_heads
    bias = block_bias.new_zeros(group, rows, length)
    bias[..., length - rows :] = block_bias
    return bias.view(group * rows, length)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Grouped-query attention of n rows over L rows of a cache.

    q: [n, heads, head_dim], scaled; k, v: [kv_heads, L, head_dim]; heads is a multiple of kv_heads.
    bias: [group × n, L], added to the scores (0 sees, -inf does not), group-major; None sees all.
    Returns [n, heads × head_dim]. Computed in float32 on a CPU, whose small bfloat16 products are slow.
    """
    rows, heads, head_dim = q.shape
    kv_heads = len(k)
    group = heads // kv_heads
    dtype = q.dtype
    if dtype != torch.float32 and q.device.type == "cpu":
        q, k, v = q.float(), k.float(), v.float()
        bias = None if bias is None else bias.float()
    grouped = q.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, group * rows, head_dim)
    turned = k.transpose(1, 2)
    scores = torch.bmm(grouped, turned) if bias is None else torch.baddbmm(bias, grouped, turned)
    mixed = torch.bmm(scores.softmax(dim=-1), v).view(kv_heads, group, rows, head_dim)
    return mixed.permute(2, 0, 1, 3).reshape(rows, heads * head_dim).to(dtype)


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

    rope: `Rope.all` of their positions; kv: [2 kv_heads, S, head_dim], k first, written in place; bias: as in `attend`.
    """
    end = start + len(x)
    qkv = layer.qkv(layer.input_norm(x)).view(len(x), -1, stack.head_dim)
    if layer.qk_norm is not None:
        qk = qkv[:, : len(layer.qk_norm)]
        qk.copy_(F.rms_norm(qk, (stack.head_dim,), None, stack.norm_eps) * layer.qk_norm)
    qkv = rotate(qkv, *rope)
    kv[:, start:end] = qkv[:, stack.heads :].transpose(0, 1)
    seen = kv[:, :end]
    mixed = attend(qkv[:, : stack.heads], seen[: stack.kv_heads], seen[stack.kv_heads :], bias)
    x = x + layer.out(mixed)
    gate, up = layer.gate_up(layer.post_norm(x)).chunk(2, dim=-1)
    return layer.down(F.silu(gate).mul_(up)).add_(x)


class KVCache:
    """Static KV cache of one sequence: data [layers, 2 kv_heads, rows, head_dim], k first; `length` rows are committed.

    Rows behind `length` are scratch: a verify writes its nodes there, a commit keeps some of them.
    """

    def __init__(self, stack: TransformerConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.zeros(stack.layers, 2 * stack.kv_heads, rows, stack.head_dim, dtype=dtype, device=device)
        self.length = 0

    def reserve(self, rows: int) -> None:
        """Room for at least `rows` rows; what is there stays."""
        layers, heads, have, head_dim = self.data.shape
        if rows <= have:
            return
        grown = self.data.new_zeros(layers, heads, max(rows, have * 3 // 2), head_dim)
        grown[:, :, :have] = self.data
        self.data = grown
