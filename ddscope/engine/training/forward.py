"""The target over a batch of sequences: for writing data, for a drafter's inputs, for verifying many trees at once.

The engine's own decoder takes one sequence and is made for a CPU; this one is made for throughput. Same weights, same
mathematics: a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import Rope, TargetConfig, TransformerConfig, read_target_config
from ddscope.engine.target import load_target_tensors
from ddscope_kernels.batched import tree_attention, unpack_bits, use_triton
from ddscope_kernels.batched.attention import HEAD_SIZES


@dataclass(frozen=True, slots=True)
class Passed:
    """last: [R, T, hidden] after the final norm; captured: [R, T, layers × hidden], what was asked for side by side."""

    last: Tensor
    captured: Tensor


_Attend = Callable[[int, Tensor, Tensor], Tensor]
"""From a layer's number, q [R, T, heads, head_dim] and new K and V [R, T, 2 kv_heads, head_dim] to what is read."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function, wanted: bool = True) -> _Function:
    """By torch.compile if wanted, for fixed shapes. A function of tensors alone is compiled once for all layers."""
    if not wanted:
        return function
    made: _Function = torch.compile(function, dynamic=False, fullgraph=True)  # type: ignore[assignment]
    return made


class RopeTable:
    """cos and sin of positions 0 … rows − 1, [rows, head_dim] each, float32."""

    def __init__(self, rope: Rope, head_dim: int, rows: int, device: torch.device) -> None:
        frequencies = torch.tensor(rope.inverse_frequencies(head_dim), dtype=torch.float64)
        angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
        self.cos = torch.cat([angles.cos()] * 2, dim=-1).to(device, torch.float32)
        self.sin = torch.cat([-angles.sin(), angles.sin()], dim=-1).to(device, torch.float32)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Tables of positions [..., T], with a dimension for heads: [..., T, 1, head_dim] each."""
        return self.cos[positions][..., None, :].to(dtype), self.sin[positions][..., None, :].to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """x [..., T, heads, head_dim] under tables of `RopeTable.at`."""
    cos, sin = table
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


class BatchCache:
    """Static KV cache of R sequences: data [layers, R, S, 2 kv_heads, head_dim], k first; it counts no rows."""

    def __init__(self, stack: TransformerConfig, sequences: int, rows: int, like: Tensor) -> None:
        self.data = like.new_zeros(stack.layers, sequences, rows, 2 * stack.kv_heads, stack.head_dim)
        self.sequence = torch.arange(sequences, device=like.device)[:, None]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    out: Tensor
    out_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class BatchTarget:
    """Weights of a target and its forward pass over [R, T] tokens."""

    def __init__(
        self, config: TargetConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        stack = config.stack

        def put(*names: str) -> Tensor:
            return torch.cat([tensors[name] for name in names]).to(device=device, dtype=dtype).contiguous()

        def put_if(*names: str) -> Tensor | None:
            return put(*names) if names[0] in tensors else None

        self.embedding = put("model.embed_tokens.weight")
        self.head = self.embedding if config.tied else put("lm_head.weight")
        self.norm = put("model.norm.weight")
        self.layers = [_layer(stack, f"model.layers.{i}.", put, put_if) for i in range(stack.layers)]
        self._rope: RopeTable | None = None
        self._project, self._finish = _project, _finish

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> BatchTarget:
        """From a folder in Hugging Face's layout. Raises EngineError when it does not fit."""
        config = read_target_config(folder)
        return cls(config, load_target_tensors(folder, config), dtype, device)

    def compile(self) -> BatchTarget:
        """Fuse what lies between products and attention, by torch.compile, for passes of one shape."""
        self._project, self._finish = compiled(_project), compiled(_finish)
        return self

    def rope(self, rows: int) -> RopeTable:
        """Tables for at least `rows` positions, made when first asked for."""
        if self._rope is None or len(self._rope.cos) < rows:
            self._rope = RopeTable(self.config.stack.rope, self.config.stack.head_dim, max(rows, 1024), self.device)
        return self._rope

    def logits(self, last: Tensor) -> Tensor:
        """[..., vocab] from hidden states after the final norm, in the dtype of the weights."""
        return F.linear(last, self.head)

    def read(self, ids: Tensor, capture: Sequence[int] = ()) -> Passed:
        """Plain causal pass over ids [R, T] without a cache; what stands behind a text's end does not reach back."""
        positions = torch.arange(ids.shape[1], device=ids.device)[None]

        def attend(_: int, q: Tensor, kv: Tensor) -> Tensor:
            k, v = kv.transpose(1, 2).chunk(2, dim=1)
            grouped = q.shape[2] != k.shape[1]
            mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, enable_gqa=grouped)
            return mixed.transpose(1, 2)

        return self._run(ids, positions, self.rope(ids.shape[1]), attend, capture)

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: BatchCache,
        bias: Tensor,
        capture: Sequence[int] = (),
    ) -> Passed:
        """T tokens more of each sequence, over the first C rows of its cache.

        ids, positions, slots: [R, T]; K and V of a token are written to row slots[r, t] of the cache.
        bias:                  [R, T, C] added to the scores (0 sees, -inf does not), in the dtype of the weights.
        """
        columns = bias.shape[-1]
        heads, kv_heads = self.config.stack.heads, self.config.stack.kv_heads
        group = heads // kv_heads
        sequences, rows = ids.shape
        # Heads that share K and V become rows of one query: no copy of the cache, with any attention kernel.
        wide = bias[:, None, None].expand(-1, -1, group, -1, -1).reshape(sequences, 1, group * rows, columns)

        def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
            here = cache.data[layer]
            here[cache.sequence, slots] = kv
            k, v = here[:, :columns].transpose(1, 2).chunk(2, dim=1)
            q = q.view(sequences, rows, kv_heads, group, -1).permute(0, 2, 3, 1, 4)
            q = q.reshape(sequences, kv_heads, group * rows, -1)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=wide)
            mixed = mixed.view(sequences, kv_heads, group, rows, -1)
            return mixed.permute(0, 3, 1, 2, 4).reshape(sequences, rows, heads, -1)

        return self._run(ids, positions, self.rope(cache.data.shape[2]), attend, capture)

    @property
    def masks(self) -> bool:
        """Whether `token` needs masks over an extent: everywhere but where the attention kernel runs."""
        return not use_triton(self.embedding) or self.config.stack.head_dim not in HEAD_SIZES

    def token(self, ids: Tensor, places: Tensor, cache: BatchCache, live: Tensor, extent: int) -> Tensor:
        """One token more of each sequence: hidden states [R, hidden] after the final norm.

        ids, places: [R]; token r stands at place r of its text, and sees what its cache holds before.
        live:        [R] rows that matter; the others' hidden states mean nothing, and on a CUDA device cost less.
        extent:      columns of the cache that hold all texts, which count where there are `masks`.
        """
        if self.masks:
            sees = torch.arange(extent, device=ids.device) <= places[:, None, None]
            bias = torch.zeros(sees.shape, dtype=self.dtype, device=ids.device).masked_fill_(~sees, -torch.inf)
            return self.step(ids[:, None], places[:, None], places[:, None], cache, bias).last[:, 0]
        before = torch.where(live, places, 0)
        itself = torch.ones(len(ids), 1, 1, dtype=torch.int32, device=ids.device)
        nothing = torch.zeros(len(ids), dtype=torch.int32, device=ids.device)
        attend = self._over_cache(cache, places[:, None], before, itself, nothing)
        return self._run(ids[:, None], places[:, None], self.rope(cache.data.shape[2]), attend, ()).last[:, 0]

    def verify(
        self,
        tokens: Tensor,
        positions: Tensor,
        base: Tensor,
        bits: Tensor,
        counts: Tensor,
        cache: BatchCache,
        capture: Sequence[int] = (),
    ) -> Passed:
        """The nodes of each sequence's tree, root first, over the cache; K and V of node j go to row base + j.

        tokens, positions: [R, N]; base: [R] rows before the root; bits: [R, N, …] and counts: [R] as of TreeBatch.
        """
        nodes = torch.arange(tokens.shape[1], device=tokens.device)
        slots = base[:, None] + nodes
        if not self.masks:
            attend = self._over_cache(cache, slots, base, bits, counts)
            return self._run(tokens, positions, self.rope(cache.data.shape[2]), attend, capture)
        node = torch.arange(cache.data.shape[2], device=tokens.device) - base[:, None]
        inside = ((node >= 0) & (node < len(nodes)))[:, None]
        at = node.clamp(0, len(nodes) - 1)[:, None].expand(-1, len(nodes), -1)
        sees = (node < 0)[:, None] | (unpack_bits(bits).gather(2, at) & inside)
        bias = torch.zeros(sees.shape, dtype=self.dtype, device=tokens.device).masked_fill_(~sees, -torch.inf)
        return self.step(tokens, positions, slots, cache, bias, capture)

    def _over_cache(self, cache: BatchCache, slots: Tensor, base: Tensor, bits: Tensor, counts: Tensor) -> _Attend:
        """Writes K and V to rows `slots` of the cache, and reads by the kernel what nodes see."""
        kv_heads, before = self.config.stack.kv_heads, base.to(torch.int32)

        def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
            here = cache.data[layer]
            here[cache.sequence, slots] = kv
            k, v = here[:, :, :kv_heads].transpose(1, 2), here[:, :, kv_heads:].transpose(1, 2)
            return tree_attention(q, k, v, bits, before, counts=counts)

        return attend

    def _run(
        self,
        ids: Tensor,
        positions: Tensor,
        rope: RopeTable,
        attend: _Attend,
        capture: Sequence[int],
    ) -> Passed:
        stack = self.config.stack
        table = rope.at(positions, self.dtype)
        x = F.embedding(ids, self.embedding)
        wanted = frozenset(capture)
        seen: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            weights = (layer.input_norm, layer.qkv, layer.qkv_bias, layer.qk_norm)
            q, kv = self._project(x, weights, table, stack.heads, stack.kv_heads, stack.head_dim, stack.norm_eps)
            rest = (layer.out, layer.out_bias, layer.post_norm, layer.gate_up, layer.gate_up_bias)
            x = self._finish(x, attend(number, q, kv), rest, layer.down, layer.down_bias, stack.norm_eps)
            if number in wanted:
                seen[number] = x
        last = F.rms_norm(x, (stack.hidden,), self.norm, stack.norm_eps)
        seen[len(self.layers) - 1] = last  # as in Hugging Face's list of hidden states
        captured = torch.cat([seen[layer] for layer in capture], dim=-1) if capture else last[..., :0]
        return Passed(last, captured)


def _project(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    table: tuple[Tensor, Tensor],
    heads: int,
    kv_heads: int,
    size: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """q [R, T, heads, size], and K and V [R, T, 2 kv_heads, size], q and k rotated."""
    norm, weight, bias, qk_norm = weights
    y = F.rms_norm(x, norm.shape, norm, eps)
    qkv = F.linear(y, weight, bias).view(*x.shape[:-1], -1, size)
    qk, v = torch.split(qkv, [heads + kv_heads, kv_heads], dim=-2)
    if qk_norm is not None:
        qk = F.rms_norm(qk, (size,), None, eps) * qk_norm
    q, k = torch.split(rotate(qk, table), [heads, kv_heads], dim=-2)
    return q, torch.cat([k, v], dim=-2)


def _finish(
    x: Tensor,
    mixed: Tensor,
    weights: tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None],
    down: Tensor,
    down_bias: Tensor | None,
    eps: float,
) -> Tensor:
    """The rest of a layer, after attention."""
    out, out_bias, norm, gate_up, gate_up_bias = weights
    x = x + F.linear(mixed.flatten(-2), out, out_bias)
    y = F.rms_norm(x, norm.shape, norm, eps)
    gate, up = F.linear(y, gate_up, gate_up_bias).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down, down_bias)


def _layer(
    stack: TransformerConfig, here: str, put: Callable[..., Tensor], put_if: Callable[..., Tensor | None]
) -> _Layer:
    attention, mlp = f"{here}self_attn.", f"{here}mlp."
    qk_norm = None
    if stack.qk_norm:
        q_norm, k_norm = put(f"{attention}q_norm.weight"), put(f"{attention}k_norm.weight")
        qk_norm = torch.cat([q_norm.expand(stack.heads, -1), k_norm.expand(stack.kv_heads, -1)])
    qkv = [f"{attention}{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}{part}_proj" for part in ("gate", "up")]
    return _Layer(
        input_norm=put(f"{here}input_layernorm.weight"),
        qkv=put(*(f"{name}.weight" for name in qkv)),
        qkv_bias=put_if(*(f"{name}.bias" for name in qkv)),
        qk_norm=qk_norm,
        out=put(f"{attention}o_proj.weight"),
        out_bias=put_if(f"{attention}o_proj.bias"),
        post_norm=put(f"{here}post_attention_layernorm.weight"),
        gate_up=put(*(f"{name}.weight" for name in gate_up)),
        gate_up_bias=put_if(*(f"{name}.bias" for name in gate_up)),
        down=put(f"{mlp}down_proj.weight"),
        down_bias=put_if(f"{mlp}down_proj.bias"),
    )
