"""The draft tree of one step: building it from independent marginals, or as a chain.

Plain lists and Python integers: at these sizes (≤ 256 nodes) a lean heap beats every vectorised form on a CPU.
Source of the algorithm: DDTree, arXiv 2604.12989, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, isfinite

from torch import Tensor

Rows = Sequence[Sequence[float]] | Tensor
IdRows = Sequence[Sequence[int]] | Tensor


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
    probs, tokens, dropped = _finite(logprobs, ids, budget)
    tree = DraftTree(dropped=dropped)
    if budget == 0 or not probs or not probs[0]:
        return tree
    scores = tree.scores
    depths = len(probs)
    # An entry is (-score, depth, rank, parent): its key is exactly the total order, and no two are equal.
    heap: list[tuple[float, int, int, int]] = [(-probs[0][0], 1, 0, 0)]
    while heap and len(tree.tokens) < budget:
        cost, depth, rank, parent = heappop(heap)
        if -cost < min_score:
            break
        here = probs[depth - 1]
        node = tree._add(parent, rank, tokens[depth - 1][rank], here[rank])
        if rank + 1 < len(here):
            heappush(heap, (-(scores[parent] + here[rank + 1]), depth, rank + 1, parent))
        if depth < depths and probs[depth]:
            heappush(heap, (-(scores[node] + probs[depth][0]), depth + 1, 0, node))
    return tree


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


def _finite(logprobs: Rows, ids: IdRows, budget: int) -> tuple[list[list[float]], list[list[int]], int]:
    """Both inputs as lists without the candidates that are none, and how many those were."""
    if budget < 0:
        raise ValueError(f"a tree's budget must be ≥ 0, got {budget}")
    probs: list[list[float]] = [list(row) for row in (logprobs.tolist() if isinstance(logprobs, Tensor) else logprobs)]
    tokens: list[list[int]] = [list(row) for row in (ids.tolist() if isinstance(ids, Tensor) else ids)]
    if len(probs) != len(tokens) or any(len(p) != len(t) for p, t in zip(probs, tokens, strict=True)):
        shapes = [[len(row) for row in rows] for rows in (probs, tokens)]
        raise ValueError(f"log-probabilities and ids disagree in shape: rows of {shapes[0]} against {shapes[1]}")
    dropped = 0
    for depth, row in enumerate(probs):
        if isfinite(sum(row)):  # every term is finite
            continue
        keep = [i for i, value in enumerate(row) if isfinite(value)]
        dropped += len(row) - len(keep)
        probs[depth] = [row[i] for i in keep]
        tokens[depth] = [tokens[depth][i] for i in keep]
    return probs, tokens, dropped
