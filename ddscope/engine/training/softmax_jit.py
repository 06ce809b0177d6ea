"""Softmax of long rows in place, with their sums and likeliest tokens, as a Triton kernel: one program a row."""

# What is compiled is not Python, and its arguments have no Python types.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _softmax(x_ptr, best_ptr, logz_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Twice over the row: what the first pass read is still in the cache for the second."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * SIZE
    column = tl.arange(0, BLOCK)
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, SIZE, BLOCK):
        x = tl.load(x_ptr + first + column, mask=first + column < SIZE, other=float("-inf")).to(tl.float32)
        higher = x > peak
        place = tl.where(higher, first + column, place)
        raised = tl.where(higher, x, peak)
        safe = tl.where(raised == float("-inf"), 0.0, raised)
        total = total * tl.exp(peak - safe) + tl.exp(x - safe)
        peak = raised
    top = tl.max(peak, axis=0)
    best = tl.min(tl.where(peak == top, place, SIZE), axis=0)
    logz = top + tl.log(tl.sum(total * tl.exp(peak - top), axis=0))
    for first in range(0, SIZE, BLOCK):
        inside = first + column < SIZE
        x = tl.load(x_ptr + first + column, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(x_ptr + first + column, tl.exp(x - logz).to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(best_ptr + row, best.to(tl.int64))
    tl.store(logz_ptr + row, logz)


def softmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [M, V], contiguous and finite, becomes its softmax; argmax (the lowest of equals) and logsumexp, [M] each."""
    best = torch.empty(len(x), dtype=torch.int64, device=x.device)
    logz = torch.empty(len(x), dtype=torch.float32, device=x.device)
    _softmax[(len(x),)](x, best, logz, x.shape[1], min(_BLOCK, triton.next_power_of_2(x.shape[1])), num_warps=8)
    return best, logz
