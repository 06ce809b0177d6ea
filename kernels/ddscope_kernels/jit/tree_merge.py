"""Growth of one tree depth by depth, for large budgets: merges of sorted lists in place of a round a node.

The children of a depth's nodes are one sorted list a rank. What may still be among the best B is counted by binary
searches, merged over ranks four lists at a time, and then merged into the list of the best nodes of all depths so far,
whose last score bounds the next depth. Equal scores keep the total order because every merge is stable: in a depth
ranks come up and parents in order, between depths the shallower node comes first.
"""

from __future__ import annotations

import triton
import triton.language as tl

_MOST32 = tl.constexpr(2**31 - 1)
_MOST64 = tl.constexpr(2**63 - 1)
_LOWEST = tl.constexpr(-1.7976931348623157e308)


@triton.jit
def _key(x):
    """An int64 that is ordered as the float64 x is; `_score` is the way back."""
    raw = x.to(tl.int64, bitcast=True)
    return raw ^ ((raw >> 63) & _MOST64)


@triton.jit
def _score(key):
    return (key ^ ((key >> 63) & _MOST64)).to(tl.float64, bitcast=True)


@triton.jit
def _top_bit(n):
    """The largest power of two that is ≤ n, for 1 ≤ n < 2^24; 1 for n < 1."""
    return 1 << ((tl.maximum(n, 1).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127)


@triton.jit
def _at_least(list_ptr, gain, length, bound, first):
    """How many of the first `length` scores of a descending list are ≥ bound, `gain` added. first: a power of two.

    first: the largest power of two that is not above the longest length.
    """
    at = tl.where(bound == bound, length, length) * 0
    step = first
    while step > 0:
        probe = at + step
        inside = probe <= length
        value = tl.load(list_ptr + probe - 1, mask=inside, other=float("-inf")) + gain
        at = tl.where(inside & (value >= bound), probe, at)
        step = step >> 1
    return at


@triton.jit
def _tighten(parents_ptr, best_ptr, gain, caps, first, held, limit, low, high, B2: tl.constexpr, K2: tl.constexpr,
             PROBES: tl.constexpr):  # fmt: skip
    """Keys (low, high) of two scores: with ≥ low there are enough nodes for the budget, with ≥ high there are not.

    The depth has at most B2 nodes that are ≥ low, or low and high are neighbours. low and high at the start: such a
    pair, with more than B2.
    """
    number = tl.arange(0, PROBES).to(tl.int64) + 1
    first_best = _top_bit(held)
    more = high - low > 1
    while more:
        keys = low + tl.maximum((high - low) // (PROBES + 1), 1) * number
        bounds = _score(keys)
        here = _at_least(parents_ptr, gain[None, :], caps[None, :], bounds[:, None], first)
        here = tl.sum(here, axis=1)
        before = _at_least(best_ptr, 0.0, held, bounds, first_best)
        enough = here + before >= limit
        higher = tl.maximum(tl.max(tl.where(enough, keys, low), axis=0), low)
        high = tl.minimum(tl.min(tl.where(enough, high, keys), axis=0), high)
        at_higher = tl.max(tl.where(enough & (keys == higher), here, 0), axis=0)
        crowded = (higher == low) | (at_higher > B2)
        low = higher
        more = crowded & (high - low > 1)
    return low, high


@triton.jit
def _count_children(parents_ptr, best_ptr, gain, n, held, limit, bound, B2: tl.constexpr, K2: tl.constexpr,
                    PROBES: tl.constexpr):  # fmt: skip
    """[K2] how many children of each rank, of the first parents, may be among the best: no more than B2 in all."""
    rank = tl.arange(0, K2)
    # Node (parent i, rank r) comes behind all nodes with smaller i and r.
    caps = tl.where(gain > float("-inf"), tl.minimum(n, limit // (rank + 1)), 0)
    first = _top_bit(n)
    counts = _at_least(parents_ptr, gain, caps, bound, first)
    if tl.sum(counts, axis=0) > B2:
        worst = tl.load(parents_ptr + n - 1) + tl.min(tl.where(gain > float("-inf"), gain, 0.0), axis=0)
        best = tl.load(parents_ptr) + tl.max(gain, axis=0)
        low, high = _tighten(parents_ptr, best_ptr, gain, caps, first, held, limit,
                             tl.maximum(_key(bound), _key(worst)), _key(best) + 1, B2, K2, PROBES)  # fmt: skip
        counts = _at_least(parents_ptr, gain, caps, _score(low), first)
        if tl.sum(counts, axis=0) > B2:  # very many equal scores: by rank, then by parent
            above = _at_least(parents_ptr, gain, caps, _score(high), first)
            equal = counts - above
            room = limit - tl.sum(above, axis=0) - (tl.cumsum(equal, axis=0) - equal)
            counts = above + tl.minimum(tl.maximum(room, 0), equal)
    return counts


@triton.jit
def _store_children(parents_ptr, to_ptr, packs_ptr, ends_ptr, gains_ptr, total, ranks, B2: tl.constexpr,
                    BITS: tl.constexpr):  # fmt: skip
    """The counted children, list behind list."""
    i = tl.arange(0, B2)
    # The rank of child i is the number of lists that end before it.
    rank = i * 0
    step = _top_bit(ranks)
    while step > 0:
        end = tl.load(ends_ptr + rank + step, mask=rank + step <= ranks, other=B2)
        rank = tl.where(end <= i, rank + step, rank)
        step = step >> 1
    live = i < total
    parent = i - tl.load(ends_ptr + rank, mask=live, other=0)
    score = tl.load(parents_ptr + parent, mask=live, other=0.0)
    score += tl.load(gains_ptr + rank, mask=live, other=0.0).to(tl.float64)
    tl.store(to_ptr + i, score, mask=live)
    tl.store(packs_ptr + i, (rank << BITS) | parent, mask=live)


@triton.jit
def _merge_ranks(from_ptr, to_ptr, packs_from_ptr, packs_to_ptr, ends_ptr, total, level, B2: tl.constexpr,
                 K2: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """Merge the lists of four neighbouring groups of 4^level ranks."""
    i = tl.arange(0, B2)
    live = i < total
    pack = tl.load(packs_from_ptr + i, mask=live, other=0)
    mine = tl.load(from_ptr + i, mask=live, other=0.0)
    group = (pack >> BITS) >> (2 * level)
    other = ((group >> 2) << 2)[:, None] + tl.arange(0, 4)[None, :]
    start = tl.load(ends_ptr + tl.minimum(other << (2 * level), K2))
    end = tl.load(ends_ptr + tl.minimum((other + 1) << (2 * level), K2))
    longest = tl.max(tl.max(tl.where(live[:, None], end - start, 0), axis=1), axis=0)
    # Of equals those of lower ranks are before: among those of higher ranks only what is above counts.
    raw = mine.to(tl.int64, bitcast=True)
    above = tl.where(mine < 0, raw - 1, 1).to(tl.float64, bitcast=True)
    bound = tl.where(other < group[:, None], mine[:, None], above[:, None])
    length = tl.where((other != group[:, None]) & live[:, None], end - start, 0)
    passed = _at_least(from_ptr + start, 0.0, length, bound, _top_bit(longest))
    # The own list: all that lies between the first list and here is own, or of lists before.
    passed = tl.where(other == group[:, None], i[:, None] - start, passed)
    lowest = tl.min(start, axis=1)
    place = lowest + tl.sum(passed, axis=1)
    tl.store(to_ptr + place, mine, mask=live)
    tl.store(packs_to_ptr + place, pack, mask=live)


@triton.jit
def _merge_depth(new_ptr, packs_ptr, best_ptr, best_to_ptr, held_ptr, held_to_ptr, total, held, limit, depth,
                 B2: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """Merge a depth's sorted nodes into the best of all depths; return how many of the depth's are among them."""
    i = tl.arange(0, B2)
    live = i < held
    old = tl.load(best_ptr + i, mask=live, other=0.0)
    payload = tl.load(held_ptr + i, mask=live, other=0)
    raw = old.to(tl.int64, bitcast=True)
    above = tl.where(old < 0, raw - 1, 1).to(tl.float64, bitcast=True)
    place = i + _at_least(new_ptr, 0.0, tl.where(live, total, 0), above, _top_bit(total))
    tl.store(best_to_ptr + place, old, mask=live & (place < limit))
    tl.store(held_to_ptr + place, payload, mask=live & (place < limit))

    live = i < total
    new = tl.load(new_ptr + i, mask=live, other=0.0)
    pack = tl.load(packs_ptr + i, mask=live, other=0)
    place = i + _at_least(best_ptr, 0.0, tl.where(live, held, 0), new, _top_bit(held))
    kept = live & (place < limit)
    payload = ((((depth + 1) << (2 * BITS)) | pack).to(tl.int64) << 32) | i.to(tl.int64)
    tl.store(best_to_ptr + place, new, mask=kept)
    tl.store(held_to_ptr + place, payload, mask=kept)
    return tl.sum(kept.to(tl.int32), axis=0)


@triton.jit
def _store_order(order_ptr, scores_ptr, best_ptr, held_ptr, places_ptr, count, B: tl.constexpr, B2: tl.constexpr,
                 BITS: tl.constexpr):  # fmt: skip
    """The best nodes with the numbers that their parents have among them."""
    i = tl.arange(0, B2)
    live = i < count
    payload = tl.load(held_ptr + i, mask=live, other=0)
    pack = (payload >> 32).to(tl.int32)
    depth = pack >> (2 * BITS)
    tl.store(places_ptr + depth * B + (payload & _MOST32).to(tl.int32), i + 1, mask=live)
    tl.debug_barrier()
    above = (depth - 1) * B + (pack & ((1 << BITS) - 1))
    parent = tl.load(places_ptr + above, mask=live & (depth > 1), other=0)
    tl.store(order_ptr + i, ((pack >> BITS) << BITS) | parent, mask=live)
    tl.store(scores_ptr + i, tl.load(best_ptr + i, mask=live, other=0.0), mask=live)


@triton.jit
def grow(clean_ptr, order_ptr, scores_ptr, lists_ptr, held_ptr, packs_ptr, ends_ptr, places_ptr, request, length, limit,
         least, D: tl.constexpr, K: tl.constexpr, KEPT: tl.constexpr, B: tl.constexpr, B2: tl.constexpr,
         K2: tl.constexpr, BITS: tl.constexpr, PROBES: tl.constexpr):  # fmt: skip
    """Grow one tree: store depth, rank and parent of each node packed, and its score; return how many there are.

    lists:  [4, B2] float64: two lists of a depth's scores, two of the best scores of all depths.
    held:   [2, B2] int64 depth, rank, parent (its place in its depth) and own place in the depth, of the best.
    packs:  [2, B2] int32 rank and parent of a depth's nodes. ends: [K2 + 1] int32. places: [D + 1, B] int32.
    """
    rank = tl.arange(0, K2)
    lists_ptr += request * 4 * B2
    held_ptr += request * 2 * B2
    packs_ptr += request * 2 * B2
    ends_ptr += request * (K2 + 1)
    places_ptr += request * (D + 1) * B
    tl.store(lists_ptr, (request * 0).to(tl.float64))  # the root is the only parent of the first depth
    tl.store(ends_ptr, request * 0)
    tl.debug_barrier()
    n = request * 0 + 1
    held = request * 0
    now = request * 0  # which of two lists holds the parents
    best = request * 0  # which of two lists holds the best
    depth = request * 0
    more = (limit > 0) & (length > 0)
    while more:
        best_ptr = lists_ptr + (2 + best) * B2
        gain = tl.load(clean_ptr + (request * D + depth) * K + rank, mask=rank < KEPT, other=float("-inf"))
        gain = gain.to(tl.float64)
        last = tl.load(best_ptr + limit - 1, mask=held == limit, other=0.0)
        bound = tl.where(held == limit, _score(_key(last) + 1), _LOWEST)
        bound = tl.maximum(bound, tl.maximum(least, _LOWEST))
        counts = _count_children(lists_ptr + now * B2, best_ptr, gain, n, held, limit, bound, B2, K2, PROBES)
        total = tl.sum(counts, axis=0)
        ranks = tl.sum((counts > 0).to(tl.int32), axis=0)
        tl.store(ends_ptr + 1 + rank, tl.cumsum(counts, axis=0))
        tl.debug_barrier()
        _store_children(lists_ptr + now * B2, lists_ptr + (1 - now) * B2, packs_ptr + (1 - now) * B2, ends_ptr,
                        clean_ptr + (request * D + depth) * K, total, ranks, B2, BITS)  # fmt: skip
        now = 1 - now
        tl.debug_barrier()
        level = request * 0
        apart = (ranks > 1) & (n > 1)  # the children of one parent are in order
        while apart:
            _merge_ranks(lists_ptr + now * B2, lists_ptr + (1 - now) * B2, packs_ptr + now * B2,
                         packs_ptr + (1 - now) * B2, ends_ptr, total, level, B2, K2, BITS)  # fmt: skip
            tl.debug_barrier()
            now = 1 - now
            level += 1
            apart = (1 << (2 * level)) < ranks
        n = _merge_depth(lists_ptr + now * B2, packs_ptr + now * B2, best_ptr, lists_ptr + (3 - best) * B2,
                         held_ptr + best * B2, held_ptr + (1 - best) * B2, total, held, limit, depth, B2,
                         BITS)  # fmt: skip
        tl.debug_barrier()
        held = tl.minimum(held + total, limit)
        best = 1 - best
        depth += 1
        more = (n > 0) & (depth < length)

    _store_order(order_ptr + request * B, scores_ptr + request * (B + 1) + 1, lists_ptr + (2 + best) * B2,
                 held_ptr + best * B2, places_ptr, held, B, B2, BITS)  # fmt: skip
    return held
