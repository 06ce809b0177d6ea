"""Draft trees of a batch of requests as tensors of fixed shape, with positions and ancestor masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddscope_kernels import tree as single
from ddscope_kernels.batched.backend import use_triton

MERGE_ABOVE = 128
"""Larger budgets are grown depth by depth on a device: measured on an H200, where at 128 both take 33 µs."""


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Trees of R requests, with room for B nodes besides the root (node 0). Entry i is node i + 1. Parents come first.

    Request r has counts[r] nodes besides the root; what follows is padding, and has the values in brackets.
    tokens:    [R, B] int64 token ids [0].
    parents:   [R, B] int32 node numbers, parents[r, i] ≤ i [-1].
    ranks:     [R, B] int32, place of the token among the finite candidates of its depth [-1].
    logprobs:  [R, B] float32 nats, of the token at its depth [-inf].
    depths:    [R, B + 1] int32, 0 for the root [0].
    scores:    [R, B + 1] float64 nats, sum of logprobs along the path [-inf].
    positions: [R, B + 1] int64, base + depth [base].
    bits:      [R, B + 1, ⌈(B + 1) / 32⌉] int32: bit j % 32 of word j // 32 of row i says that node i sees node j, which
               is an ancestor or itself [itself].
    mask:      [R, B + 1, B + 1] the same as bool, or to add to scores (0 and -inf), or None when not asked for.
    counts:    [R] int32.
    dropped:   [R] int32, candidates that were NaN or ±inf.
    """

    tokens: Tensor
    parents: Tensor
    ranks: Tensor
    logprobs: Tensor
    depths: Tensor
    scores: Tensor
    positions: Tensor
    bits: Tensor
    mask: Tensor | None
    counts: Tensor
    dropped: Tensor


def empty_trees(requests: int, budget: int, device: torch.device, mask: torch.dtype | None = None) -> TreeBatch:
    """A TreeBatch that holds nothing yet: static buffers for `build_tree(…, out=…)`."""

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(requests, *shape, dtype=dtype, device=device)

    rows = budget + 1
    return TreeBatch(
        tokens=empty(budget, dtype=torch.int64),
        parents=empty(budget, dtype=torch.int32),
        ranks=empty(budget, dtype=torch.int32),
        logprobs=empty(budget, dtype=torch.float32),
        depths=empty(rows, dtype=torch.int32),
        scores=empty(rows, dtype=torch.float64),
        positions=empty(rows, dtype=torch.int64),
        bits=empty(rows, (rows + 31) // 32, dtype=torch.int32),
        mask=None if mask is None else empty(rows, rows, dtype=mask),
        counts=empty(dtype=torch.int32),
        dropped=empty(dtype=torch.int32),
    )


def build_tree(
    logprobs: Tensor,
    ids: Tensor,
    budget: int,
    *,
    base: Tensor | None = None,
    budgets: Tensor | None = None,
    lengths: Tensor | None = None,
    min_scores: Tensor | None = None,
    mask: torch.dtype | None = None,
    out: TreeBatch | None = None,
    merge: bool | None = None,
) -> TreeBatch:
    """Best-first draft trees of a batch from independent marginals: `ddscope_kernels.build_tree` for every request.

    logprobs:   [R, D, k] float32 nats, descending along k and ≤ 0; NaN and ±inf are never chosen, and counted.
    ids:        [R, D, k] int64 or int32 token ids.
    budget:     nodes WITHOUT the root that there is room for (B).
    base:       [R] int64 position of the root; 0 where it is None.
    budgets:    [R] int32 nodes that a request may have, at most B; B where it is None.
    lengths:    [R] int32 depths that a request has, at most D; D where it is None.
    min_scores: [R] float64 nats: nodes whose path is less likely are left out.
    mask:       also the dense mask in this dtype: torch.bool, or a float dtype for 0 and -inf.
    out:        buffers to fill, of `empty_trees` with the same sizes; its mask counts, not `mask`.
    merge:      on a CUDA device, grow depth by depth (True) or node by node (False); None: whichever is faster for the
                budget. The trees are the same.
    Order of nodes: score down, depth up, rank up, parent up, scores summed in float64 from the root.
    On a CUDA device one launch of one program a request, no wait for the host. Equal inputs give equal trees there and
    on a CPU.
    Raises ValueError when shapes disagree, budget < 0, or budget and D are too large for the packed order
    (D ≤ 2046 at a budget of 1024, 126 at 4096).
    Source: DDTree (arXiv 2604.12989), section 3; pending-child pointers, or merges of sorted lists, not its heap.
    """
    if logprobs.ndim != 3 or logprobs.shape != ids.shape:
        raise ValueError(f"log-probabilities {list(logprobs.shape)} and ids {list(ids.shape)} are not both [R, D, k]")
    if budget < 0:
        raise ValueError(f"a tree's budget must be ≥ 0, got {budget}")
    requests, depths, k = logprobs.shape
    given = {"base": base, "budgets": budgets, "lengths": lengths, "min_scores": min_scores}
    wrong = {name: list(t.shape) for name, t in given.items() if t is not None and t.shape != (requests,)}
    if wrong:
        raise ValueError(f"one entry a request is needed ({requests}), got {wrong}")
    if out is None:
        out = empty_trees(requests, budget, logprobs.device, mask)
    elif out.tokens.shape != (requests, budget):
        raise ValueError(f"buffers for trees {list(out.tokens.shape)} do not fit {requests} requests of {budget} nodes")
    if requests == 0:
        return out
    if min(budget, depths, k) == 0:
        _roots_only(logprobs, base, lengths, out)
    elif use_triton(logprobs):
        from ddscope_kernels.jit import tree

        tree.launch(
            logprobs, ids, base, budgets, lengths, min_scores, out, budget > MERGE_ABOVE if merge is None else merge
        )
    else:
        _reference(logprobs, ids, base, budgets, lengths, min_scores, out)
    return out


def _pad(out: TreeBatch, base: Tensor | None) -> None:
    """Trees of the root alone."""
    for tensor, value in ((out.tokens, 0), (out.parents, -1), (out.ranks, -1), (out.logprobs, -torch.inf)):
        tensor.fill_(value)
    for tensor in (out.depths, out.bits, out.counts, out.dropped):
        tensor.zero_()
    out.scores.fill_(-torch.inf)
    out.scores[:, 0] = 0.0
    out.positions.zero_()
    if base is not None:
        out.positions.add_(base[:, None])
    rows = torch.arange(out.bits.shape[1], device=out.bits.device)
    out.bits[:, rows, rows // 32] = (torch.ones_like(rows) << (rows % 32)).to(torch.int32)
    if out.mask is not None:
        boolean = out.mask.dtype == torch.bool
        out.mask.fill_(0 if boolean else -torch.inf)
        out.mask[:, rows, rows] = 1 if boolean else 0


def _roots_only(logprobs: Tensor, base: Tensor | None, lengths: Tensor | None, out: TreeBatch) -> None:
    _pad(out, base)
    bad = (~torch.isfinite(logprobs)).sum(-1, dtype=torch.int32)
    if lengths is not None:
        bad *= torch.arange(bad.shape[1], device=bad.device) < lengths[:, None]
    out.dropped.copy_(bad.sum(-1))


def _reference(
    logprobs: Tensor,
    ids: Tensor,
    base: Tensor | None,
    budgets: Tensor | None,
    lengths: Tensor | None,
    min_scores: Tensor | None,
    out: TreeBatch,
) -> None:
    _pad(out, base)
    room = out.tokens.shape[1]
    for r in range(logprobs.shape[0]):
        length = logprobs.shape[1] if lengths is None else int(lengths[r])
        limit = room if budgets is None else min(room, int(budgets[r]))
        least = -torch.inf if min_scores is None else float(min_scores[r])
        tree = single.build_tree(logprobs[r, :length], ids[r, :length], limit, least)
        n = len(tree)
        out.tokens[r, :n] = torch.tensor(tree.tokens, dtype=torch.int64)
        out.parents[r, :n] = torch.tensor(tree.parents, dtype=torch.int32)
        out.ranks[r, :n] = torch.tensor(tree.ranks, dtype=torch.int32)
        out.logprobs[r, :n] = torch.tensor(tree.logprobs, dtype=torch.float32)
        out.depths[r, : n + 1] = torch.tensor(tree.depths, dtype=torch.int32)
        out.scores[r, : n + 1] = torch.tensor(tree.scores, dtype=torch.float64)
        out.positions[r, : n + 1].add_(out.depths[r, : n + 1])
        out.counts[r], out.dropped[r] = n, tree.dropped
        words = out.bits.shape[2]
        packed = b"".join(row.to_bytes(4 * words, "little") for row in tree.rows)
        out.bits[r, : n + 1] = torch.frombuffer(bytearray(packed), dtype=torch.int32).view(n + 1, words)
    if out.mask is not None:
        seen = unpack_bits(out.bits)
        boolean = out.mask.dtype == torch.bool
        out.mask.copy_(seen if boolean else torch.where(seen, 0.0, -torch.inf))


def unpack_bits(bits: Tensor) -> Tensor:
    """[R, m, ⌈m / 32⌉] int32 rows of bits → [R, m, m] bool; on the device of the bits."""
    requests, rows, words = bits.shape
    spread = bits[..., None] >> torch.arange(32, dtype=torch.int32, device=bits.device)
    return (spread & 1).view(requests, rows, 32 * words)[..., :rows].bool()
