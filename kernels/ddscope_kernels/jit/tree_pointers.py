"""Best-first growth of one tree, for small budgets: a pointer to the next unborn child of every node, not a heap.

Every round takes the best of those children under the total order (score down, depth up, rank up, parent up) by three
32-bit reductions: the two halves of the float64 score, then depth, rank and parent packed into one integer.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LEAST32 = tl.constexpr(-(2**31))
_MOST32 = tl.constexpr(2**31 - 1)
_LEAST64 = tl.constexpr(-(2**63))
_MOST64 = tl.constexpr(2**63 - 1)


@triton.jit
def grow(clean_ptr, order_ptr, scores_ptr, request, length, limit, least, D: tl.constexpr, K: tl.constexpr,
         KEPT: tl.constexpr, B: tl.constexpr, B2: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """Grow one tree: store depth, rank and parent of each node packed, and its score; return how many there are."""
    node = tl.arange(0, B2)
    start = tl.load(clean_ptr + request * D * K, mask=length > 0, other=float("-inf")).to(tl.float64)
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
        here = clean_ptr + (request * D + depth) * K
        sibling = tl.load(here - K + rank + 1, mask=more & (rank + 1 < KEPT), other=float("-inf"))
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
