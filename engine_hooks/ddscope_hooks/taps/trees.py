"""A tree from what servers keep of it: links from node to child and sibling, or a mask of ancestors. Plain lists only.

Nodes that cannot be reached from the root are padding and are left out; the others keep their order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache


def parents_of_links(first_child: Sequence[int], next_sibling: Sequence[int]) -> list[int]:
    """Parent of each of n nodes, node 0 the root (-1 for it and for what cannot be reached).

    first_child, next_sibling: [n] node numbers, -1 for none. Links that leave the tree or run in a circle end there.
    """
    n = len(first_child)
    parents = [-1] * n
    waiting = [0]
    while waiting:
        node = waiting.pop()
        child = first_child[node]
        while 0 < child < n and parents[child] < 0:
            parents[child] = node
            waiting.append(child)
            child = next_sibling[child]
    return parents


@lru_cache(maxsize=1024)
def shape_of_links(first_child: tuple[int, ...], next_sibling: tuple[int, ...]) -> tuple[list[int], Sequence[int]]:
    """(parents, reachable nodes). The same few trees come again and again; nobody may change what is returned."""
    parents = parents_of_links(first_child, next_sibling)
    return parents, reachable(parents)


def parents_of_mask(mask: Sequence[int], n: int) -> list[int]:
    """Parent of each of n nodes: the largest node before it that it sees; -1 where there is none.

    mask: [n * n] of 0 and 1, row i tells what node i sees.
    """
    parents = [-1] * n
    for i in range(1, n):
        row = mask[i * n : i * n + i]
        parents[i] = max((j for j, sees in enumerate(row) if sees), default=-1)
    return parents


@lru_cache(maxsize=1024)
def shape_of_mask(mask: bytes, n: int) -> tuple[list[int], Sequence[int]]:
    """(parents, reachable nodes) of a mask [n * n]. Nobody may change what is returned."""
    parents = parents_of_mask(mask, n)
    return parents, reachable(parents)


@lru_cache(maxsize=64)
def chain(n: int) -> list[int]:
    """Parents of a chain of n nodes, root included. Nobody may change what is returned."""
    return list(range(-1, n - 1))


def reachable(parents: Sequence[int]) -> Sequence[int]:
    """Nodes that hang at the root, ascending, the root first."""
    n = len(parents)
    if n > 1 and min(parents[1:]) >= 0 and all(map(operator.lt, parents, range(n))):
        return range(n)  # each hangs at one before it
    kept = [True] + [False] * (n - 1)
    for i in range(1, n):
        kept[i] = 0 <= parents[i] < i and kept[parents[i]]
    return [i for i, keep in enumerate(kept) if keep]


def without_repeats(kept: Sequence[int], parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """The kept nodes without those that repeat the token of a sibling before them, and without what hangs at those."""
    seen: set[tuple[int, int]] = set()
    left = [kept[0]]
    for i in kept[1:]:
        key = (parents[i], tokens[i])
        if key not in seen and parents[i] in left:
            seen.add(key)
            left.append(i)
    return left


def walk(tokens: Sequence[int], parents: Sequence[int], accepted: Sequence[int]) -> list[int] | None:
    """The path of the accepted tokens from the root; None when the tree does not have it.

    Only for a source that tells tokens and no nodes; siblings never carry the same token.
    """
    path = [0]
    for token in accepted:
        node = path[-1]
        found = next((i for i in range(node + 1, len(tokens)) if parents[i] == node and tokens[i] == token), None)
        if found is None:
            return None
        path.append(found)
    return path


def mask_rows(mask: Sequence[int], n: int, kept: Sequence[int]) -> list[str]:
    """Hexadecimal rows of a mask [n * n], of the kept nodes only: bit j of row i says that node i sees node j."""
    if len(kept) < n:
        mask = [mask[i * n + j] for i in kept for j in kept]
    return _rows(bytes(mask), len(kept))


@lru_cache(maxsize=1024)
def _rows(mask: bytes, n: int) -> list[str]:
    digits = mask[::-1].translate(_DIGITS)  # from the last row back, each from its last node
    return [format(int(digits[at : at + n], 2), "x") for at in range(n * n - n, -1, -n)]


_DIGITS = b"0" + b"1" * 255
