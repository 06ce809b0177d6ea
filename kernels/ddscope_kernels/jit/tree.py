"""Best-first trees, one program a request: a pointer to the next unborn child of every node instead of a heap.

Every round takes the best of those children under the total order (score down, depth up, rank up, parent up) by three
32-bit reductions: the two halves of the float64 score, then depth, rank and parent packed into one integer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.batched.tree import TreeBatch

_LEAST32 = tl.constexpr(-(2**31))
_MOST32 = tl.constexpr(2**31 - 1)
_LEAST64 = tl.constexpr(-(2**63))
_MOST64 = tl.constexpr(2**63 - 1)


@triton.jit
def _drop_unusable(lp_ptr, ids_ptr, clean_ptr, clean_ids_ptr, request, length, D: tl.constexpr, K: tl.constexpr,
                   KEPT: tl.constexpr, ROWS: tl.constexpr, K2: tl.constexpr):  # fmt: skip
    """Copy the first KEPT finite candidates of each depth, -inf behind them; return how many were not finite."""
    dropped = 0
    column = tl.arange(0, K2)[None, :]
    for first in range(0, D, ROWS):
        depth = first + tl.arange(0, ROWS)[:, None]
        inside = (depth < length) & (column < K)
        here = (request * D + depth) * K + column
        x = tl.load(lp_ptr + here, mask=inside, other=0.0)
        token = tl.load(ids_ptr + here, mask=inside, other=0)
        finite = inside & (x == x) & (tl.abs(x) < float("inf"))
        dropped += tl.sum(tl.sum((inside & (finite == 0)).to(tl.int32), axis=1), axis=0)
        place = tl.cumsum(finite.to(tl.int32), axis=1) - 1
        kept = finite & (place < KEPT)
        there = (request * D + depth) * KEPT
        tl.store(clean_ptr + there + place, x, mask=kept)
        tl.store(clean_ids_ptr + there + place, token, mask=kept)
        behind = (column >= tl.sum(finite.to(tl.int32), axis=1)[:, None]) & (column < KEPT) & (depth < D)
        tl.store(clean_ptr + there + column, tl.full((ROWS, K2), float("-inf"), tl.float32), mask=behind)
    return dropped


@triton.jit
def _choose(clean_ptr, order_ptr, scores_ptr, request, length, limit, least, D: tl.constexpr, KEPT: tl.constexpr,
            B: tl.constexpr, B2: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """Grow one tree; store depth, rank and parent of each node packed, and its score; return how many there are."""
    node = tl.arange(0, B2)
    start = tl.load(clean_ptr + request * D * KEPT, mask=length > 0, other=float("-inf")).to(tl.float64)
    score = tl.where(node == 0, 0.0, float("-inf")).to(tl.float64)
    # What the next child of each node would score, as an integer that is ordered as the score is; _LEAST64: no child.
    first = score + start
    raw = first.to(tl.int64, bitcast=True)
    pending = tl.where(first > float("-inf"), raw ^ ((raw >> 63) & _MOST64), _LEAST64)
    tie = tl.full((B2,), 1 << (2 * BITS), tl.int32)
    count = limit * 0
    more = limit > 0
    while more:
        high = (pending >> 32).to(tl.int32)
        low = (pending & 0xFFFFFFFF).to(tl.int32) ^ _LEAST32  # unsigned order
        best_high = tl.max(high, axis=0)
        best_low = tl.max(tl.where(high == best_high, low, _LEAST32), axis=0)
        winner = tl.min(tl.where((high == best_high) & (low == best_low), tie, _MOST32), axis=0)
        key = (best_high.to(tl.int64) << 32) | ((best_low ^ _LEAST32).to(tl.int64) & 0xFFFFFFFF)
        value = (key ^ ((key >> 63) & _MOST64)).to(tl.float64, bitcast=True)
        more = (best_high > _LEAST32) & (value >= least)

        parent = winner & ((1 << BITS) - 1)
        rank = (winner >> BITS) & ((1 << BITS) - 1)
        depth = winner >> (2 * BITS)
        here = clean_ptr + (request * D + depth) * KEPT
        sibling = tl.load(here - KEPT + rank + 1, mask=more & (rank + 1 < KEPT), other=float("-inf"))
        child = tl.load(here, mask=more & (depth < length), other=float("-inf"))
        tl.store(order_ptr + request * B + count, winner, mask=more)
        tl.store(scores_ptr + request * (B + 1) + count + 1, value, mask=more)
        count += more.to(tl.int32)

        born = node == tl.where(more, count, -1)
        touched = born | (node == tl.where(more, parent, -1))
        score = tl.where(born, value, score)
        gain = tl.where(born, child, sibling)
        raw = (score + gain.to(tl.float64)).to(tl.int64, bitcast=True)
        raw = tl.where(gain > float("-inf"), raw ^ ((raw >> 63) & _MOST64), _LEAST64)
        pending = tl.where(touched, raw, pending)
        tie = tl.where(touched, tl.where(born, ((depth + 1) << (2 * BITS)) | count, winner + (1 << BITS)), tie)
        more = more & (count < limit)
    return count


@triton.jit
def _store_ancestors(parents_ptr, bits_ptr, mask_ptr, request, count, D: tl.constexpr, B: tl.constexpr,
                     WORDS: tl.constexpr, WORDS2: tl.constexpr, CHUNK: tl.constexpr,
                     MASK: tl.constexpr):  # fmt: skip
    """Rows of the ancestor closure: climb from every node at once. MASK: 0 no dense mask, 1 bool, 2 additive."""
    word = tl.arange(0, WORDS2)[None, :]
    for first in range(0, B + 1, CHUNK):
        row = first + tl.arange(0, CHUNK)
        real = row <= count
        there = row <= B
        at = row
        bits = tl.where(word == (at >> 5)[:, None], (1 << (at & 31))[:, None], 0)
        dense = mask_ptr + (request * (B + 1) + row.to(tl.int64)) * (B + 1)
        if MASK > 0:
            one = tl.full((CHUNK,), 2 - MASK, tl.float32).to(mask_ptr.dtype.element_ty)
            tl.store(dense + at, one, mask=there)
        for _ in range(D):
            at = tl.load(parents_ptr + request * B + at - 1, mask=real & (at > 0), other=0)
            seen = tl.where(word == (at >> 5)[:, None], (1 << (at & 31))[:, None], 0)
            bits = tl.where(real[:, None], bits | seen, bits)
            if MASK > 0:
                tl.store(dense + at, one, mask=real)
        tl.store(bits_ptr + (request * (B + 1) + row)[:, None] * WORDS + word, bits,
                 mask=there[:, None] & (word < WORDS))  # fmt: skip


@triton.jit
def _build(lp_ptr, ids_ptr, base_ptr, budgets_ptr, lengths_ptr, least_ptr, clean_ptr, clean_ids_ptr, order_ptr,
           tokens_ptr, parents_ptr, ranks_ptr, out_lp_ptr, depths_ptr, scores_ptr, positions_ptr, bits_ptr, mask_ptr,
           counts_ptr, dropped_ptr, D: tl.constexpr, K: tl.constexpr, KEPT: tl.constexpr, B: tl.constexpr,
           ROWS: tl.constexpr, K2: tl.constexpr, B2: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr,
           WORDS2: tl.constexpr, CHUNK: tl.constexpr, FILL: tl.constexpr, MASK: tl.constexpr, HAS_BASE: tl.constexpr,
           HAS_BUDGETS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_LEAST: tl.constexpr):  # fmt: skip
    """One request a program."""
    request = tl.program_id(0)
    length = request * 0 + D
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(lengths_ptr + request), D)
    limit = request * 0 + B
    if HAS_BUDGETS:
        limit = tl.minimum(tl.load(budgets_ptr + request), B)
    least = (request * 0).to(tl.float64) + float("-inf")
    if HAS_LEAST:
        least = tl.load(least_ptr + request)
    dropped = _drop_unusable(lp_ptr, ids_ptr, clean_ptr, clean_ids_ptr, request, length, D, K, KEPT, ROWS, K2)
    tl.store(dropped_ptr + request, dropped)
    if MASK > 0:
        for first in range(0, (B + 1) * (B + 1), FILL):
            cell = first + tl.arange(0, FILL)
            nothing = tl.full((FILL,), 0.0 if MASK == 1 else float("-inf"), tl.float32)
            tl.store(mask_ptr + request.to(tl.int64) * (B + 1) * (B + 1) + cell,
                     nothing.to(mask_ptr.dtype.element_ty), mask=cell < (B + 1) * (B + 1))  # fmt: skip
    tl.debug_barrier()  # other threads' stores are read from here on
    count = _choose(clean_ptr, order_ptr, scores_ptr, request, length, limit, least, D, KEPT, B, B2, BITS)
    tl.store(counts_ptr + request, count)
    tl.debug_barrier()

    i = tl.arange(0, B2)
    real, there = i < count, i < B
    packed = tl.load(order_ptr + request * B + i, mask=real, other=0)
    rank = (packed >> BITS) & ((1 << BITS) - 1)
    depth = packed >> (2 * BITS)
    origin = (request * D + depth - 1) * KEPT + rank
    token = tl.load(clean_ids_ptr + origin, mask=real, other=0)
    entry = request * B + i
    tl.store(tokens_ptr + entry, token, mask=there)
    tl.store(parents_ptr + entry, tl.where(real, packed & ((1 << BITS) - 1), -1), mask=there)
    tl.store(ranks_ptr + entry, tl.where(real, rank, -1), mask=there)
    tl.store(out_lp_ptr + entry, tl.load(clean_ptr + origin, mask=real, other=float("-inf")), mask=there)
    row = request * (B + 1) + i + 1
    tl.store(depths_ptr + row, depth, mask=there)
    tl.store(scores_ptr + row, tl.full((B2,), float("-inf"), tl.float64), mask=there & (i >= count))
    base = request.to(tl.int64) * 0
    if HAS_BASE:
        base = tl.load(base_ptr + request).to(tl.int64)
    tl.store(positions_ptr + row, base + depth, mask=there)
    tl.store(depths_ptr + request * (B + 1), 0)
    tl.store(scores_ptr + request * (B + 1), (request * 0).to(tl.float64))
    tl.store(positions_ptr + request * (B + 1), base)
    tl.debug_barrier()
    _store_ancestors(parents_ptr, bits_ptr, mask_ptr, request, count, D, B, WORDS, WORDS2, CHUNK, MASK)


def launch(
    logprobs: Tensor,
    ids: Tensor,
    base: Tensor | None,
    budgets: Tensor | None,
    lengths: Tensor | None,
    min_scores: Tensor | None,
    out: TreeBatch,
) -> None:
    """Fill `out`; arguments as of `batched.build_tree`, checked, with R, D, k and budget > 0."""
    requests, depths, k = logprobs.shape
    budget = out.tokens.shape[1]
    kept = min(k, budget)
    b2 = power_of_two(budget)
    bits = b2.bit_length() - 1
    if depths + 2 > 1 << (31 - 2 * bits):
        raise ValueError(
            f"a tree of {budget} nodes over {depths} depths is too large: depth, rank and parent have 31 bits"
        )
    device = logprobs.device
    logprobs, ids = logprobs.float().contiguous(), ids.contiguous()
    clean = torch.empty(requests, depths, kept, dtype=torch.float32, device=device)
    clean_ids = torch.empty(requests, depths, kept, dtype=ids.dtype, device=device)
    order = torch.empty(requests, budget, dtype=torch.int32, device=device)
    k2, words = power_of_two(k), out.bits.shape[2]
    words2 = power_of_two(words)
    warps = 1 if budget <= 256 else 4
    mask = out.mask
    form = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    if mask is not None and form == 1:
        mask = mask.view(torch.uint8)
    _build[(requests,)](
        logprobs, ids, _or(base, ids), _or(budgets, ids), _or(lengths, ids), _or(min_scores, ids), clean, clean_ids,
        order, out.tokens, out.parents, out.ranks, out.logprobs, out.depths, out.scores, out.positions, out.bits,
        _or(mask, ids), out.counts, out.dropped, depths, k, kept, budget,
        max(1, min(power_of_two(depths), 512 * warps // k2)), k2, b2, bits, words, words2,
        min(power_of_two(budget + 1), max(32, 512 * warps // words2)), 512 * warps, form,
        base is not None, budgets is not None, lengths is not None, min_scores is not None,
        num_warps=warps)  # fmt: skip


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A pointer is needed also where nothing is read."""
    return other if tensor is None else tensor
