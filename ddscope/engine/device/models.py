"""Target and drafter over R requests × N rows on static caches, from the fused operations of `ddscope_kernels.batched`.

Weights are those of the loaded pair. What a row attends to is said by bits and base positions on the device, so that a
forward of one shape is always the same launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.config import TransformerConfig
from ddscope.engine.drafter import Drafter
from ddscope.engine.layers import Layer, Norm, rope_tables
from ddscope.engine.linear import Linear
from ddscope.engine.target import Target
from ddscope_kernels.batched import tree_attention
from ddscope_kernels.batched.layer import (
    context_into,
    gather_rows,
    linear_add,
    norm_gated_linear,
    norm_linear,
    norm_qkv_into,
    rms_norm,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Where N rows of each of R requests stand, and what they see.

    positions: [R, N] int64.
    base:      [R] int32: row j of request r is row base[r] + j of its cache; everything before is seen by all.
    bits:      [R, N, ⌈N / 32⌉] int32 as of TreeBatch: which of the N a row sees.
    counts:    [R] int32: rows behind counts[r] are padding.
    """

    positions: Tensor
    base: Tensor
    bits: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Matrix:
    """weight [rows, columns] and bias [rows] of a product."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: Linear) -> Matrix:
        """Of a loaded product."""
        return cls(linear.weight, linear.bias)


class Stack:
    """Decoder layers and their cache: [2 · layers, R, kv_heads, S, head_dim], K and V of a layer side by side."""

    def __init__(
        self,
        config: TransformerConfig,
        layers: Sequence[Layer],
        tables: tuple[Tensor, Tensor],
        requests: int,
        rows: int,
        most: int,
        like: Tensor,
    ) -> None:
        """tables: `rope_tables`; rows: S of the cache; most: N of a forward; like: gives dtype and device."""
        self.config, self.tables = config, tables
        pairs = most * config.heads // config.kv_heads
        self._arrivals = like.new_zeros(requests * config.kv_heads * -(-pairs // 16), dtype=torch.int32)
        self.cache = like.new_zeros(2 * config.layers, requests, config.kv_heads, rows, config.head_dim)
        self.layers = [_Layer.of(config, layer) for layer in layers]

    def load(self, request: int, kv: Tensor, rows: int) -> None:
        """Take over the first rows of a cache [layers, 2 kv_heads, S, head_dim] of one sequence."""
        here = kv[:, :, :rows].view(self.config.layers, 2, self.config.kv_heads, rows, self.config.head_dim)
        self.cache[:, request, :, :rows] = here.flatten(0, 1)

    def layer(self, number: int, x: Tensor, rows: Rows) -> Tensor:
        """Layer `number` over x [R · N, hidden]; K and V go into the cache."""
        config, layer = self.config, self.layers[number]
        k, v = self.cache[2 * number], self.cache[2 * number + 1]
        q = norm_qkv_into(
            x,
            layer.input_norm,
            config.norm_eps,
            layer.qkv.weight,
            self.tables,
            rows.positions,
            k,
            v,
            rows.base,
            heads=config.heads,
            bias=layer.qkv.bias,
            qk_norm=layer.qk_norm,
            counts=rows.counts,
        )
        mixed = tree_attention(q, k, v, rows.bits, rows.base, counts=rows.counts, arrivals=self._arrivals)
        x = linear_add(mixed.view(len(x), -1), layer.out.weight, x, layer.out.bias)
        y = norm_gated_linear(x, layer.post_norm, config.norm_eps, layer.gate_up.weight, layer.gate_up.bias)
        return linear_add(y, layer.down.weight, x, layer.down.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Matrix
    out: Matrix
    post_norm: Tensor
    gate_up: Matrix
    down: Matrix
    qk_norm: Tensor | None

    @classmethod
    def of(cls, stack: TransformerConfig, layer: Layer) -> _Layer:
        qk_norm = None
        if layer.qk_norm is not None:
            qk_norm = layer.qk_norm[: stack.heads + stack.kv_heads].contiguous()
        return cls(
            layer.input_norm.weight,
            Matrix.of(layer.qkv),
            Matrix.of(layer.out),
            layer.post_norm.weight,
            Matrix.of(layer.gate_up),
            Matrix.of(layer.down),
            qk_norm,
        )


class DeviceTarget:
    """The target's forward over the nodes of R trees."""

    def __init__(self, target: Target, requests: int, rows: int, most: int, tables: tuple[Tensor, Tensor]) -> None:
        """most: nodes of a tree, the root included. The rest as of Stack."""
        stack = target.config.stack
        self.target, self.config = target, stack
        self.norm = target.norm.weight
        self.head = target.head.weight
        self.embedding = target.embedding.to(target.dtype)
        self.stack = Stack(stack, target.layers, tables, requests, rows, most, self.norm)

    def embed(self, ids: Tensor) -> Tensor:
        """[R · N, hidden] rows of the embedding. ids: [R, N] int64."""
        return gather_rows([self.embedding[None]], ids.reshape(1, -1))[0]

    def forward(self, ids: Tensor, rows: Rows, capture: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Hidden states [R, N, hidden] after the final norm, and those of the captured layers, [R, N, hidden] each.

        ids: [R, N] int64. capture: as of `Target.forward`.
        """
        x = self.embed(ids)
        shape = (*ids.shape, self.config.hidden)
        seen: dict[int, Tensor] = {}
        for number in range(self.config.layers):
            x = self.stack.layer(number, x, rows)
            if number in capture:
                seen[number] = x.view(shape)
        last = rms_norm(x, self.norm, self.config.norm_eps).view(shape)
        seen[self.config.layers - 1] = last
        return last, [seen[layer] for layer in capture]


class DeviceDrafter:
    """The drafter's two forwards: of the target's features into its context, and of a block."""

    def __init__(
        self, drafter: Drafter, target: DeviceTarget, requests: int, rows: int, tables: tuple[Tensor, Tensor]
    ) -> None:
        self.config = drafter.config
        self.fc, self.context_kv = Matrix.of(drafter.fc), Matrix.of(drafter.context_kv)
        self.hidden_norm, self.norm = drafter.hidden_norm.weight, drafter.norm.weight
        self.k_norm = drafter.context_k_norm
        self.target = target
        block = drafter.config.block_size
        self.stack = Stack(drafter.config.stack, drafter.layers, tables, requests, rows, block, self.norm)

    def read(self, captured: list[Tensor], path: Tensor, base: Tensor) -> None:
        """Add the features of accepted nodes to the context.

        captured: as of `DeviceTarget.forward`; path: [R, P] int32 nodes; base: [R] int32 row of the root. All P rows
        are written: those behind a path's end lie behind the context, where the next block comes.
        """
        stack = self.config.stack
        features = gather_rows(captured, path)
        fused = F.linear(features.flatten(0, 1), self.fc.weight, self.fc.bias)
        kv = norm_linear(fused, self.hidden_norm, stack.norm_eps, self.context_kv.weight, self.context_kv.bias)
        kv = kv.view(*path.shape, stack.layers, 2, stack.kv_heads, stack.head_dim)
        k_cache, v_cache = self.stack.cache[0::2], self.stack.cache[1::2]
        context_into(kv, self.stack.tables, base, self.k_norm, stack.norm_eps, k_cache, v_cache)

    def draft(self, ids: Tensor, rows: Rows) -> Tensor:
        """[R, D, hidden] after the final norm, depth 1 first. ids: [R, D + 1] int64, the root and then masks."""
        stack = self.config.stack
        x = self.target.embed(ids)
        for number in range(stack.layers):
            x = self.stack.layer(number, x, rows)
        drafted = x.view(*ids.shape, stack.hidden)[:, 1:]
        return rms_norm(drafted.reshape(-1, stack.hidden), self.norm, stack.norm_eps).view(drafted.shape)


def tables_for(config: TransformerConfig, rows: int, norm: Norm) -> tuple[Tensor, Tensor]:
    """cos and sin of positions below `rows`, float32 on the device of the weights."""
    cos, sin = rope_tables(config, rows)
    device = norm.weight.device
    return cos.to(device, torch.float32), sin.to(device, torch.float32)
