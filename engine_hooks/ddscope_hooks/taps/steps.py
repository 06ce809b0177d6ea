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

Parts = Mapping[str, Sequence[Any]]


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


def steps(run: Pass, rows: Sequence[Row], parts: Parts) -> Iterator[tuple[str, dict[str, Any]]]:
    """A `step` for each row. parts: flat lists of all rows, in the order of the slots."""
    for row in rows:
        yield "step", step(run, row, parts)


def step(run: Pass, row: Row, parts: Parts) -> dict[str, Any]:
    """Fields of one step. Called for each request of each pass, beside the server's own thread: every µs counts."""
    fields: dict[str, Any] = {
        "rid": row.rid,
        "step": row.step,
        "batch": [row.slot, run.size],
        "algorithm": run.algorithm,
        "rank": run.rank,
        "base": row.base,
    }
    if row.root is not None:
        fields["root"] = row.root
    if len(row.run) == row.length:
        fields["bonus"] = row.run[-1]
    fields["emitted"] = row.emitted
    flags: dict[str, Any] = {}
    if run.graph is not None:
        flags["graph"] = run.graph
    if run.overlap is not None:
        flags["overlap"] = run.overlap
    flags["sampled"] = row.sampled
    if len(row.emitted) < row.length:
        flags["truncated"] = True
    if run.tree:
        bad = _nodes(run, row, parts, fields)
        if bad:
            flags["nonfinite"] = {"target": bad}
    elif run.chain or run.n == 1:
        fields["path"] = list(range(row.length))
    fields["flags"] = flags
    if run.times:
        fields["time"], fields["time_domain"] = run.times, run.domain
    if run.redact == "ids":
        _without_ids(fields)
    return fields


def _part(run: Pass, row: Row, parts: Parts, name: str, width: int) -> Sequence[Any] | None:
    """`width` values of this row; None when the part is not there or is of another size."""
    values = parts.get(name)
    if values is None or len(values) != width * run.size:
        return None
    return values[width * row.slot : width * (row.slot + 1)]


def _nodes(run: Pass, row: Row, parts: Parts, fields: dict[str, Any]) -> int:
    """Tree, target and path, as far as they are known. Returns how many nodes have no finite logit."""
    n = run.n
    tokens: Sequence[Any] | None = [row.root] if n == 1 else _part(run, row, parts, "draft", n)
    parents, kept = _shape(run, row, parts)
    if run.padded and kept is not None and parents is not None and tokens is not None:
        kept = trees.without_repeats(kept, parents, tokens)
    if tokens is not None and parents is not None and kept is not None and (n > 1 or row.root is not None):
        fields["root"] = tokens[0]
        fields["tree"] = _tree(run, row, parts, tokens, parents, kept)
    path = _path(run, row, parts, tokens, parents, kept)
    if path is not None:
        fields["path"] = path
    return _target(run, row, parts, kept, path, fields)


def _shape(run: Pass, row: Row, parts: Parts) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    """(parents, nodes that hang at the root), as far as they are known."""
    n = run.n
    parents = _part(run, row, parts, "parents", n)
    if parents is None:
        child, sibling = _part(run, row, parts, "next", n), _part(run, row, parts, "sibling", n)
        if child is not None and sibling is not None:
            return trees.shape_of_links(tuple(child), tuple(sibling))
        if run.chain or n == 1:
            return trees.chain(n), range(n)
        mask = _part(run, row, parts, "mask", n * n)
        return (None, None) if mask is None else trees.shape_of_mask(bytes(mask), n)
    return parents, trees.reachable(parents)


def _tree(
    run: Pass, row: Row, parts: Parts, tokens: Sequence[int], parents: Sequence[int], kept: Sequence[int]
) -> dict[str, Any]:
    n = run.n
    whole = len(kept) == n  # nothing is left out, so nothing is renumbered
    tree: dict[str, Any] = {"budget": n - 1}
    if whole:
        tree["tokens"], tree["parents"] = tokens[1:], parents[1:]
    else:
        place = {node: at for at, node in enumerate(kept)}
        tree["tokens"] = [tokens[i] for i in kept[1:]]
        tree["parents"] = [place[parents[i]] for i in kept[1:]]
    positions = _part(run, row, parts, "positions", n)
    if positions is not None:
        tree["positions"] = positions if whole else [positions[i] for i in kept]
    mask = _part(run, row, parts, "mask", n * n)
    if mask is not None:
        tree["mask"] = trees.mask_rows(mask, n, kept)
    return tree


def _path(
    run: Pass,
    row: Row,
    parts: Parts,
    tokens: Sequence[int] | None,
    parents: Sequence[int] | None,
    kept: Sequence[int] | None,
) -> list[int] | None:
    """Nodes from the root, numbered as in the tree that is written."""
    n, length = run.n, row.length
    if n == 1 or (run.chain and kept is None):
        return list(range(length))
    if kept is None:
        return None
    nodes: list[int] | None
    index = parts.get("accept_index")
    if index and not len(index) % run.size:
        wide, first = len(index) // run.size, row.slot * n
        nodes = [i - first for i in index[wide * row.slot : wide * row.slot + min(length, wide)]]
    elif run.chain:
        nodes = list(range(length))
    else:
        nodes = trees.walk(tokens, parents, row.run[:-1]) if tokens is not None and parents is not None else None
    if nodes is None or len(nodes) != length or not length:
        return None
    if len(kept) == n:
        return nodes if min(nodes) >= 0 and max(nodes) < n else None
    place = {node: at for at, node in enumerate(kept)}
    return [place[node] for node in nodes] if all(node in place for node in nodes) else None


def _target(
    run: Pass,
    row: Row,
    parts: Parts,
    kept: Sequence[int] | None,
    path: list[int] | None,
    fields: dict[str, Any],
) -> int:
    """What the target chose. Returns how many nodes have no finite logit.

    Of a sampled step the likeliest tokens are no choice: they are told only with top-k asked for.
    """
    n, k = run.n, run.topk
    ids, best = _part(run, row, parts, "target", n), _part(run, row, parts, "best", n)
    values, top = (_part(run, row, parts, name, n * k) if k else None for name in ("topk_values", "topk_ids"))
    if values is not None and top is not None:
        best, ids = values[::k], top[::k] if ids is None else ids
    bad = 0 if best is None else n - sum(map(math.isfinite, best))
    if ids is None and n == 1 and not row.sampled and row.run:
        ids = [row.run[-1]]
    if ids is None or kept is None or (row.sampled and not k):
        return bad
    fields["target"] = {"ids": ids if len(kept) == n else [ids[i] for i in kept]}
    lse = _part(run, row, parts, "lse", n)
    if values is not None and top is not None and lse is not None:
        fields["target"].update(_likeliest(k, values, top, lse, kept, path))
    return bad


def _likeliest(
    k: int,
    values: Sequence[float],
    top: Sequence[int],
    lse: Sequence[float],
    kept: Sequence[int],
    path: list[int] | None,
) -> dict[str, Any]:
    """Log-probabilities and lead at every node, and the k likeliest on the path."""
    told: dict[str, Any] = {"logprobs": [_finite(values[i * k] - lse[i]) for i in kept]}
    if k > 1:
        told["gap"] = [_finite(values[i * k] - values[i * k + 1]) for i in kept]
    if path is not None:
        on = [kept[node] for node in path]
        told["topk"] = {
            "ids": [top[i * k : i * k + k] for i in on],
            "logprobs": [[_finite(value - lse[i]) for value in values[i * k : i * k + k]] for i in on],
        }
    return told


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _without_ids(fields: dict[str, Any]) -> None:
    """Leave out whatever a tokenizer turns back into text. Shape, path and counts stay where the format allows it."""
    for name in ("root", "bonus", "emitted", "tree", "target", "draft"):
        fields.pop(name, None)
