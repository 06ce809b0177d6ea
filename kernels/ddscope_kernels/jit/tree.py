"""Best-first trees, one program a request: candidates are cleaned, one of two growths runs, the tree is written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.batched.tree import TreeBatch
from ddscope_kernels.jit import tree_merge, tree_pointers

_merge_grow, _pointers_grow = tree_merge.grow, tree_pointers.grow


@triton.jit
def _count_unusable(lp_ptr, request, length, D: tl.constexpr, K: tl.constexpr, FILL: tl.constexpr):
    """How many candidates of the depths that count are not finite."""
    found = tl.zeros((FILL,), tl.int32)
    for first in range(0, D * K, FILL):
        cell = first + tl.arange(0, FILL)
        x = tl.load(lp_ptr + request * D * K + cell, mask=cell < length * K, other=0.0)
        found += tl.where(tl.abs(x) < float("inf"), 0, 1)  # NaN, too, is not below
    return tl.sum(found, axis=0)


@triton.jit
def _drop_unusable(lp_ptr, ids_ptr, clean_ptr, clean_ids_ptr, request, length, D: tl.constexpr, K: tl.constexpr,
                   ROWS: tl.constexpr, K2: tl.constexpr):  # fmt: skip
    """Copy the finite candidates of each depth, -inf behind them."""
    column = tl.arange(0, K2)[None, :]
    for first in range(0, D, ROWS):
        depth = first + tl.arange(0, ROWS)[:, None]
        inside = (depth < length) & (column < K)
        row = (request * D + depth) * K
        x = tl.load(lp_ptr + row + column, mask=inside, other=0.0)
        token = tl.load(ids_ptr + row + column, mask=inside, other=0)
        finite = inside & (tl.abs(x) < float("inf"))
        place = tl.cumsum(finite.to(tl.int32), axis=1) - 1
        tl.store(clean_ptr + row + place, x, mask=finite)
        tl.store(clean_ids_ptr + row + place, token, mask=finite)
        behind = (column >= tl.sum(finite.to(tl.int32), axis=1)[:, None]) & (column < K) & (depth < D)
        tl.store(clean_ptr + row + column, tl.full((ROWS, K2), float("-inf"), tl.float32), mask=behind)


@triton.jit
def _clear(bits_ptr, mask_ptr, request, B: tl.constexpr, WORDS: tl.constexpr, FILL: tl.constexpr,
           MASK: tl.constexpr):  # fmt: skip
    """No node sees any. MASK: 0 no dense mask, 1 bool, 2 additive."""
    for first in range(0, (B + 1) * WORDS, FILL):
        cell = first + tl.arange(0, FILL)
        tl.store(bits_ptr + request * (B + 1) * WORDS + cell, tl.zeros((FILL,), tl.int32),
                 mask=cell < (B + 1) * WORDS)  # fmt: skip
    if MASK > 0:
        for first in range(0, (B + 1) * (B + 1), FILL):
            cell = first + tl.arange(0, FILL)
            nothing = tl.full((FILL,), 0.0 if MASK == 1 else float("-inf"), tl.float32)
            tl.store(mask_ptr + request.to(tl.int64) * (B + 1) * (B + 1) + cell,
                     nothing.to(mask_ptr.dtype.element_ty), mask=cell < (B + 1) * (B + 1))  # fmt: skip


@triton.jit
def _store_ancestors(parents_ptr, bits_ptr, mask_ptr, request, count, deepest, B: tl.constexpr, B2: tl.constexpr,
                     WORDS: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """Rows of the ancestor closure over cleared buffers: climb from every node at once.

    Numbers only fall on the way up, so that a word of bits is complete, and is stored, when the next one begins.
    """
    node = tl.arange(0, B2) + 1
    real, there = node <= count, node <= B
    row = bits_ptr + (request * (B + 1) + node) * WORDS
    dense = mask_ptr + (request * (B + 1) + node.to(tl.int64)) * (B + 1)
    at = node
    word = at >> 5
    bits = tl.full((B2,), 1, tl.int32) << (at & 31)
    one = tl.full((B2,), 2 - MASK, tl.float32).to(mask_ptr.dtype.element_ty)
    tl.store(bits_ptr + request * (B + 1) * WORDS, request * 0 + 1)
    if MASK > 0:
        tl.store(dense + at, one, mask=there)
        tl.store(mask_ptr + request.to(tl.int64) * (B + 1) * (B + 1),
                 (request * 0 + 2 - MASK).to(mask_ptr.dtype.element_ty))  # fmt: skip
    step = deepest
    while step > 0:
        at = tl.load(parents_ptr + request * B + at - 1, mask=real & (at > 0), other=0)
        if MASK > 0:
            tl.store(dense + at, one, mask=real)
        full = real & ((at >> 5) != word)
        tl.store(row + word, bits, mask=full)
        seen = tl.full((B2,), 1, tl.int32) << (at & 31)
        bits = tl.where(full, seen, tl.where(real, bits | seen, bits))
        word = tl.where(real, at >> 5, word)
        step -= 1
    tl.store(row + word, bits, mask=there)


@triton.jit
def _build(lp_ptr, ids_ptr, base_ptr, budgets_ptr, lengths_ptr, least_ptr, clean_ptr, clean_ids_ptr, order_ptr,
           lists_ptr, held_ptr, packs_ptr, ends_ptr, places_ptr, tokens_ptr, parents_ptr, ranks_ptr, out_lp_ptr,
           depths_ptr, scores_ptr, positions_ptr, bits_ptr, mask_ptr, counts_ptr, dropped_ptr, D: tl.constexpr,
           K: tl.constexpr, KEPT: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, K2: tl.constexpr,
           KEPT2: tl.constexpr, B2: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr, PROBES: tl.constexpr,
           FILL: tl.constexpr, MASK: tl.constexpr, MERGE: tl.constexpr, HAS_BASE: tl.constexpr,
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
    dropped = _count_unusable(lp_ptr, request, length, D, K, FILL)
    tl.store(dropped_ptr + request, dropped)
    if dropped > 0:
        _drop_unusable(lp_ptr, ids_ptr, clean_ptr, clean_ids_ptr, request, length, D, K, ROWS, K2)
        lp_ptr, ids_ptr = clean_ptr, clean_ids_ptr
    _clear(bits_ptr, mask_ptr, request, B, WORDS, FILL, MASK)
    tl.debug_barrier()  # other threads' stores are read from here on
    if MERGE:
        count = _merge_grow(lp_ptr, order_ptr, scores_ptr, lists_ptr, held_ptr, packs_ptr, ends_ptr, places_ptr,
                            request, length, limit, least, D, K, KEPT, B, B2, KEPT2, BITS, PROBES)  # fmt: skip
    else:
        count = _pointers_grow(lp_ptr, order_ptr, scores_ptr, request, length, limit, least, D, K, KEPT, B, B2,
                               BITS)  # fmt: skip
    tl.store(counts_ptr + request, count)
    tl.debug_barrier()

    i = tl.arange(0, B2)
    real, there = i < count, i < B
    packed = tl.load(order_ptr + request * B + i, mask=real, other=0)
    rank = (packed >> BITS) & ((1 << BITS) - 1)
    depth = packed >> (2 * BITS)
    origin = (request * D + depth - 1) * K + rank
    token = tl.load(ids_ptr + origin, mask=real, other=0)
    entry = request * B + i
    tl.store(tokens_ptr + entry, token, mask=there)
    tl.store(parents_ptr + entry, tl.where(real, packed & ((1 << BITS) - 1), -1), mask=there)
    tl.store(ranks_ptr + entry, tl.where(real, rank, -1), mask=there)
    tl.store(out_lp_ptr + entry, tl.load(lp_ptr + origin, mask=real, other=float("-inf")), mask=there)
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
    _store_ancestors(parents_ptr, bits_ptr, mask_ptr, request, count, tl.max(depth, axis=0), B, B2, WORDS, MASK)


def launch(
    logprobs: Tensor,
    ids: Tensor,
    base: Tensor | None,
    budgets: Tensor | None,
    lengths: Tensor | None,
    min_scores: Tensor | None,
    out: TreeBatch,
    merge: bool,
    warps: int | None = None,
) -> None:
    """Fill `out`; arguments as of `batched.build_tree`, checked, with R, D, k and budget > 0.

    merge: grow depth by depth, not node by node. warps: of a program; by the sizes where it is None.
    """
    requests, depths, k = logprobs.shape
    budget = out.tokens.shape[1]
    kept = min(k, budget)
    b2 = power_of_two(budget, 32)  # a lane a node at least: part of a warp reduces more slowly
    bits = b2.bit_length() - 1
    if depths + 2 > 1 << (31 - 2 * bits):
        raise ValueError(
            f"a tree of {budget} nodes over {depths} depths is too large: depth, rank and parent have 31 bits"
        )
    device = logprobs.device
    logprobs, ids = logprobs.float().contiguous(), ids.contiguous()
    clean = torch.empty(requests, depths, k, dtype=torch.float32, device=device)
    clean_ids = torch.empty(requests, depths, k, dtype=ids.dtype, device=device)
    order = torch.empty(requests, budget, dtype=torch.int32, device=device)
    k2, kept2, words = power_of_two(k), power_of_two(kept), out.bits.shape[2]
    scratch = _scratch(requests, depths, budget, b2, kept2, device) if merge else [order] * 5
    if warps is None:
        warps = max(2, min(16, b2 // 32)) if merge else 1 if budget <= 256 else 4
    mask = out.mask
    form = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    if mask is not None and form == 1:
        mask = mask.view(torch.uint8)
    _build[(requests,)](
        logprobs, ids, _or(base, ids), _or(budgets, ids), _or(lengths, ids), _or(min_scores, ids), clean, clean_ids,
        order, *scratch, out.tokens, out.parents, out.ranks, out.logprobs, out.depths, out.scores, out.positions,
        out.bits, _or(mask, ids), out.counts, out.dropped, depths, k, kept, budget,
        max(1, min(power_of_two(depths), 512 * warps // k2)), k2, kept2, b2, bits, words,
        max(2, min(16, 1024 // kept2)), 512 * warps, form, merge, base is not None, budgets is not None,
        lengths is not None, min_scores is not None, num_warps=warps)  # fmt: skip


def _scratch(requests: int, depths: int, budget: int, b2: int, kept2: int, device: torch.device) -> list[Tensor]:
    """lists, held, packs, ends and places of `tree_merge.grow`."""
    shapes = (
        ((4, b2), torch.float64),
        ((2, b2), torch.int64),
        ((2, b2), torch.int32),
        ((kept2 + 1,), torch.int32),
        ((depths + 1, budget), torch.int32),
    )
    return [torch.empty(requests, *shape, dtype=dtype, device=device) for shape, dtype in shapes]


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A pointer is needed also where nothing is read."""
    return other if tensor is None else tensor
