"""Top-k, logsumexp and entropy of long rows in one pass: every program selects from a slice, a second launch merges.

A selection is a binary search for the k-th largest value, bit by bit over integers that are ordered as the floats are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two

_LEAST = tl.constexpr(-(2**31))
_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def _ordinals(x, SHIFT: tl.constexpr):
    """int32 that are ordered as the float32 x without NaN are; the lowest SHIFT bits carry nothing and are dropped."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _selected(order, k, SHIFT: tl.constexpr):
    """[m, n] → which are the k largest of each row, the leftmost of equals first, and their places from the left.

    Entries of _LEAST never are. n < 2^15: what is above the k-th and what equals it is counted in one scan.
    """
    count = tl.sum((order >= 0).to(tl.int32), axis=1)
    cut = tl.where(count >= k, 0, _LEAST >> SHIFT)
    for step in range(31 - SHIFT):
        higher = cut + (1 << (30 - SHIFT - step))
        count = tl.sum((order >= higher[:, None]).to(tl.int32), axis=1)
        cut = tl.where(count >= k, higher, cut)
    above = order > cut[:, None]
    equal = (order == cut[:, None]) & (order > (_LEAST >> SHIFT))
    room = k - tl.sum(above.to(tl.int32), axis=1)
    passed = tl.cumsum(tl.where(above, 1, tl.where(equal, 1 << 16, 0)), axis=1)
    equals = passed >> 16
    chosen = above | (equal & (equals <= room[:, None]))
    return chosen, (passed & 0xFFFF) + tl.minimum(equals, room[:, None]) - 1


@triton.jit
def _keep_slice(x, valid, ids, rows, part, values_ptr, ids_ptr, stats_ptr, n_rows, parts, k, K2: tl.constexpr,
                SHIFT: tl.constexpr):  # fmt: skip
    """Store the k best of a tile x [m, n] of float32 logits, and its part of the row's sums."""
    finite = (x == x) & (tl.abs(x) < float("inf")) & valid
    nonfinite = tl.sum((valid & (finite == 0)).to(tl.int32), axis=1)
    x = tl.where(finite, x, float("-inf"))
    peak = tl.max(x, axis=1)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    away = tl.where(finite, x - shift[:, None], 0.0)
    weight = tl.where(finite, tl.exp(away), 0.0)
    here = rows * parts + part
    live = rows < n_rows
    stats = stats_ptr + here * 4
    tl.store(stats, peak, mask=live)
    tl.store(stats + 1, tl.sum(weight, axis=1), mask=live)
    tl.store(stats + 2, tl.sum(weight * away, axis=1), mask=live)
    tl.store(stats + 3, nonfinite.to(tl.float32), mask=live)

    order = tl.where(valid, _ordinals(x, SHIFT), _LEAST >> SHIFT)
    chosen, place = _selected(order, k, SHIFT)
    at = here[:, None] * K2 + place
    tl.store(values_ptr + at, x, mask=chosen & live[:, None])
    tl.store(ids_ptr + at, ids + tl.zeros_like(place), mask=chosen & live[:, None])
    # The places that a short slice leaves free.
    slots = tl.arange(0, K2)[None, :]
    free = (slots >= tl.sum(chosen.to(tl.int32), axis=1)[:, None]) & live[:, None]
    empty = here[:, None] * K2 + slots
    tl.store(values_ptr + empty, tl.full(empty.shape, float("-inf"), tl.float32), mask=free)
    tl.store(ids_ptr + empty, tl.full(empty.shape, _NO_ID, tl.int32), mask=free)


@triton.jit
def _slices(x_ptr, values_ptr, ids_ptr, stats_ptr, n_rows, size, parts, k, stride, BLOCK_M: tl.constexpr,
            BLOCK: tl.constexpr, K2: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """BLOCK_M rows and one slice of BLOCK logits a program."""
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ids = (part * BLOCK + tl.arange(0, BLOCK))[None, :]
    valid = (ids < size) & (rows < n_rows)[:, None]
    x = tl.load(x_ptr + rows[:, None].to(tl.int64) * stride + ids, mask=valid, other=0.0).to(tl.float32)
    _keep_slice(x, valid, ids, rows, part, values_ptr, ids_ptr, stats_ptr, n_rows, parts, k, K2, SHIFT)


@triton.jit
def _head_slices(x_ptr, head_ptr, values_ptr, ids_ptr, stats_ptr, n_rows, size, parts, k, stride, head_stride,
                 WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, BLOCK_H: tl.constexpr,
                 K2: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """BLOCK_M rows and BLOCK tokens of the vocabulary a program; the product lives in registers only."""
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    for start in range(0, WIDTH, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        x = tl.load(x_ptr + rows[:, None].to(tl.int64) * stride + h[None, :],
                    mask=(rows < n_rows)[:, None] & (h < WIDTH)[None, :], other=0.0)  # fmt: skip
        head = tl.load(head_ptr + ids[None, :].to(tl.int64) * head_stride + h[:, None],
                       mask=(ids < size)[None, :] & (h < WIDTH)[:, None], other=0.0)  # fmt: skip
        if UPCAST:
            x, head = x.to(tl.float32), head.to(tl.float32)
        total = tl.dot(x, head, acc=total, input_precision="ieee")
    valid = (ids < size)[None, :] & (rows < n_rows)[:, None]
    _keep_slice(total, valid, ids[None, :], rows, part, values_ptr, ids_ptr, stats_ptr, n_rows, parts, k, K2, 0)


@triton.jit
def _narrow(values_ptr, ids_ptr, fewer_values_ptr, fewer_ids_ptr, parts, groups, k, PARTS: tl.constexpr,
            K2: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """The k best of PARTS slices of one row a program: what one long slice would have kept."""
    row, group = tl.program_id(0), tl.program_id(1)
    slots = tl.arange(0, PARTS * K2)[None, :]
    held = group * PARTS * K2 + slots < parts * K2
    here = (row * parts + group * PARTS) * K2 + slots
    values = tl.load(values_ptr + here, mask=held, other=float("-inf"))
    ids = tl.load(ids_ptr + here, mask=held, other=_NO_ID)
    chosen, place = _selected(tl.where(ids != _NO_ID, _ordinals(values, SHIFT), _LEAST >> SHIFT), k, SHIFT)
    there = (row * groups + group) * K2
    tl.store(fewer_values_ptr + there + place, values, mask=chosen)
    tl.store(fewer_ids_ptr + there + place, ids, mask=chosen)
    empty = tl.arange(0, K2)
    free = empty >= tl.sum(tl.sum(chosen.to(tl.int32), axis=1), axis=0)
    tl.store(fewer_values_ptr + there + empty, tl.full((K2,), float("-inf"), tl.float32), mask=free)
    tl.store(fewer_ids_ptr + there + empty, tl.full((K2,), _NO_ID, tl.int32), mask=free)


@triton.jit
def _merge(values_ptr, ids_ptr, stats_ptr, best_values_ptr, best_ids_ptr, out_ids_ptr, out_ptr, logz_ptr, entropy_ptr,
           nonfinite_ptr, parts, groups, k, PARTS2: tl.constexpr, SLOTS: tl.constexpr, K2: tl.constexpr,
           SHIFT: tl.constexpr):  # fmt: skip
    """One row a program: the k best of all slices in order, and the sums."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS2)
    stats = stats_ptr + (row * parts + part) * 4
    there = part < parts
    peaks = tl.load(stats, mask=there, other=float("-inf"))
    peak = tl.max(peaks, axis=0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    none = peaks == float("-inf")
    lower = tl.where(none, 0.0, peaks - shift)
    scale = tl.where(none, 0.0, tl.exp(lower))
    sums = tl.load(stats + 1, mask=there, other=0.0)
    total = tl.sum(sums * scale, axis=0)
    # Σ w (x − peak) of a slice is about its own peak.
    mean = tl.sum((tl.load(stats + 2, mask=there, other=0.0) + sums * lower) * scale, axis=0)
    safe = tl.where(total > 0, total, 1.0)
    logz = tl.where(total > 0, shift + tl.log(safe), float("-inf"))
    tl.store(logz_ptr + row, logz)
    tl.store(entropy_ptr + row, tl.where(total > 0, tl.maximum(tl.log(safe) - mean / safe, 0.0), 0.0))
    tl.store(nonfinite_ptr + row, tl.sum(tl.load(stats + 3, mask=there, other=0.0).to(tl.int32), axis=0))

    slots = tl.arange(0, SLOTS)[None, :]
    held = slots < groups * K2
    values = tl.load(values_ptr + row * groups * K2 + slots, mask=held, other=float("-inf"))
    ids = tl.load(ids_ptr + row * groups * K2 + slots, mask=held, other=_NO_ID)
    order = tl.where(ids != _NO_ID, _ordinals(values, SHIFT), _LEAST >> SHIFT)
    chosen, place = _selected(order, k, SHIFT)
    place += row * K2
    tl.store(best_values_ptr + place, values, mask=chosen)
    tl.store(best_ids_ptr + place, ids, mask=chosen)
    tl.debug_barrier()
    i = tl.arange(0, K2)
    values = tl.load(best_values_ptr + row * K2 + i, mask=i < k, other=float("-inf"))
    ids = tl.load(best_ids_ptr + row * K2 + i, mask=i < k, other=_NO_ID)
    # The other way round once more: a load, since no layout holds both a row and a column.
    beside = tl.load(best_values_ptr + row * K2 + i, mask=i < k, other=float("-inf"))
    beside_ids = tl.load(best_ids_ptr + row * K2 + i, mask=i < k, other=_NO_ID)
    before = (beside[None, :] > values[:, None]) | (
        (beside[None, :] == values[:, None]) & (beside_ids[None, :] < ids[:, None])
    )
    rank = tl.sum(before.to(tl.int32), axis=1)
    candidate = values > float("-inf")
    logprob = tl.where(candidate, tl.minimum(tl.where(candidate, values, 0.0) - logz, 0.0), values)
    tl.store(out_ids_ptr + row * k + rank, ids.to(tl.int64), mask=i < k)
    tl.store(out_ptr + row * k + rank, logprob, mask=i < k)


def launch(
    x: Tensor,
    k: int,
    lm_head: Tensor | None,
    most: int = 4096,
    *,
    block: int | None = None,
    warps: int | None = None,
    merge_warps: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """ids, logprobs, logz, entropy and nonfinite; arguments as of `batched.topk_logprobs`, checked, none empty.

    most: candidates of a row that one program merges; more are narrowed down first.
    block, warps, merge_warps: logits and warps a program of the first pass over logits, warps a program of the merge;
    by the sizes where they are None.
    """
    requests, depths, width = x.shape
    rows = requests * depths
    flat = x.reshape(rows, width)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    size = width if lm_head is None else lm_head.shape[0]
    k2 = power_of_two(k)
    shift = {torch.bfloat16: 16, torch.float16: 13}.get(x.dtype, 0) if lm_head is None else 0
    if block is None:
        block = 2048 if lm_head is None else 256
    block = max(min(power_of_two(size, 32), block), k2)
    parts = triton.cdiv(size, block)
    device = x.device
    values = torch.empty(rows, parts, k2, dtype=torch.float32, device=device)
    ids = torch.empty(rows, parts, k2, dtype=torch.int32, device=device)
    stats = torch.empty(rows, parts, 4, dtype=torch.float32, device=device)
    if lm_head is None:
        block_m = 1 if x.is_cuda else min(16, power_of_two(rows))  # the interpreter pays by the program
        _slices[(triton.cdiv(rows, block_m), parts)](
            flat, values, ids, stats, rows, size, parts, k, flat.stride(0), block_m, block, k2, shift,
            num_warps=warps or max(1, min(4, block // 512)))  # fmt: skip
    else:
        head = lm_head if lm_head.stride(1) == 1 else lm_head.contiguous()
        block_m = min(64, power_of_two(rows, 16))
        upcast = x.dtype == torch.bfloat16 and not x.is_cuda  # the interpreter has no product of bfloat16
        block_h = 64 if x.dtype != torch.float32 else 32
        _head_slices[(triton.cdiv(rows, block_m), parts)](
            flat, head, values, ids, stats, rows, size, parts, k, flat.stride(0), head.stride(0),
            width, block_m, max(block, 16), block_h, k2, upcast, num_warps=8 if block_m > 16 else 4)  # fmt: skip
    best_values = torch.empty(rows, k2, dtype=torch.float32, device=device)
    best_ids = torch.empty(rows, k2, dtype=torch.int32, device=device)
    out_ids = torch.empty(requests, depths, k, dtype=torch.int64, device=device)
    out = torch.empty(requests, depths, k, dtype=torch.float32, device=device)
    logz = torch.empty(requests, depths, dtype=torch.float32, device=device)
    entropy = torch.empty_like(logz)
    nonfinite = torch.empty(requests, depths, dtype=torch.int32, device=device)
    groups, share = parts, max(1, most // k2)
    while groups * k2 > most:
        fewer = triton.cdiv(groups, share)
        fewer_values = torch.empty(rows, fewer, k2, dtype=torch.float32, device=device)
        fewer_ids = torch.empty(rows, fewer, k2, dtype=torch.int32, device=device)
        _narrow[(rows, fewer)](values, ids, fewer_values, fewer_ids, groups, fewer, k, share, k2, shift,
                               num_warps=4)  # fmt: skip
        values, ids, groups = fewer_values, fewer_ids, fewer
    slots = power_of_two(groups * k2)
    merge_warps = merge_warps or max(1, min(8, slots // 256))
    _merge[(rows,)](values, ids, stats, best_values, best_ids, out_ids, out, logz, entropy, nonfinite, parts, groups,
                    k, power_of_two(parts), slots, k2, shift, num_warps=merge_warps,
                    enable_fp_fusion=False)  # fmt: skip  # a fused product of a butterfly sum differs from lane to lane
    return out_ids, out, logz, entropy, nonfinite
