"""The shape of a tree from its parent pointers, whatever they say, and whether positions and mask fit that shape.

Pure; nothing here raises. Each function adds what cannot be true to the caller's list of problems.
"""

from __future__ import annotations

from collections.abc import Sequence

MASK_LIMIT = 4096  # nodes; a mask is quadratic in them, and a hostile record must not fill the memory


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
    seen: dict[int, None] = {}
    at: int | None = node
    while at is not None and at not in seen:
        seen[at] = None
        at = parent[at]
    walked = list(seen)
    return node if at is None else min(walked[walked.index(at) :])


def position_fits(
    given: Sequence[int] | None, base: int | None, depth: list[int], orphan: list[bool], problems: list[str]
) -> list[bool | None]:
    """Whether each node was given position base + depth; None where nobody can tell."""
    if given is None or base is None:
        return [None] * len(depth)
    fits = [given[i] == base + level if i < len(given) and not orphan[i] else None for i, level in enumerate(depth)]
    wrong = [i for i, fit in enumerate(fits) if fit is False]
    if wrong:
        i = wrong[0]
        problems.append(f"node {i} was given position {given[i]}, expected {base + depth[i]}{_in_all(wrong)}")
    return fits


def mask_fits(
    rows: Sequence[str] | None, parent: list[int | None], depth: list[int], orphan: list[bool], problems: list[str]
) -> list[bool | None]:
    """Whether each node sees its ancestors and itself and nothing else of the tree; None where nobody can tell."""
    fits: list[bool | None] = [None] * len(depth)
    if rows is None:
        return fits
    n = len(depth) - 1
    if n > MASK_LIMIT:
        problems.append(f"the mask of {n:,} nodes was not checked")
        return fits
    sees = [0] * (n + 1)
    for i in sorted(range(n + 1), key=depth.__getitem__):
        above = parent[i]
        sees[i] = (sees[above] if above is not None else 0) | 1 << i
    unreadable = 0
    for i, row in enumerate(rows[: n + 1]):
        bits = _bits(row, n)
        if bits is None:
            unreadable += 1
        elif not orphan[i]:
            fits[i] = bits == sees[i]
    wrong = [i for i, fit in enumerate(fits) if fit is False]
    if wrong:
        problems.append(f"node {wrong[0]} does not see exactly its ancestors and itself{_in_all(wrong)}")
    if unreadable:
        problems.append(f"{unreadable} mask rows are not hexadecimal numbers of {n + 1} bits")
    return fits


def _bits(row: str, n: int) -> int | None:
    try:
        return int(row, 16) if row and len(row) <= n // 4 + 3 else None
    except ValueError:
        return None


def _in_all(wrong: list[int]) -> str:
    return f" ({len(wrong)} nodes in all)" if len(wrong) > 1 else ""
