"""Tree attention: a running softmax over slices of a request's rows, and the sum of the slices' parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ddscope_kernels.batched.backend import power_of_two

_LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work is cut: (node, head) pairs a program, rows a step, slices, and the steps a slice has at least.

    apart: each warp has rows of its own, block_n a step, and the warps meet at the end; else they share every step.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    splits: int
    least: int = 1
    apart: bool = False


@triton.jit
def _absorb(first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d, length, end,
            scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH: tl.constexpr, PAGE: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr, TAIL: tl.constexpr):  # fmt: skip
    """The running softmax (highest score, sum, weighted values) after BLOCK_N more rows, from `first` on.

    Where not TAIL, all of them are rows of the prefix.
    """
    row = first + tl.arange(0, BLOCK_N)
    there = row < end
    if PAGE > 0:
        page = tl.load(pages_ptr + request * page_count + row // PAGE, mask=there, other=0).to(tl.int64)
        k_row, v_row = page * k_r + (row % PAGE) * k_s, page * v_r + (row % PAGE) * v_s
    else:
        far = request.to(tl.int64)
        k_row, v_row = far * k_r + row.to(tl.int64) * k_s, far * v_r + row.to(tl.int64) * v_s
    k_at = k_ptr + kv_head * k_h + k_row[None, :] + d[:, None]
    v_at = v_ptr + kv_head * v_h + v_row[:, None] + d[None, :]
    if TAIL:
        k = tl.load(k_at, mask=there[None, :] & (d < WIDTH)[:, None], other=0.0)
        v = tl.load(v_at, mask=there[:, None] & (d < WIDTH)[None, :], other=0.0)
    else:
        k = tl.load(k_at, mask=(d < WIDTH)[:, None], other=0.0)
        v = tl.load(v_at, mask=(d < WIDTH)[None, :], other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if TAIL:
        other = row - length  # a node, where it is not negative
        word = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
        for w in tl.static_range(BLOCK_N // 32 + 1):  # a load a word of a row, not one a bit
            at = ((first - length) >> 5) + w
            one = tl.load(bits_ptr + (request * nodes + node) * words + at, mask=live & (at >= 0) & (at < words),
                          other=0)  # fmt: skip
            word = tl.where(((other >> 5) == at)[None, :], one[:, None], word)
        sees = (other < 0)[None, :] | (((word >> (other & 31)[None, :]) & 1) != 0)
        scores = tl.where(sees & there[None, :], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    keep = tl.exp2(peak - safe)
    weight = tl.exp2(scores - safe[:, None])
    total = total * keep + tl.sum(weight, axis=1)
    acc = acc * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return higher, total, acc


@triton.jit
def _slices(lengths_ptr, counts_ptr, request, nodes, splits, least, BLOCK_N: tl.constexpr):
    """Rows before the root, all rows, rows of a slice, and how many slices hold any."""
    length = tl.load(lengths_ptr + request).to(tl.int32)
    end = length + tl.minimum(tl.load(counts_ptr + request).to(tl.int32) + 1, nodes)
    steps = tl.cdiv(end, BLOCK_N)
    share = tl.maximum(tl.cdiv(steps, splits), least)
    return length, end, share * BLOCK_N, tl.maximum(tl.cdiv(steps, share), 1)


@triton.jit
def _sum_parts(part_ptr, lse_ptr, place, live, d, used, rows_total, WIDTH: tl.constexpr, WIDTH2: tl.constexpr,
               ROWS: tl.constexpr):  # fmt: skip
    """[ROWS, WIDTH2] values of rows of the output: their slices weighed by their sums, in order, so always the same."""
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, WIDTH2), tl.float32)
    AT_ONCE: tl.constexpr = 4 if ROWS * WIDTH2 <= 2048 else 1  # parts that are on their way
    first = used * 0
    while first < used:
        for j in tl.static_range(AT_ONCE):
            at = (first + j) * rows_total + place
            there = live & (first + j < used)
            # Past the first-level cache, which may hold what a line was before another program wrote it.
            lse = tl.load(lse_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            value = tl.load(part_ptr + at[:, None] * WIDTH + d[None, :], mask=there[:, None] & (d < WIDTH)[None, :],
                            other=0.0, cache_modifier=".cg")  # fmt: skip
            higher = tl.maximum(peak, lse)
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            keep, weight = tl.exp2(peak - safe), tl.exp2(lse - safe)
            total = total * keep + weight
            acc = acc * keep[:, None] + value * weight[:, None]
            peak = higher
        first += AT_ONCE
    return acc / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _read(start, stop, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d, length, end, scale, k_r,
          k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH: tl.constexpr, WIDTH2: tl.constexpr,
          PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr,
          INTERPRETED: tl.constexpr):  # fmt: skip
    """The softmax over the rows of one slice: first those that all nodes see, then those with a mask."""
    whole = tl.maximum(tl.minimum(length // BLOCK_N * BLOCK_N, stop), start)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, WIDTH2), tl.float32)
    if INTERPRETED:  # whose range takes no loaded value as a bound
        first = start
        while first < whole:
            peak, total, acc = _absorb(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d,
                length, end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH, PAGE, BLOCK_M,
                BLOCK_N, UPCAST, False)  # fmt: skip
            first += BLOCK_N
        while first < stop:
            peak, total, acc = _absorb(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d,
                length, end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH, PAGE, BLOCK_M,
                BLOCK_N, UPCAST, True)  # fmt: skip
            first += BLOCK_N
    else:
        for first in range(start, whole, BLOCK_N):
            peak, total, acc = _absorb(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d,
                length, end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH, PAGE, BLOCK_M,
                BLOCK_N, UPCAST, False)  # fmt: skip
        for first in range(whole, stop, BLOCK_N):
            peak, total, acc = _absorb(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d,
                length, end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH, PAGE, BLOCK_M,
                BLOCK_N, UPCAST, True)  # fmt: skip
    return peak, total, acc


@triton.jit
def _finish(peak, total, acc, node, head, live, d, request, part, used, nodes, rows_total, out_ptr, part_ptr, lse_ptr,
            arrivals_ptr, HQ: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr, BLOCK_M: tl.constexpr,
            FORM: tl.constexpr):  # fmt: skip
    """Store what a program read: the result, or the part of it whose sum FORM says who makes."""
    value = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (request.to(tl.int64) * nodes + node) * HQ + head
    cells = live[:, None] & (d < WIDTH)[None, :]
    if FORM != 1 and used == 1:
        tl.store(out_ptr + place[:, None] * WIDTH + d[None, :], value.to(out_ptr.dtype.element_ty), mask=cells)
    elif FORM != 0:
        at = part * rows_total + place
        tl.store(part_ptr + at[:, None] * WIDTH + d[None, :], value, mask=cells)
        lse = tl.where(total > 0, peak + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + at, lse, mask=live)
        if FORM == 2:
            tl.debug_barrier()  # all of the part is written before it is counted
            before = tl.atomic_add(arrivals_ptr + tl.program_id(0), 1, sem="acq_rel")
            if before == used - 1:
                tl.store(arrivals_ptr + tl.program_id(0), 0)
                value = _sum_parts(part_ptr, lse_ptr, place, live, d, used, rows_total, WIDTH, WIDTH2,
                                   BLOCK_M)  # fmt: skip
                tl.store(out_ptr + place[:, None] * WIDTH + d[None, :], value.to(out_ptr.dtype.element_ty),
                         mask=cells)  # fmt: skip


_VARIES = ["rows_total", "page_count", "nodes", "words", "tiles", "splits", "least"]
"""Sizes that no kernel is compiled anew for."""


@triton.jit(do_not_specialize=_VARIES)
def _attend(q_ptr, k_ptr, v_ptr, bits_ptr, lengths_ptr, counts_ptr, pages_ptr, out_ptr, part_ptr, lse_ptr, arrivals_ptr,
            scale, rows_total, q_r, q_n, q_h, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, tiles, splits,
            least, HQ: tl.constexpr, HKV: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr, PAGE: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FORM: tl.constexpr, UPCAST: tl.constexpr,
            INTERPRETED: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BLOCK_M (node, head of the group) pairs of one KV head and one slice of the rows a program.

    FORM: 0 there is one slice, 1 another launch sums the slices, 2 the last program of a tile that is done does.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HQ // HKV
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles) % HKV
    request = tl.program_id(0) // (tiles * HKV)
    part = tl.program_id(1)
    length, end, share, used = _slices(lengths_ptr, counts_ptr, request, nodes, splits, least, BLOCK_N)
    if part < used:
        pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        node, head = pair // GROUP, kv_head * GROUP + pair % GROUP
        live = pair < nodes * GROUP
        d = tl.arange(0, WIDTH2)
        q = tl.load(q_ptr + request.to(tl.int64) * q_r + (node * q_n + head * q_h)[:, None] + d[None, :],
                    mask=live[:, None] & (d < WIDTH)[None, :], other=0.0)  # fmt: skip
        if UPCAST:
            q = q.to(tl.float32)
        start = part * share
        peak, total, acc = _read(
            start, tl.minimum(start + share, end), q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live,
            d, length, end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH, WIDTH2, PAGE,
            BLOCK_M, BLOCK_N, UPCAST, INTERPRETED)  # fmt: skip
        _finish(peak, total, acc, node, head, live, d, request, part, used, nodes, rows_total, out_ptr, part_ptr,
                lse_ptr, arrivals_ptr, HQ, WIDTH, WIDTH2, BLOCK_M, FORM)  # fmt: skip


@triton.jit
def _absorb_apart(first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d,
                  length, end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH: tl.constexpr,
                  PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr,
                  UPCAST: tl.constexpr):  # fmt: skip
    """As `_absorb`, for WARPS times BLOCK_N rows at once, each with its own softmax: [WARPS, BLOCK_M, …]."""
    start = first + tl.arange(0, WARPS) * BLOCK_N
    row = start[:, None] + tl.arange(0, BLOCK_N)[None, :]
    there = row < end
    if PAGE > 0:
        page = tl.load(pages_ptr + request * page_count + row // PAGE, mask=there, other=0).to(tl.int64)
        k_row, v_row = page * k_r + (row % PAGE) * k_s, page * v_r + (row % PAGE) * v_s
    else:
        far = request.to(tl.int64)
        k_row, v_row = far * k_r + row.to(tl.int64) * k_s, far * v_r + row.to(tl.int64) * v_s
    k = tl.load(k_ptr + kv_head * k_h + k_row[:, None, :] + d[None, :, None],
                mask=there[:, None, :] & (d < WIDTH)[None, :, None], other=0.0)  # fmt: skip
    v = tl.load(v_ptr + kv_head * v_h + v_row[:, :, None] + d[None, None, :],
                mask=there[:, :, None] & (d < WIDTH)[None, None, :], other=0.0)  # fmt: skip
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    other = row - length  # a node, where it is not negative
    word = tl.zeros((WARPS, BLOCK_M, BLOCK_N), tl.int32)
    for w in tl.static_range(BLOCK_N // 32 + 1):
        at = ((start - length) >> 5) + w
        one = tl.load(bits_ptr + (request * nodes + node)[None, :] * words + at[:, None],
                      mask=live[None, :] & ((at >= 0) & (at < words))[:, None], other=0)  # fmt: skip
        word = tl.where(((other >> 5) == at[:, None])[:, None, :], one[:, :, None], word)
    sees = (other < 0)[:, None, :] | (((word >> (other & 31)[:, None, :]) & 1) != 0)
    scores = tl.where(sees & there[:, None, :], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=2))
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    keep = tl.exp2(peak - safe)
    weight = tl.exp2(scores - safe[:, :, None])
    total = total * keep + tl.sum(weight, axis=2)
    acc = acc * keep[:, :, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return higher, total, acc


@triton.jit(do_not_specialize=_VARIES)
def _attend_apart(q_ptr, k_ptr, v_ptr, bits_ptr, lengths_ptr, counts_ptr, pages_ptr, out_ptr, part_ptr, lse_ptr,
                  arrivals_ptr, scale, rows_total, q_r, q_n, q_h, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes,
                  words, tiles, splits, least, HQ: tl.constexpr, HKV: tl.constexpr, WIDTH: tl.constexpr,
                  WIDTH2: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                  WARPS: tl.constexpr, FORM: tl.constexpr, UPCAST: tl.constexpr, INTERPRETED: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    """As `_attend`, but every warp reads BLOCK_N rows of its own a step, and they meet at the end only."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HQ // HKV
    STEP: tl.constexpr = WARPS * BLOCK_N
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles) % HKV
    request = tl.program_id(0) // (tiles * HKV)
    part = tl.program_id(1)
    length, end, share, used = _slices(lengths_ptr, counts_ptr, request, nodes, splits, least, STEP)
    if part < used:
        pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        node, head = pair // GROUP, kv_head * GROUP + pair % GROUP
        live = pair < nodes * GROUP
        d = tl.arange(0, WIDTH2)
        q = tl.load(q_ptr + request.to(tl.int64) * q_r + (node * q_n + head * q_h)[:, None] + d[None, :],
                    mask=live[:, None] & (d < WIDTH)[None, :], other=0.0)  # fmt: skip
        if UPCAST:
            q = q.to(tl.float32)
        q = tl.broadcast_to(q[None, :, :], (WARPS, BLOCK_M, WIDTH2))
        peak = tl.full((WARPS, BLOCK_M), float("-inf"), tl.float32)
        total = tl.zeros((WARPS, BLOCK_M), tl.float32)
        acc = tl.zeros((WARPS, BLOCK_M, WIDTH2), tl.float32)
        first = part * share
        stop = tl.minimum(first + share, end)
        while first < stop:
            peak, total, acc = _absorb_apart(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d, length,
                end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, nodes, words, WIDTH, PAGE, BLOCK_M, BLOCK_N,
                WARPS, UPCAST)  # fmt: skip
            first += STEP
        highest = tl.max(peak, axis=0)
        safe = tl.where(highest == float("-inf"), 0.0, highest)
        keep = tl.exp2(peak - safe[None, :])
        total = tl.sum(total * keep, axis=0)
        acc = tl.sum(acc * keep[:, :, None], axis=0)
        _finish(highest, total, acc, node, head, live, d, request, part, used, nodes, rows_total, out_ptr, part_ptr,
                lse_ptr, arrivals_ptr, HQ, WIDTH, WIDTH2, BLOCK_M, FORM)  # fmt: skip


@triton.jit(do_not_specialize=_VARIES[:1] + _VARIES[2:3] + _VARIES[5:])
def _combine(part_ptr, lse_ptr, out_ptr, lengths_ptr, counts_ptr, rows_total, nodes, splits, least, HQ: tl.constexpr,
             WIDTH: tl.constexpr, WIDTH2: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """ROWS (node, head) pairs of a request a program."""
    request = tl.program_id(1)
    pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = pair < nodes * HQ
    d = tl.arange(0, WIDTH2)
    _, _, _, used = _slices(lengths_ptr, counts_ptr, request, nodes, splits, least, BLOCK_N)
    place = request.to(tl.int64) * nodes * HQ + pair
    value = _sum_parts(part_ptr, lse_ptr, place, live, d, used, rows_total, WIDTH, WIDTH2, ROWS)
    tl.store(out_ptr + place[:, None] * WIDTH + d[None, :], value.to(out_ptr.dtype.element_ty),
             mask=live[:, None] & (d < WIDTH)[None, :])  # fmt: skip


def default_tiles(
    requests: int, nodes: int, heads: int, kv_heads: int, width: int, itemsize: int, capacity: int
) -> Tiles:
    """What is used unless something else is asked for: sizes as of `batched.tree_attention`, itemsize in bytes."""
    width2 = power_of_two(width)
    pairs = nodes * (heads // kv_heads)
    if width2 * itemsize <= 128 and requests * pairs <= 256:
        # Measured on an H200 over 200, 600 and 1000 rows: narrow tiles, and few slices that are not short.
        return Tiles(16, 128, 4, 2, max(1, min(4, capacity // 256)), 2)
    block_m = min(64, power_of_two(pairs, 16))
    block_n = 64 if width2 * itemsize <= 256 else 32
    programs = requests * kv_heads * triton.cdiv(pairs, block_m)
    splits = max(1, min(32, 264 // programs, capacity // 128))
    return Tiles(block_m, block_n, 8 if width2 > 128 else 4, 2, splits)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bits: Tensor,
    lengths: Tensor,
    counts: Tensor,
    pages: Tensor | None,
    scale: float,
    splits: int | None,
    arrivals: Tensor | None = None,
    tiles: Tiles | None = None,
    pdl: bool = False,
) -> Tensor:
    """Arguments as of `batched.tree_attention`, checked, q not empty; tiles: how to cut the work.

    pdl: the programs may be launched before the kernel before has ended, and wait for it on the device.
    """
    requests, nodes, heads, width = q.shape
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if pages is None:
        kv_heads, capacity, page = k.shape[1], k.shape[2], 0
        k_strides, v_strides = ((x.stride(0), x.stride(2), x.stride(1)) for x in (k, v))
    else:
        pages = pages.contiguous()
        kv_heads, page = k.shape[2], k.shape[1]
        capacity = pages.shape[1] * page
        k_strides, v_strides = ((x.stride(0), x.stride(1), x.stride(2)) for x in (k, v))
    width2 = power_of_two(width)
    if tiles is None:
        tiles = default_tiles(requests, nodes, heads, kv_heads, width, q.element_size(), capacity)
    splits = tiles.splits if splits is None else splits
    count = triton.cdiv(nodes * (heads // kv_heads), tiles.block_m)
    programs = requests * kv_heads * count
    total = requests * nodes * heads
    out = torch.empty(requests, nodes, heads, width, dtype=q.dtype, device=q.device)
    part, lse, form = out, out, 0
    if splits > 1:
        part = torch.empty(splits, total, width, dtype=torch.float32, device=q.device)
        lse = torch.empty(splits, total, dtype=torch.float32, device=q.device)
        # The last program sums small tiles only: measured, of large ones another launch does it faster.
        here = arrivals is not None and arrivals.numel() >= programs and tiles.block_m * width2 <= 2048
        form = 2 if here else 1
    shape: tuple[int, ...] = (tiles.block_m, tiles.block_n)
    kernel, step = _attend, tiles.block_n
    if tiles.apart:
        shape, kernel, step = (*shape, tiles.warps), _attend_apart, tiles.block_n * tiles.warps
    kernel[(programs, splits)](
        q, k, v, bits.contiguous(), lengths, counts, lengths if pages is None else pages, out, part, lse,
        lengths if arrivals is None else arrivals, scale * _LOG2E, total, q.stride(0), q.stride(1), q.stride(2),
        *k_strides, *v_strides, 0 if pages is None else pages.shape[1], nodes, bits.shape[2], count, splits,
        tiles.least, heads, kv_heads, width, width2, page, *shape, form,
        q.dtype == torch.bfloat16 and not q.is_cuda, not q.is_cuda, pdl and q.is_cuda, num_warps=tiles.warps,
        num_stages=tiles.stages, **({"launch_pdl": True} if pdl and q.is_cuda else {}))  # fmt: skip
    if form == 1:
        rows = 4 if q.is_cuda else 64  # the interpreter pays by the program
        _combine[(triton.cdiv(nodes * heads, rows), requests)](
            part, lse, out, lengths, counts, total, nodes, splits, tiles.least, heads, width, width2, step,
            rows, num_warps=4)  # fmt: skip
    return out
