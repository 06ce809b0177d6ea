"""Accepted rows of all layers in one launch: a program reads all rows of its layer, head and request, then writes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two


@triton.jit
def _compact(cache_ptr, path_ptr, lengths_ptr, base_ptr, slots_ptr, heads, nodes, layer_stride, request_stride,
             head_stride, row_stride, P: tl.constexpr, P2: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr,
             POOLED: tl.constexpr):  # fmt: skip
    """One layer, head and request a program."""
    layer, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    request = tl.program_id(1)
    i = tl.arange(0, P2)
    length = tl.load(lengths_ptr + request)
    wanted = i < tl.minimum(length, P)
    node = tl.load(path_ptr + request * P + i, mask=wanted, other=0)
    moves = wanted & (node != i)
    if tl.max(moves.to(tl.int32), axis=0) > 0:
        if POOLED:
            source = tl.load(slots_ptr + request * nodes + node, mask=moves, other=0).to(tl.int64)
            target = tl.load(slots_ptr + request * nodes + i, mask=moves, other=0).to(tl.int64)
        else:
            base = tl.load(base_ptr + request).to(tl.int64)
            source = base + node
            target = base + i
        column = tl.arange(0, WIDTH2)[None, :]
        here = cache_ptr + (layer.to(tl.int64) * layer_stride + request.to(tl.int64) * request_stride
                            + head.to(tl.int64) * head_stride)  # fmt: skip
        cells = moves[:, None] & (column < WIDTH)
        rows = tl.load(here + source[:, None] * row_stride + column, mask=cells)
        tl.debug_barrier()  # a row may be another's source
        tl.store(here + target[:, None] * row_stride + column, rows, mask=cells)


def launch(cache: Tensor, path: Tensor, lengths: Tensor, base: Tensor | None, slots: Tensor | None) -> None:
    """Arguments as of `batched.compact_kv`, checked, none of them empty."""
    requests, places = path.shape
    layers, width = cache.shape[0], cache.shape[-1]
    if slots is not None:
        heads, strides = cache.shape[2], (cache.stride(0), 0, cache.stride(2), cache.stride(1))
        slots = slots.contiguous()
    else:
        heads, strides = cache.shape[2], (cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3))
    width2, places2 = power_of_two(width), power_of_two(places)
    _compact[(layers * heads, requests)](
        cache, path.contiguous(), lengths, path if base is None else base, path if slots is None else slots, heads,
        0 if slots is None else slots.shape[1], *strides, places, places2, width, width2, slots is not None,
        num_warps=max(1, min(8, places2 * width2 // 512)))  # fmt: skip
