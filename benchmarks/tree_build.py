"""Building draft trees on the CPU: `build_tree` and `ancestor_mask` against the algorithm written down plainly.

    python benchmarks/tree_build.py [--budgets 16 64 256 1024] [--requests 1 8] [--seconds 0.4]

One thread. From marginals [R, 15, k] as tensors, k = the budget, to what a verify of the engine takes: token ids,
positions and the [n + 1, n + 1] bool mask, request by request. The plain form is what the paper's description turns
into without a second thought: a heap of node objects, each with its path's score and parent; children by token in
dictionaries, as a walk wants them; the mask a loop that copies the parent's row. "plain, lists" takes the worst out of
it: no node objects, marginals as lists, the mask in a NumPy array. All three must agree on every tree, and are measured
in turn, so that whatever else the machine does hits all of them. Times are process CPU time: the least of many repeats.
Marginals are synthetic: at each depth the r-th token has a probability like r to the power of −1.2 to −4.2, less steep
the deeper, so that some depths are nearly certain and others open.
"""

from __future__ import annotations

import argparse
import heapq
import os
import platform
from collections.abc import Callable
from time import process_time_ns

import numpy as np
import torch
from torch import Tensor

from ddscope_kernels import ancestor_mask, build_tree

DEPTHS = 15
VOCAB = 49_152
Built = tuple[list[int], list[int], Tensor, list[int]]
"""ids [n + 1], positions [n + 1], mask [n + 1, n + 1], parents [n]."""
ROOT, BASE = 7, 100


def ours(logprobs: Tensor, ids: Tensor, budget: int) -> Built:
    """What the engine does."""
    tree = build_tree(logprobs, ids, budget)
    positions = [BASE + depth for depth in tree.depths]
    return [ROOT, *tree.tokens], positions, ancestor_mask(tree.parents), tree.parents


class Node:
    """A node of the plain form: where it hangs, what it is, how likely its path is."""

    def __init__(self, parent: int, depth: int, rank: int, score: Tensor) -> None:
        self.parent, self.depth, self.rank, self.score = parent, depth, rank, score

    def __lt__(self, other: Node) -> bool:
        if self.score != other.score:
            return bool(self.score > other.score)
        return (self.depth, self.rank, self.parent) < (other.depth, other.rank, other.parent)


def plain(logprobs: Tensor, ids: Tensor, budget: int) -> Built:
    """The paper's description as it stands, in tensors."""
    probs = logprobs.double()
    heap = [Node(0, 1, 0, probs[0, 0])]
    nodes: list[Node] = []
    scores = [torch.tensor(0.0, dtype=torch.float64)]
    children: list[dict[int, int]] = [{}]
    while heap and len(nodes) < budget:
        node = heapq.heappop(heap)
        nodes.append(node)
        scores.append(node.score)
        children.append({})
        children[node.parent][int(ids[node.depth - 1, node.rank])] = len(nodes)
        if node.rank + 1 < probs.shape[1]:
            score = scores[node.parent] + probs[node.depth - 1, node.rank + 1]
            heapq.heappush(heap, Node(node.parent, node.depth, node.rank + 1, score))
        if node.depth < len(probs):
            heapq.heappush(heap, Node(len(nodes), node.depth + 1, 0, node.score + probs[node.depth, 0]))
    mask = torch.zeros(len(nodes) + 1, len(nodes) + 1, dtype=torch.bool)
    mask[0, 0] = True
    for number, node in enumerate(nodes, start=1):
        mask[number] = mask[node.parent]
        mask[number, number] = True
    tokens = [ROOT, *(int(ids[node.depth - 1, node.rank]) for node in nodes)]
    positions = [BASE, *(BASE + node.depth for node in nodes)]
    return tokens, positions, mask, [node.parent for node in nodes]


def plain_lists(logprobs: Tensor, ids: Tensor, budget: int) -> Built:
    """The same without node objects and tensors in the loop, the mask in NumPy."""
    probs, names = logprobs.tolist(), ids.tolist()
    heap = [(-probs[0][0], 1, 0, 0)]
    tokens, parents, depths, scores = [ROOT], [0], [0], [0.0]
    children: list[dict[int, int]] = [{}]
    while heap and len(tokens) <= budget:
        cost, depth, rank, parent = heapq.heappop(heap)
        number = len(tokens)
        tokens.append(names[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        scores.append(-cost)
        children.append({})
        children[parent][names[depth - 1][rank]] = number
        if rank + 1 < len(probs[0]):
            heapq.heappush(heap, (-(scores[parent] + probs[depth - 1][rank + 1]), depth, rank + 1, parent))
        if depth < len(probs):
            heapq.heappush(heap, (-(scores[number] + probs[depth][0]), depth + 1, 0, number))
    mask = np.zeros((len(tokens), len(tokens)), dtype=np.bool_)
    mask[0, 0] = True
    for number in range(1, len(tokens)):
        mask[number, :number] = mask[parents[number], :number]
        mask[number, number] = True
    return tokens, [BASE + depth for depth in depths], torch.from_numpy(mask), parents[1:]


FORMS: dict[str, Callable[[Tensor, Tensor, int], Built]] = {"ours": ours, "plain, lists": plain_lists, "plain": plain}


def marginals(requests: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """[R, 15, k] log-probabilities, descending, and ids."""
    depth = torch.arange(DEPTHS) / DEPTHS
    steep = 1.2 + 3 * torch.rand(requests, DEPTHS, 1, generator=generator) * (1 - 0.7 * depth[:, None])
    logits = -steep * torch.arange(1, VOCAB + 1).log() + 0.3 * torch.randn(requests, DEPTHS, VOCAB, generator=generator)
    top, ids = logits.log_softmax(-1).topk(k)
    return top, ids


def least_us(requests: int, budget: int, seconds: float) -> dict[str, float]:
    """CPU µs a step of `requests` requests by form, the least over repeats in turn; checks that all forms agree."""
    logprobs, ids = marginals(requests, budget, torch.Generator().manual_seed(budget))
    least: dict[str, float] = {}
    spent = dict.fromkeys(FORMS, 0.0)
    while min(spent.values()) < seconds * 1e6:
        for name, form in FORMS.items():
            if spent[name] >= seconds * 1e6:
                continue
            began = process_time_ns()
            built = [form(logprobs[r], ids[r], budget) for r in range(requests)]
            took = (process_time_ns() - began) / 1000
            spent[name] += took
            if name not in least:
                _same(built, [ours(logprobs[r], ids[r], budget) for r in range(requests)])
            least[name] = min(least.get(name, took), took)
    return least


def _same(built: list[Built], wanted: list[Built]) -> None:
    for mine, other in zip(built, wanted, strict=True):
        if not torch.equal(mine[2], other[2]) or (mine[0], mine[1], mine[3]) != (other[0], other[1], other[3]):
            raise AssertionError("two forms built different trees")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=0.4, help="CPU seconds a form and row, at least one repeat")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, load {load:.1f}")
    print(f"CPU µs a step, {DEPTHS} depths, k = budget; × is a plain form over ours\n")
    print(f"{'R':>3} {'budget':>7} {'ours':>9} {'plain, lists':>13} {'×':>6} {'plain':>10} {'×':>6}")
    for requests in args.requests:
        for budget in args.budgets:
            us = least_us(requests, budget, args.seconds)
            lists, whole = us["plain, lists"], us["plain"]
            mine = us["ours"]
            print(
                f"{requests:>3} {budget:>7} {mine:>9.1f} {lists:>13.1f} {lists / mine:>6.1f} "
                f"{whole:>10.1f} {whole / mine:>6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
