"""Checks of one step's tree: structure, positions, mask and path. Pure functions over records; no state, no findings.

`audit` is the fast way through a sound step (every step of a healthy run); only what is wrong gets classified. The
kinds of one step are a set, because small trees cannot tell faults apart: in a tree of depth 1, "sees its siblings"
and "sees everything before it" are the same rows. The run's kind is what all bad steps have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from operator import add, le, or_

from ddscope.diagnose.words import listed, plural
from ddscope.model import Step, Tree

TABLE = 1025
TOKEN_BITS = 40
_PARENT_KEYS = [node << TOKEN_BITS for node in range(TABLE)]
_BITS = [1 << node for node in range(1, TABLE)]
"""Made once: shifting for every node of every step is most of what the checks would cost."""
MAX_BITS = (1 << 4096) - 1
"""Nodes looked at when a bad row is put in words."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one step.

    area:  structure, positions, mask or path.
    kinds: every kind it could be.
    text:  the first place where it shows.
    shift: by how much a position is off there.
    """

    area: str
    kinds: frozenset[str]
    text: str
    shift: int = 0


@dataclass(slots=True)
class Audit:
    """What was looked at in one step, and what was wrong with it."""

    positions: bool = False
    mask: bool = False
    greedy_path: bool = False
    problems: list[Problem] = field(default_factory=list)


def problem(area: str, kind: str, text: str) -> Problem:
    """A problem with a single possible kind."""
    return Problem(area, frozenset((kind,)), text)


def audit(step: Step, greedy: bool) -> Audit | None:
    """Checks a step that carries a tree; None when it carries none.

    greedy: the step is known to have chosen by argmax, so its path must follow `target.ids`.
    """
    tree = step.tree
    if tree is None:
        return None
    result = Audit()
    parents, tokens = tree.parents, tree.tokens
    size = len(parents)
    if len(tokens) != size or (size and (min(parents) < 0 or not all(map(le, parents, range(size))))):
        result.problems.append(_broken_structure(tree))
        return result  # the rest would only say the same in other words
    if len(edge_keys(parents, tokens)) != size:
        result.problems.extend(_duplicates(tree))
    if size > tree.budget:
        text = f"{plural(size, 'node')} for a budget of {tree.budget:,}"
        result.problems.append(problem("structure", "structure.budget", text))
    if tree.positions is not None:
        result.positions = True
        base = step.base
        if base is None and tree.positions:
            base = tree.positions[0]  # a shift of everything cannot be seen then
        if not sound_positions(tree.positions, parents, base):
            result.problems.append(classify_positions(tree.positions, closure(parents, base or 0)[0]))
    if tree.mask is not None:
        result.mask = True
        _check_mask(tree.mask, parents, result)
    if step.path is not None:
        _check_path(step, tree, greedy, result)
    return result


def edge_keys(parents: list[int], tokens: list[int]) -> set[int]:
    """A number for each (parent, token): fewer than nodes where siblings share a token, or where numbers collide."""
    shifted = _PARENT_KEYS if len(parents) < TABLE else [node << TOKEN_BITS for node in range(len(parents))]
    return set(map(add, map(shifted.__getitem__, parents), tokens))


def sound_positions(positions: list[int], parents: list[int], base: int | None) -> bool:
    """Whether the root's position is base, and every other one its parent's + 1. Parents must come first."""
    if len(positions) != len(parents) + 1 or positions[0] != base:
        return False
    return positions[1:] == [positions[parent] + 1 for parent in parents]


def sound_mask(given: list[int], parents: list[int]) -> bool:
    """Whether every row is its parent's and the node's own bit: the ancestor closure. Parents must come first."""
    if len(given) != len(parents) + 1 or given[0] != 1:
        return False
    bits = _BITS if len(parents) < TABLE else [1 << node for node in range(1, len(given))]
    return given[1:] == list(map(or_, map(given.__getitem__, parents), bits))


def closure(parents: list[int], base: int) -> tuple[list[int], list[int]]:
    """Sound positions and mask rows (bit sets), [n + 1] each, root first. Parents must come first."""
    positions, rows = [base], [1]
    for node, parent in enumerate(parents, 1):
        positions.append(positions[parent] + 1)
        rows.append(rows[parent] | 1 << node)
    return positions, rows


def _broken_structure(tree: Tree) -> Problem:
    """Parents that do not come first, or arrays of unequal length: nothing else can be asked of such a tree."""
    for number, parent in enumerate(tree.parents):
        if not 0 <= parent <= number:
            text = f"node {number + 1} has parent {parent}, which does not come before it"
            return problem("structure", "structure.parents", text)
    text = f"{plural(len(tree.tokens), 'token')} but {plural(len(tree.parents), 'parent')}"
    return problem("structure", "structure.lengths", text)


def _check_mask(mask: list[str], parents: list[int], result: Audit) -> None:
    try:
        given = list(map(int, mask, repeat(16)))
    except ValueError:
        result.problems.append(problem("mask", "mask.unreadable", "a row is not hexadecimal"))
        return
    if not sound_mask(given, parents):
        result.problems.append(classify_mask(given, closure(parents, 0)[1], parents))


def _duplicates(tree: Tree) -> list[Problem]:
    """The first pair of siblings with one token, if there is one."""
    seen: dict[tuple[int, int], int] = {}
    for node, edge in enumerate(zip(tree.parents, tree.tokens, strict=True), 1):
        if edge in seen:
            text = f"nodes {seen[edge]} and {node} are the same token {edge[1]} under node {edge[0]}"
            return [problem("structure", "structure.duplicates", text)]
        seen[edge] = node
    return []


def classify_positions(given: list[int], expected: list[int]) -> Problem:
    """Names how positions differ from base + depth. expected: [n + 1], root first."""
    if len(given) != len(expected):
        text = f"{plural(len(given), 'position')} for {plural(len(expected), 'node')} with the root"
        return problem("positions", "positions.lengths", text)
    base = expected[0]
    kinds: set[str] = set()
    shifts = {g - e for g, e in zip(given, expected, strict=True)}
    if len(shifts) == 1:
        kinds.add("positions.shifted")
    if given[0] == base and len({g - e for g, e in zip(given[1:], expected[1:], strict=True)}) == 1:
        kinds.add("positions.shifted_drafted")
    if given == list(range(base, base + len(given))):
        kinds.add("positions.flat")
    if len(set(given[1:])) == 1:
        kinds.add("positions.same")
    node = next(i for i, (g, e) in enumerate(zip(given, expected, strict=True)) if g != e)
    text = f"node {node} was given position {given[node]:,}, base + depth is {expected[node]:,}"
    return Problem("positions", frozenset(kinds or {"positions.wrong"}), text, given[node] - expected[node])


def classify_mask(given: list[int], rows: list[int], parents: list[int]) -> Problem:
    """Names how mask rows differ from the ancestor closure. rows: [n + 1] bit sets, root first."""
    if len(given) != len(rows):
        text = f"{plural(len(given), 'row')} for {plural(len(rows), 'node')} with the root"
        return problem("mask", "mask.lengths", text)
    extra = [g & ~r for g, r in zip(given, rows, strict=True)]
    missing = [r & ~g for g, r in zip(given, rows, strict=True)]
    kinds: set[str] = set()
    if not any(missing):
        near = _sibling_bits(parents)
        full = (1 << len(rows)) - 1
        if all(e & ~s == 0 for e, s in zip(extra, near, strict=True)):
            kinds.add("mask.siblings")
        if all(g == (1 << (i + 1)) - 1 for i, g in enumerate(given)):
            kinds.add("mask.lower_triangular")
        if all(g == full for g in given):
            kinds.add("mask.full")
    elif not any(extra):
        kinds.add("mask.missing")
    node = next(i for i, (g, r) in enumerate(zip(given, rows, strict=True)) if g != r)
    parts = []
    if extra[node]:
        parts.append(f"sees {_nodes(extra[node])}, which it does not descend from")
    if missing[node]:
        parts.append(f"does not see {_nodes(missing[node])}, which it descends from")
    return Problem("mask", frozenset(kinds or {"mask.wrong"}), f"node {node} " + " and ".join(parts))


def _sibling_bits(parents: list[int]) -> list[int]:
    """Per node, its siblings and those of its ancestors, as a bit set: the latter leak through inherited rows."""
    children = [0] * (len(parents) + 1)
    for node, parent in enumerate(parents, 1):
        children[parent] |= 1 << node
    bits = [0]
    for node, parent in enumerate(parents, 1):
        bits.append(bits[parent] | (children[parent] & ~(1 << node)))
    return bits


def _nodes(bits: int) -> str:
    near = bits & MAX_BITS  # a row can claim any number of nodes
    nodes = [i for i in range(near.bit_length()) if near >> i & 1]
    if not nodes:
        return "nodes far beyond the tree"
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {listed(nodes, 6)}"


def _check_path(step: Step, tree: Tree, greedy: bool, result: Audit) -> None:
    """The path is one, what was committed is on it, and a greedy one follows the target's choices to their end."""
    path = step.path or []
    found = _broken_path(path, tree.parents)
    if found is not None:
        result.problems.append(found)
        return
    flags = step.flags
    truncated = flags is not None and flags.truncated is True
    if step.emitted is not None and step.bonus is not None:
        committed = [tree.tokens[node - 1] for node in path[1:]]
        committed.append(step.bonus)
        emitted = step.emitted
        # A stop inside the step cuts the end off, and the engine may have closed the path there.
        if emitted != committed and not (truncated and emitted == committed[: len(emitted)]):
            text = f"emitted {listed(emitted)}, the path and the bonus are {listed(committed)}"
            result.problems.append(problem("path", "path.emitted", text))
    target = step.target
    if not greedy or target is None or len(target.ids) != len(tree.parents) + 1:
        return
    if flags is not None and flags.nonfinite and flags.nonfinite.get("target"):
        return  # an argmax over NaN is not a choice
    result.greedy_path = True
    result.problems.extend(_choices(path, tree, target.ids, step.bonus, truncated))


def _broken_path(path: list[int], parents: list[int]) -> Problem | None:
    if not path or path[0] != 0:
        return problem("path", "path.broken", f"the path {path[:8]} does not start at the root")
    last = 0
    for node in path[1:]:
        if not 1 <= node <= len(parents) or parents[node - 1] != last:
            text = f"node {node} of the path {listed(path)} is no child of node {last}"
            return problem("path", "path.broken", text)
        last = node
    return None


def _choices(path: list[int], tree: Tree, choices: list[int], bonus: int | None, truncated: bool) -> list[Problem]:
    """Where a path departs from the target's choices. A truncated step is not asked why it went no further."""
    tokens = tree.tokens
    at = 0
    for node in path[1:]:
        if tokens[node - 1] != choices[at]:
            text = f"node {node} (token {tokens[node - 1]}) was accepted, the target chose {choices[at]} at node {at}"
            return [problem("path", "path.taken", text)]
        at = node
    if truncated:
        return []
    found = []
    choice = choices[at]
    if choice in tokens and (at, choice) in zip(tree.parents, tokens, strict=True):
        text = f"a child of node {at} is the target's choice {choice}, and was not accepted"
        found.append(problem("path", "path.not_taken", text))
    if bonus is not None and bonus != choice:
        text = f"the bonus is {bonus}, the target chose {choice} at node {at}"
        found.append(problem("path", "path.bonus", text))
    return found
