"""The shape of a tree from its parent pointers, whatever they say: parents, depths, and the nodes that hang nowhere."""

from __future__ import annotations

from collections.abc import Sequence


def build_shape(n: int, parents: Sequence[int], problems: list[str]) -> tuple[list[int | None], list[int], list[bool]]:
    """Parent (None: root or orphan), depth and orphan flag of nodes 0..n. What points nowhere is an orphan."""
    parent: list[int | None] = [None] * (n + 1)
    orphan = [False] * (n + 1)
    for node in range(1, n + 1):
        above = parents[node - 1] if node <= len(parents) else None
        if above is None:
            orphan[node] = True
        elif not 0 <= above <= n or above == node:
            problems.append(f"node {node}: its parent {above} is not a node of this tree")
            orphan[node] = True
        else:
            if above > node:
                problems.append(f"node {node}: its parent {above} comes after it")
            parent[node] = above
    children: list[list[int]] = [[] for _ in range(n + 1)]
    for node in range(1, n + 1):
        above = parent[node]
        if above is not None:
            children[above].append(node)
    depth = [0] + [-1] * n
    _fill_depths(0, 0, depth, children)
    for node in range(1, n + 1):
        if orphan[node]:
            _fill_depths(node, 1, depth, children)
    for node in range(1, n + 1):
        if depth[node] < 0:  # in a circle or below one: cut the circle at its first node
            cut = _circle(node, parent)
            problems.append(f"node {cut}: its parents lead back to itself")
            above = parent[cut]
            if above is not None:
                children[above].remove(cut)
            parent[cut], orphan[cut] = None, True
            _fill_depths(cut, 1, depth, children)
    return parent, depth, orphan


def _fill_depths(top: int, level: int, depth: list[int], children: list[list[int]]) -> None:
    stack = [(top, level)]
    while stack:
        node, level = stack.pop()
        depth[node] = level
        stack += [(child, level + 1) for child in children[node]]


def _circle(node: int, parent: list[int | None]) -> int:
    """First node of the circle that the parents of `node` lead into."""
    seen: list[int] = []
    at: int | None = node
    while at is not None and at not in seen:
        seen.append(at)
        at = parent[at]
    return node if at is None else min(seen[seen.index(at) :])
