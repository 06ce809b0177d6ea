"""The draft tree of one step: building it from independent marginals, or as a chain.

Plain lists and Python integers: at these sizes (≤ 256 nodes) a lean heap beats every vectorised form on a CPU.
Source of the algorithm: DDTree, arXiv 2604.12989, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import inf, isfinite

from torch import Tensor

Rows = Sequence[Sequence[float]] | Tensor
IdRows = Sequence[Sequence[int]] | Tensor

_NARROW = 64  # candidates a depth that are read at once; trees of 256 nodes hardly ever use more


@dataclass(slots=True)
class DraftTree:
    """n nodes besides the root; node i + 1 is entry i of the [n] lists, node 0 is the root. Parents come first.

    tokens:   [n] token ids.
    parents:  [n] node numbers, parents[i] ≤ i.
    depths:   [n + 1] 0 for the root, 1 for the first drafted position.
    ranks:    [n] place of the token among the finite candidates of its depth, 0 = likeliest.
    logprobs: [n] nats, of the token at its depth.
    scores:   [n + 1] nats, sum of logprobs along the path from the root (0 for the root).
    rows:     [n + 1] visibility as integers: bit j of row i says that node i sees node j (ancestors and itself).
    dropped:  candidates that were NaN or ±inf.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=lambda: [0])
    ranks: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=lambda: [0.0])
    rows: list[int] = field(default_factory=lambda: [1])
    dropped: int = 0

    def __len__(self) -> int:
        """Nodes without the root."""
        return len(self.tokens)

    def first(self, count: int) -> DraftTree:
        """The tree of a smaller budget: the first `count` nodes."""
        if count >= len(self):
            return self
        return DraftTree(
            self.tokens[:count],
            self.parents[:count],
            self.depths[: count + 1],
            self.ranks[:count],
            self.logprobs[:count],
            self.scores[: count + 1],
            self.rows[: count + 1],
            self.dropped,
        )

    def _add(self, parent: int, rank: int, token: int, logprob: float) -> int:
        node = len(self.rows)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.ranks.append(rank)
        self.logprobs.append(logprob)
        self.scores.append(self.scores[parent] + logprob)
        self.rows.append(self.rows[parent] | 1 << node)
        return node


def build_tree(logprobs: Rows, ids: IdRows, budget: int, min_score: float = -inf) -> DraftTree:
    """Best-first draft tree from independent marginals.

    logprobs:  [D, k] nats, descending along k and ≤ 0; NaN and ±inf are never chosen, and counted in `dropped`.
    ids:       [D, k] token ids.
    budget:    nodes WITHOUT the root; fewer come back when there are fewer finite candidates.
    min_score: nats; nodes whose path is less likely are left out. Chosen nodes only get less likely, so what is left is
    the first nodes of the tree without it.
    Order of nodes is the order in which they were chosen. It is total: score down, depth up, rank up, parent up, with
    scores summed in float64 from the root, so equal inputs give equal trees on any device. Therefore
    tree(B′) is the first B′ nodes of tree(B), and k ≥ budget never changes the tree.
    Raises ValueError when the shapes disagree or budget < 0.
    Source: DDTree (arXiv 2604.12989), section 3.
    """
    probs: Sequence[Sequence[float]]
    tokens: Sequence[Sequence[int]]
    wide = _Wide(logprobs, ids) if budget > 0 and _is_wide(logprobs, ids) else None
    if wide is not None:
        parents, ranks, depths, scores = _best_first(wide.probs, budget, -min_score, wide)
        probs, tokens, dropped = wide.probs, wide.tokens(), 0
    else:
        probs, tokens, dropped = _finite(logprobs, ids, budget)
        if budget == 0 or not probs or not probs[0]:
            return DraftTree(dropped=dropped)
        parents, ranks, depths, scores = _best_first(probs, budget, -min_score, None)
    places = [(depth - 1, rank) for depth, rank in zip(depths[1:], ranks, strict=True)]
    rows, bit = [1], 1
    for parent in parents:
        bit <<= 1
        rows.append(rows[parent] | bit)
    return DraftTree(
        [tokens[depth][rank] for depth, rank in places],
        parents,
        depths,
        ranks,
        [probs[depth][rank] for depth, rank in places],
        scores,
        rows,
        dropped,
    )


def _best_first(
    probs: Sequence[Sequence[float]], budget: int, most_cost: float, wide: _Wide | None
) -> tuple[list[int], list[int], list[int], list[float]]:
    """Parents [n], ranks [n], depths [n + 1] and scores [n + 1] of the best nodes; probs: finite, probs[0] not empty.
    wide: where the rows of probs come from, when not all of them is there yet.

    One sift a node for what follows it among its siblings (it takes the node's own place in the heap), one for its
    first child; nothing else is done in the loop.
    """
    first: list[float] = []
    for row in probs:
        if not row:
            break  # nothing can follow
        first.append(row[0])
    deepest = len(first)
    parents: list[int] = []
    ranks: list[int] = []
    depths, scores = [0], [0.0]
    # An entry is (-score, depth, rank, parent): its key is exactly the total order, and no two are equal.
    heap: list[tuple[float, int, int, int]] = [(-first[0], 1, 0, 0)]
    node = 0
    while heap:
        cost, depth, rank, parent = heap[0]
        if cost > most_cost:
            break
        node += 1
        parents.append(parent)
        ranks.append(rank)
        depths.append(depth)
        scores.append(-cost)
        if node == budget:
            break
        row = probs[depth - 1]
        rank += 1
        if rank < len(row) or (wide is not None and wide.grow(depth - 1)):
            heapreplace(heap, (-(scores[parent] + row[rank]), depth, rank, parent))
        else:
            heappop(heap)
        if depth < deepest:
            heappush(heap, (-(first[depth] - cost), depth + 1, 0, node))
    return parents, ranks, depths, scores


def chain_tree(logprobs: Rows, ids: IdRows, length: int) -> DraftTree:
    """The chain of each depth's likeliest token (DFlash's own verification), as a tree with parents 0, 1, 2, …

    logprobs, ids: as for build_tree; length: nodes without the root. Ends early at a depth without a finite candidate.
    Raises ValueError when the shapes disagree or length < 0.
    """
    probs, tokens, dropped = _finite(logprobs, ids, length)
    tree = DraftTree(dropped=dropped)
    for depth in range(min(length, len(probs))):
        if not probs[depth]:
            break
        tree._add(depth, 0, tokens[depth][0], probs[depth][0])
    return tree


def _finite(logprobs: Rows, ids: IdRows, budget: int) -> tuple[Sequence[Sequence[float]], Sequence[Sequence[int]], int]:
    """Both inputs as lists without the candidates that are none, and how many those were."""
    if budget < 0:
        raise ValueError(f"a tree's budget must be ≥ 0, got {budget}")
    probs: list[Sequence[float]] = logprobs.tolist() if isinstance(logprobs, Tensor) else list(logprobs)
    tokens: list[Sequence[int]] = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if [*map(len, probs)] != [*map(len, tokens)]:
        shapes = [[len(row) for row in rows] for rows in (probs, tokens)]
        raise ValueError(f"log-probabilities and ids disagree in shape: rows of {shapes[0]} against {shapes[1]}")
    dropped = 0
    if isfinite(sum(map(sum, probs))):  # every term is finite
        return probs, tokens, dropped
    for depth, row in enumerate(probs):
        keep = [i for i, value in enumerate(row) if isfinite(value)]
        dropped += len(row) - len(keep)
        probs[depth] = [row[i] for i in keep]
        tokens[depth] = [tokens[depth][i] for i in keep]
    return probs, tokens, dropped


def _is_wide(logprobs: Rows, ids: IdRows) -> bool:
    """Whether both are matrices with more candidates a depth than a tree is likely to use, all of them finite."""
    return (
        isinstance(logprobs, Tensor)
        and isinstance(ids, Tensor)
        and logprobs.ndim == 2
        and logprobs.shape[1] > _NARROW
        and logprobs.shape == ids.shape
        and len(logprobs) > 0
        and bool(logprobs.sum().isfinite())
    )


class _Wide:
    """The first columns of wide matrices as lists, more of a row when they are asked for: few are ever reached."""

    def __init__(self, logprobs: Rows, ids: IdRows) -> None:
        assert isinstance(logprobs, Tensor) and isinstance(ids, Tensor)
        self._logprobs, self._ids = logprobs, ids
        self.probs: list[list[float]] = logprobs[:, :_NARROW].tolist()

    def grow(self, depth: int) -> bool:
        """Read on in one row; False at its end."""
        row = self.probs[depth]
        size = len(row)
        row += self._logprobs[depth, size : 4 * size].tolist()
        return len(row) > size

    def tokens(self) -> list[list[int]]:
        """The ids of what was read."""
        rows: list[list[int]] = self._ids[:, :_NARROW].tolist()
        for depth, row in enumerate(self.probs):
            if len(row) > _NARROW:
                rows[depth] += self._ids[depth, _NARROW : len(row)].tolist()
        return rows
