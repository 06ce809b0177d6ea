"""Streams and trees that keep the rules have no problems, and one broken rule is found, whatever else is there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddscope.model import Gap, Log, Record, Step, Tree
from ddscope.trace import TraceIndex, TraceWriter, encode, verify
from ddscope.trace.sequence import Sequences
from ddscope.trace.stepcheck import step_problems
from tests.tracing import Clock, header, step

QUIET = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
SOURCES = ["engine/0", "engine/1", "journal/x", "viewer"]


@st.composite
def streams(draw: st.DrawFn) -> list[Record]:
    """Records of several sources: plain ones, gaps of what is missing, gaps of unknown size, engines started anew."""
    clock = Clock()
    records: list[Record] = [header(clock)]
    for _ in range(draw(st.integers(0, 25))):
        src = draw(st.sampled_from(SOURCES))
        what = draw(st.sampled_from(["log", "log", "gap", "unknown", "restart"]))
        if what == "log":
            records.append(Log(**clock(src), message="x"))
        elif what == "gap":
            count = draw(st.integers(1, 9))
            records.append(Gap(**clock(src, skip=count - 1), of=src, count=count, reason="ring_full"))
        elif what == "unknown":
            records.append(Gap(**clock(src), of=draw(st.sampled_from(SOURCES)), count=None, reason="cursor_lost"))
        else:
            clock.seqs["engine/0"] = -1
            records.append(header(clock))
    return records


def write_and_verify(records: list[Record]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        with TraceWriter(path) as writer:
            writer.write_lines(b"".join(map(encode, records)))
        return [problem.text for problem in verify(path).problems]


@settings(QUIET, max_examples=100)
@given(streams())
def test_books_balance_at_every_record(records: list[Record]) -> None:
    index, sequences = TraceIndex(), Sequences()
    for record in records:
        index.extend([encode(record)[:-1]])
        assert sequences.observe(record) is None
        for counters in index.counters.values():
            assert counters.emitted == counters.received + counters.dropped
        assert sequences.totals() == (
            sum(counters.emitted for counters in index.counters.values()),
            sum(counters.dropped for counters in index.counters.values()),
        )
    assert write_and_verify(records) == []


@settings(QUIET, max_examples=100)
@given(streams(), st.data())
def test_a_record_that_vanishes_is_missed(records: list[Record], data: st.DataObject) -> None:
    """Unless it was the last of its source's run: then nobody can know."""
    candidates = [i for i, record in enumerate(records) if record.type != "header"]
    if not candidates:
        return
    at = data.draw(st.sampled_from(candidates))
    same = [record for record in records[at + 1 :] if record.src == records[at].src]
    missed = bool(same) and same[0].type != "header"
    assert bool(write_and_verify(records[:at] + records[at + 1 :])) == missed


@st.composite
def trees(draw: st.DrawFn) -> Step:
    """A valid step over a random tree, with a path from its root."""
    n = draw(st.integers(0, 12))
    parents = [draw(st.integers(0, i)) for i in range(n)]
    path = [0]
    while True:
        children = [i + 1 for i, parent in enumerate(parents) if parent == path[-1]]
        if not children or not draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(children)))
    return step(Clock(), 0, draw(st.integers(0, 500)), 10, parents=parents, tokens=list(range(20, 20 + n)), path=path)


@settings(QUIET, max_examples=150)
@given(trees())
def test_a_valid_tree_has_no_problems(one: Step) -> None:
    assert list(step_problems(one)) == []


@settings(QUIET, max_examples=150)
@given(trees(), st.data())
def test_one_wrong_position_or_mask_bit_is_found(one: Step, data: st.DataObject) -> None:
    tree = one.tree
    assert tree is not None and tree.positions is not None and tree.mask is not None
    row = data.draw(st.integers(0, len(tree.mask) - 1))
    if data.draw(st.booleans()):
        positions = list(tree.positions)
        positions[row] += data.draw(st.sampled_from([-1, 1, 7]))
        wrong = _with(tree, positions=positions)
        word = "positions are not base + depth at 1 of"
    else:
        mask = list(tree.mask)
        mask[row] = format(int(mask[row], 16) ^ 1 << data.draw(st.integers(0, 13)), "x")
        wrong = _with(tree, mask=mask)
        word = "mask is not the ancestor closure at 1 of"
    problems = list(step_problems(_step_with(one, tree=wrong)))
    assert len(problems) == 1 and problems[0].startswith(word)
    assert f"node {row} " in problems[0]


@settings(QUIET, max_examples=150)
@given(trees(), st.data())
def test_a_parent_that_is_no_earlier_node_is_found(one: Step, data: st.DataObject) -> None:
    tree = one.tree
    assert tree is not None
    if not tree.parents:
        return
    i = data.draw(st.integers(0, len(tree.parents) - 1))
    parents = list(tree.parents)
    parents[i] = data.draw(st.integers(i + 1, i + 5) | st.integers(-3, -1))
    problems = list(step_problems(_step_with(one, tree=_with(tree, parents=parents))))
    assert any(f"node {i + 1} has parent {parents[i]}" in problem for problem in problems)


def _with(tree: Tree, **changes: object) -> Tree:
    return Tree(**{name: getattr(tree, name) for name in Tree.__struct_fields__} | changes)  # type: ignore[arg-type]


def _step_with(one: Step, **changes: object) -> Step:
    return Step(**{name: getattr(one, name) for name in Step.__struct_fields__} | changes)  # type: ignore[arg-type]
