"""Tree attention: a running softmax over slices of a request's rows, and the sum of the slices' parts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two

_LOG2E = 1.4426950408889634


@triton.jit
def _absorb(first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d, length, end,
            scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, N: tl.constexpr, WIDTH: tl.constexpr,
            WORDS: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """The running softmax (highest score, sum, weighted values) after BLOCK_N more rows, from `first` on."""
    row = first + tl.arange(0, BLOCK_N)
    there = row < end
    if PAGE > 0:
        page = tl.load(pages_ptr + request * page_count + row // PAGE, mask=there, other=0).to(tl.int64)
        k_row, v_row = page * k_r + (row % PAGE) * k_s, page * v_r + (row % PAGE) * v_s
    else:
        far = request.to(tl.int64)
        k_row, v_row = far * k_r + row.to(tl.int64) * k_s, far * v_r + row.to(tl.int64) * v_s
    k = tl.load(k_ptr + kv_head * k_h + k_row[None, :] + d[:, None],
                mask=there[None, :] & (d < WIDTH)[:, None], other=0.0)  # fmt: skip
    v = tl.load(v_ptr + kv_head * v_h + v_row[:, None] + d[None, :],
                mask=there[:, None] & (d < WIDTH)[None, :], other=0.0)  # fmt: skip
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    other = row - length  # a node, where it is not negative
    word = tl.load(bits_ptr + (request * N + node)[:, None] * WORDS + (other >> 5)[None, :],
                   mask=live[:, None] & (there & (other >= 0))[None, :], other=0)  # fmt: skip
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
def _attend(q_ptr, k_ptr, v_ptr, bits_ptr, lengths_ptr, counts_ptr, pages_ptr, out_ptr, part_ptr, lse_ptr, scale,
            rows_total, q_r, q_n, q_h, k_r, k_s, k_h, v_r, v_s, v_h, page_count, N: tl.constexpr, HQ: tl.constexpr,
            HKV: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr, WORDS: tl.constexpr, PAGE: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILES: tl.constexpr, SPLITS: tl.constexpr,
            UPCAST: tl.constexpr, INTERPRETED: tl.constexpr):  # fmt: skip
    """BLOCK_M (node, head of the group) pairs of one KV head and one slice of the rows a program."""
    GROUP: tl.constexpr = HQ // HKV
    tile = tl.program_id(0) % TILES
    kv_head = (tl.program_id(0) // TILES) % HKV
    request = tl.program_id(0) // (TILES * HKV)
    part = tl.program_id(1)
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    node, head = pair // GROUP, kv_head * GROUP + pair % GROUP
    live = pair < N * GROUP
    d = tl.arange(0, WIDTH2)
    q = tl.load(q_ptr + request.to(tl.int64) * q_r + (node * q_n + head * q_h)[:, None] + d[None, :],
                mask=live[:, None] & (d < WIDTH)[None, :], other=0.0)  # fmt: skip
    if UPCAST:
        q = q.to(tl.float32)
    length = tl.load(lengths_ptr + request).to(tl.int32)
    end = length + tl.minimum(tl.load(counts_ptr + request).to(tl.int32) + 1, N)
    share = tl.cdiv(tl.cdiv(end, BLOCK_N), SPLITS) * BLOCK_N
    start = part * share
    stop = tl.minimum(start + share, end)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, WIDTH2), tl.float32)
    if INTERPRETED:  # whose range takes no loaded value as a bound
        first = start
        while first < stop:
            peak, total, acc = _absorb(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d, length,
                end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, N, WIDTH, WORDS, PAGE, BLOCK_N,
                UPCAST)  # fmt: skip
            first += BLOCK_N
    else:
        for first in range(start, stop, BLOCK_N):
            peak, total, acc = _absorb(
                first, peak, total, acc, q, k_ptr, v_ptr, bits_ptr, pages_ptr, request, kv_head, node, live, d, length,
                end, scale, k_r, k_s, k_h, v_r, v_s, v_h, page_count, N, WIDTH, WORDS, PAGE, BLOCK_N,
                UPCAST)  # fmt: skip
    value = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (request.to(tl.int64) * N + node) * HQ + head
    if SPLITS == 1:
        tl.store(out_ptr + place[:, None] * WIDTH + d[None, :], value.to(out_ptr.dtype.element_ty),
                 mask=live[:, None] & (d < WIDTH)[None, :])  # fmt: skip
    else:
        place = part * rows_total + place
        tl.store(part_ptr + place[:, None] * WIDTH + d[None, :], value, mask=live[:, None] & (d < WIDTH)[None, :])
        lse = tl.where(total > 0, peak + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + place, lse, mask=live)


@triton.jit
def _combine(part_ptr, lse_ptr, out_ptr, rows_total, WIDTH: tl.constexpr, WIDTH2: tl.constexpr, SPLITS: tl.constexpr,
             ROWS: tl.constexpr):  # fmt: skip
    """ROWS (request, node, head) triples a program: their slices weighed by their sums."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH2)
    live = row < rows_total
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, WIDTH2), tl.float32)
    for part in range(SPLITS):
        place = part * rows_total + row.to(tl.int64)
        lse = tl.load(lse_ptr + place, mask=live, other=float("-inf"))
        value = tl.load(part_ptr + place[:, None] * WIDTH + d[None, :],
                        mask=live[:, None] & (d < WIDTH)[None, :], other=0.0)  # fmt: skip
        higher = tl.maximum(peak, lse)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        keep, weight = tl.exp2(peak - safe), tl.exp2(lse - safe)
        total = total * keep + weight
        acc = acc * keep[:, None] + value * weight[:, None]
        peak = higher
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + row.to(tl.int64)[:, None] * WIDTH + d[None, :], acc.to(out_ptr.dtype.element_ty),
             mask=live[:, None] & (d < WIDTH)[None, :])  # fmt: skip


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
) -> Tensor:
    """Arguments as of `batched.tree_attention`, checked, q not empty."""
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
    pairs = nodes * (heads // kv_heads)
    block_m = min(64, power_of_two(pairs, 16))
    block_n = 64 if width2 * q.element_size() <= 256 else 32
    tiles = triton.cdiv(pairs, block_m)
    programs = requests * kv_heads * tiles
    if splits is None:
        splits = max(1, min(32, 264 // programs, capacity // 128))
    total = requests * nodes * heads
    out = torch.empty(requests, nodes, heads, width, dtype=q.dtype, device=q.device)
    part, lse = out, out
    if splits > 1:
        part = torch.empty(splits, total, width, dtype=torch.float32, device=q.device)
        lse = torch.empty(splits, total, dtype=torch.float32, device=q.device)
    _attend[(programs, splits)](
        q, k, v, bits.contiguous(), lengths, counts, lengths if pages is None else pages, out, part, lse,
        scale * _LOG2E, total, q.stride(0), q.stride(1), q.stride(2), *k_strides, *v_strides,
        0 if pages is None else pages.shape[1], nodes, heads, kv_heads, width, width2, bits.shape[2], page,
        block_m, block_n, tiles, splits, q.dtype == torch.bfloat16 and not q.is_cuda, not q.is_cuda,
        num_warps=8 if width2 > 128 else 4, num_stages=2)  # fmt: skip
    if splits > 1:
        _combine[(triton.cdiv(total, 4),)](part, lse, out, total, width, width2, splits, 4,
                                           num_warps=4)  # fmt: skip
    return out
