"""From the host copies of one forward pass to the fields of its `step` records. Runs on the writer thread, on lists.

What a part says is told in `core.Core.put`. A part that is missing, or has another size than the others, leaves its
field out: nothing is made up. Format: docs/trace-format.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddscope_hooks.taps import trees


class Row(NamedTuple):
    """One request of the pass, as the result processor had it.

    base: position of the root. root: its token by the output so far. run: tokens the verify accepted, the bonus last.
    emitted: of these, what the text took. length: of the path (accepted nodes and the root).
    """

    slot: int
    rid: str
    step: int
    base: int
    root: int | None
    run: Sequence[int]
    emitted: Sequence[int]
    length: int
    sampled: bool


@dataclass(slots=True)
class Pass:
    """What all requests of one forward pass share. n: nodes of each tree, root included (1: plain decoding)."""

    algorithm: str
    size: int
    rank: int
    n: int = 1
    chain: bool = False
    padded: bool = False
    topk: int = 0
    graph: bool | None = None
    overlap: bool | None = None
    redact: str = ""
    tree: bool = True  # False on ranks that leave the tree to the first
    times: dict[str, int] = field(default_factory=dict)
    domain: str = "host"


def steps(run: Pass, rows: Sequence[Row], parts: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A `step` for each row. parts: flat lists of all rows, in the order of the slots."""
    for row in rows:
        yield "step", step(run, row, parts)


def step(run: Pass, row: Row, parts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Fields of one step."""
    fields: dict[str, Any] = {
        "rid": row.rid,
        "step": row.step,
        "batch": [row.slot, run.size],
        "algorithm": run.algorithm,
        "rank": run.rank,
        "base": row.base,
        "root": row.root,
        "bonus": row.run[-1] if len(row.run) == row.length else None,
        "emitted": list(row.emitted),
    }
    if run.tree:
        _nodes(run, row, _Cut(run, row, parts), fields)
    elif run.chain or run.n == 1:
        fields["path"] = list(range(row.length))
    flags = {"graph": run.graph, "overlap": run.overlap, "sampled": row.sampled}
    if len(row.emitted) < row.length:
        flags["truncated"] = True
    fields["flags"] = {**flags, **fields.pop("flags", {})}
    if run.times:
        fields["time"], fields["time_domain"] = run.times, run.domain
    if run.redact == "ids":
        _without_ids(fields)
    fields["flags"] = {name: value for name, value in fields["flags"].items() if value is not None}
    return {name: value for name, value in fields.items() if value is not None}


class _Cut:
    """The parts of one row."""

    def __init__(self, run: Pass, row: Row, parts: Mapping[str, Sequence[Any]]) -> None:
        self._run, self._row, self._parts = run, row, parts

    def get(self, name: str, width: int) -> list[Any] | None:
        """`width` values of this row; None when the part is not there or is of another size."""
        values = self._parts.get(name)
        if values is None or len(values) != width * self._run.size:
            return None
        return list(values[width * self._row.slot : width * (self._row.slot + 1)])

    def rest(self, name: str) -> list[Any] | None:
        """The values of this row, however many there are for each."""
        values = self._parts.get(name)
        return None if not values or len(values) % self._run.size else self.get(name, len(values) // self._run.size)


def _nodes(run: Pass, row: Row, cut: _Cut, fields: dict[str, Any]) -> None:
    """Tree, target and path, as far as they are known."""
    n = run.n
    tokens, parents = cut.get("draft", n), _parents(run, cut)
    if n == 1:
        tokens, parents = [row.root], [-1]
    kept = trees.reachable(parents) if parents is not None else None
    if run.padded and kept is not None and parents is not None and tokens is not None:
        kept = trees.without_repeats(kept, parents, tokens)
    if tokens is not None and parents is not None and kept is not None and (n > 1 or row.root is not None):
        fields["root"] = tokens[0]
        fields["tree"] = _tree(n, tokens, parents, kept, cut)
    path = _path(run, row, cut, tokens, parents, kept)
    if path is not None:
        fields["path"] = path
    _target(run, row, cut, kept, path, fields)


def _parents(run: Pass, cut: _Cut) -> list[int] | None:
    n = run.n
    given = cut.get("parents", n)
    if given is not None:
        return given
    child, sibling = cut.get("next", n), cut.get("sibling", n)
    if child is not None and sibling is not None:
        return trees.parents_of_links(child, sibling)
    if run.chain:
        return trees.chain(n)
    mask = cut.get("mask", n * n)
    return trees.parents_of_mask(mask, n) if mask is not None else None


def _tree(n: int, tokens: list[int], parents: list[int], kept: list[int], cut: _Cut) -> dict[str, Any]:
    place = {node: at for at, node in enumerate(kept)}
    tree: dict[str, Any] = {
        "budget": n - 1,
        "tokens": [tokens[i] for i in kept[1:]],
        "parents": [place[parents[i]] for i in kept[1:]],
    }
    positions = cut.get("positions", n)
    if positions is not None:
        tree["positions"] = [positions[i] for i in kept]
    mask = cut.get("mask", n * n)
    if mask is not None:
        tree["mask"] = trees.mask_rows(mask, n, kept)
    return tree


def _path(
    run: Pass, row: Row, cut: _Cut, tokens: list[int] | None, parents: list[int] | None, kept: list[int] | None
) -> list[int] | None:
    """Nodes from the root, numbered as in the tree that is written."""
    n = run.n
    if n == 1 or (run.chain and kept is None):
        return list(range(row.length))
    if kept is None:
        return None
    nodes: list[int] | None
    index = cut.rest("accept_index")
    if index is not None:
        nodes = [i - row.slot * n for i in index[: row.length]]
    elif run.chain:
        nodes = list(range(row.length))
    else:
        nodes = trees.walk(tokens, parents, row.run[:-1]) if tokens is not None and parents is not None else None
    place = {node: at for at, node in enumerate(kept)}
    if nodes is None or len(nodes) != row.length or any(node not in place for node in nodes):
        return None
    return [place[node] for node in nodes]


def _target(
    run: Pass, row: Row, cut: _Cut, kept: list[int] | None, path: list[int] | None, fields: dict[str, Any]
) -> None:
    """What the target chose. For a sampled step its likeliest tokens are no choice: only with top-k asked for."""
    n, k = run.n, run.topk
    ids, best = cut.get("target", n), cut.get("best", n)
    values, top, lse = cut.get("topk_values", n * k), cut.get("topk_ids", n * k), cut.get("lse", n)
    if k and values is not None and top is not None:
        best, ids = values[::k], top[::k] if ids is None else ids
    if best is not None:
        bad = sum(not math.isfinite(value) for value in best)
        if bad:
            fields["flags"] = {"nonfinite": {"target": bad}}
    if ids is None and n == 1 and not row.sampled and row.run:
        ids = [row.run[-1]]
    if ids is None or kept is None or (row.sampled and not k):
        return
    target: dict[str, Any] = {"ids": [ids[i] for i in kept]}
    if k and values is not None and top is not None and lse is not None:
        target["logprobs"] = [_finite(values[i * k] - lse[i]) for i in kept]
        if k > 1:
            target["gap"] = [_finite(values[i * k] - values[i * k + 1]) for i in kept]
        if path is not None:
            on = [kept[node] for node in path]
            target["topk"] = {
                "ids": [top[i * k : i * k + k] for i in on],
                "logprobs": [[_finite(value - lse[i]) for value in values[i * k : i * k + k]] for i in on],
            }
    fields["target"] = target


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _without_ids(fields: dict[str, Any]) -> None:
    """Leave out whatever a tokenizer turns back into text. Shape, path and counts stay where the format allows it."""
    for name in ("root", "bonus", "emitted", "tree", "target", "draft"):
        fields.pop(name, None)
