"""Invariants of one step record, and of a step after its predecessor. Sentences out, no files.

What the fields mean is in docs/trace-format.md. Whether the numbers are good (acceptance, NaN) is diagnosis, not this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ddscope.model import Draft, Request, Step, Target, Tree

_SHOWN = 3  # places of one kind that a sentence names; the rest is counted


def step_problems(step: Step) -> Iterator[str]:
    """What is wrong inside one step."""
    nodes = None
    if step.tree is not None:
        nodes = len(step.tree.parents)
        yield from _shape_problems(step.tree)
        if not _bad_parents(step.tree):
            yield from _tree_problems(step.tree, step.base)
    if step.draft is not None:
        yield from _draft_problems(step.draft)
    if step.target is not None:
        yield from _target_problems(step.target, nodes, step.path)
    if step.path is not None:
        yield from _path_problems(step.path, step.tree)
        yield from _emitted_problems(step)


def follow_problems(before: Step, step: Step) -> Iterator[str]:
    """What does not follow from the step before it of the same request."""
    if before.base is not None and before.path is not None and step.base is not None:
        expected = before.base + len(before.path)
        if step.base != expected:
            yield (
                f"base is {step.base}, but step {before.step} at base {before.base} with a path of "
                f"{len(before.path)} leads to {expected}"
            )
    if before.bonus is not None and step.root is not None and step.root != before.bonus:
        yield f"root is token {step.root}, but the bonus of step {before.step} is token {before.bonus}"


def first_problems(request: Request, step: Step) -> Iterator[str]:
    """What does not follow from the request, for its step 0."""
    if step.base is not None and step.base != request.prompt_len:
        yield f"base of the first step is {step.base}, but the prompt has {request.prompt_len} tokens"


def token_ids(step: Step) -> set[int]:
    """Every token id that a step refers to. Ids below 0 are padding and no tokens."""
    ids: set[int] = set()
    for one in (step.root, step.bonus):
        if one is not None:
            ids.add(one)
    ids.update(step.emitted or ())
    if step.tree is not None:
        ids.update(step.tree.tokens)
    if step.draft is not None:
        for row in step.draft.ids:
            ids.update(row)
    if step.target is not None:
        ids.update(step.target.ids)
        for row in step.target.topk.ids if step.target.topk is not None else ():
            ids.update(row)
    return {number for number in ids if number >= 0}


def _bad_parents(tree: Tree) -> list[int]:
    """Indices i whose parents[i] is not an earlier node (0 … i)."""
    return [i for i, parent in enumerate(tree.parents) if not 0 <= parent <= i]


def _shape_problems(tree: Tree) -> Iterator[str]:
    n = len(tree.parents)
    if len(tree.tokens) != n:
        yield f"tree has {len(tree.tokens)} tokens but {n} parents"
    if tree.logprobs is not None and len(tree.logprobs) != n:
        yield f"tree has {len(tree.logprobs)} logprobs for {n} nodes"
    for name, rows in (("positions", tree.positions), ("mask rows", tree.mask)):
        if rows is not None and len(rows) != n + 1:
            yield f"tree has {len(rows)} {name}, where {n} nodes and the root need {n + 1}"
    if n > tree.budget:
        yield f"tree has {n} nodes over its budget of {tree.budget}"
    bad = _bad_parents(tree)
    if bad:
        told = _places([f"node {i + 1} has parent {tree.parents[i]}" for i in bad])
        yield f"tree has a parent that does not come before its child: {told}"


def _tree_problems(tree: Tree, base: int | None) -> Iterator[str]:
    """Of a tree whose parents are in order: siblings, positions, mask."""
    depth, closure = [0], [1]
    for i, parent in enumerate(tree.parents):
        depth.append(depth[parent] + 1)
        closure.append(closure[parent] | 1 << (i + 1))
    seen: set[tuple[int, int]] = set()
    twice = []
    for i, key in enumerate(zip(tree.parents, tree.tokens, strict=False)):
        if key in seen:
            twice.append(i)
        seen.add(key)
    if twice:
        told = _places([f"node {i + 1} repeats token {tree.tokens[i]}" for i in twice])
        yield f"tree has siblings of the same token: {told}"
    if tree.positions is not None and base is not None and len(tree.positions) == len(depth):
        wrong = [i for i, position in enumerate(tree.positions) if position != base + depth[i]]
        if wrong:
            i, positions = wrong[0], tree.positions
            yield (
                f"positions are not base + depth at {len(wrong)} of {len(depth)} nodes: node {i} at depth {depth[i]} "
                f"has position {positions[i]}, not {base + depth[i]}"
            )
    if tree.mask is not None and len(tree.mask) == len(depth):
        yield from _mask_problems(tree.mask, closure)


def _mask_problems(mask: Sequence[str], closure: Sequence[int]) -> Iterator[str]:
    rows = [_hex(row) for row in mask]
    unreadable = [i for i, row in enumerate(rows) if row is None]
    if unreadable:
        yield f"mask row {unreadable[0]} is no hexadecimal number ({len(unreadable)} such rows)"
    wrong = [i for i, row in enumerate(rows) if row is not None and row != closure[i]]
    if wrong:
        i = wrong[0]
        extra, missing = (rows[i] or 0) & ~closure[i], closure[i] & ~(rows[i] or 0)
        faults = [f"sees node {_lowest(extra)}, which is no ancestor"] if extra else []
        faults += [f"does not see its ancestor {_lowest(missing)}"] if missing else []
        told = " and ".join(faults)
        yield f"mask is not the ancestor closure at {len(wrong)} of {len(closure)} rows: node {i} {told}"


def _draft_problems(draft: Draft) -> Iterator[str]:
    depths = len(draft.ids)
    tables: tuple[tuple[str, Sequence[Sequence[object]]], ...] = (("ids", draft.ids), ("logprobs", draft.logprobs))
    for name, rows in tables:
        if len(rows) != depths:
            yield f"draft has {len(rows)} rows of {name} for {depths} depths"
        wide = [d for d, row in enumerate(rows) if len(row) != draft.k]
        if wide:
            yield f"draft has {len(rows[wide[0]])} {name} at depth {wide[0] + 1}, where k is {draft.k}"
    for name, column in (("logz", draft.logz), ("entropy", draft.entropy)):
        if column is not None and len(column) != depths:
            yield f"draft has {len(column)} values of {name} for {depths} depths"
    rising = [d for d, row in enumerate(draft.logprobs) if _rises(row)]
    if rising:
        yield f"draft logprobs do not descend at depth {_places([str(d + 1) for d in rising])}"


def _rises(row: Sequence[float | None]) -> bool:
    last = math.inf
    for value in row:
        if value is None:
            continue
        if value > last:
            return True
        last = value
    return False


def _target_problems(target: Target, nodes: int | None, path: Sequence[int] | None) -> Iterator[str]:
    rows = len(target.ids) if nodes is None else nodes + 1
    for name, column in (("ids", target.ids), ("logprobs", target.logprobs), ("gap", target.gap)):
        if column is not None and len(column) != rows:
            yield f"target has {len(column)} values of {name}, where {rows} rows were verified"
    if target.topk is not None:
        ids, logprobs = target.topk.ids, target.topk.logprobs
        if [len(row) for row in ids] != [len(row) for row in logprobs]:
            yield "target.topk has ids and logprobs of different shapes"
        if path is not None and len(ids) != len(path):
            yield f"target.topk has {len(ids)} rows for a path of {len(path)}"


def _path_problems(path: Sequence[int], tree: Tree | None) -> Iterator[str]:
    if not path or path[0] != 0:
        yield "path does not begin at the root (node 0)"
        return
    if tree is None:
        return
    nodes = len(tree.parents)
    for above, node in pairwise(path):
        if not 1 <= node <= nodes:
            yield f"path goes to node {node}, but the tree has nodes 0 to {nodes}"
            return
        if tree.parents[node - 1] != above:
            yield f"path goes from node {above} to node {node}, whose parent is node {tree.parents[node - 1]}"
            return


def _emitted_problems(step: Step) -> Iterator[str]:
    if step.emitted is None or step.path is None:
        return
    emitted, path = len(step.emitted), len(step.path)
    truncated = step.flags is not None and bool(step.flags.truncated)
    if emitted > path:
        yield f"{emitted} tokens emitted on a path of {path}"
    elif emitted < path and not truncated:
        yield f"{emitted} tokens emitted on a path of {path}, and the step is not flagged as truncated"
    elif emitted == path and truncated:
        yield f"the step is flagged as truncated, but all {path} tokens of its path were emitted"


def _hex(row: str) -> int | None:
    try:
        return int(row, 16) if row.isalnum() and row.isascii() else None
    except ValueError:
        return None


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _places(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
