"""Ranks that run one model together: their repeated steps are compared, and count nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddscope.diagnose import Finding
from ddscope.diagnose.rank_divergence import WAITING, RankDivergence
from ddscope.model import Record, Step, Tree
from tests.diagnosing import HEALTHY, Stream, grave, run

ID = "hang.rank_divergence"


def told(src: str, step: int, emitted: Sequence[int] | None, rid: str = "r0", **fields: Any) -> Step:
    return Step(
        src=src, seq=step, t=step, mono=step, rid=rid, step=step, emitted=None if emitted is None else list(emitted),
        **fields,
    )  # fmt: skip


def found(records: Iterable[Record]) -> list[Finding]:
    return run(list(records), RankDivergence())


def two_ranks(counts: Sequence[tuple[list[int], list[int]]]) -> list[Record]:
    return [told(f"engine/{rank}", step, ids[rank]) for step, ids in enumerate(counts) for rank in (0, 1)]


def test_ranks_that_agree_are_not_reported() -> None:
    assert found(two_ranks([([1, 2], [1, 2]), ([3], [3])])) == []


def test_the_first_step_that_differs_in_length_is_named_with_both_records() -> None:
    finding = found(two_ranks([([1], [1]), ([2, 3, 4], [2]), ([5], [5, 6])]))[0]
    assert (finding.id, finding.kind, finding.severity, finding.rid) == (ID, "counts", "critical", "r0")
    assert "Ranks 0, 1" in finding.title and "step 1 of request r0" in finding.title
    assert "Rank 0 emitted 3 tokens, rank 1 1." in finding.detail and "2 differ, 2 of them" in finding.detail
    assert [(e.src, e.record) for e in finding.evidence[:2]] == [("engine/0", 2), ("engine/1", 3)]


def test_equal_lengths_and_other_ids_are_another_kind() -> None:
    finding = found(two_ranks([([1, 2, 3], [1, 9, 3])]))[0]
    assert finding.kind == "ids"
    assert "token 2 of the step is 2 against 9" in finding.detail


def test_the_order_in_which_ranks_are_heard_makes_no_difference() -> None:
    records = [
        told("engine/1", 0, [1]),
        told("engine/1", 1, [2]),
        told("engine/0", 0, [1]),
        told("engine/0", 1, [2, 3]),
    ]
    finding = found(records)[0]
    assert "step 1 of request r0" in finding.title
    assert "Rank 0 emitted 2 tokens, rank 1 1." in finding.detail


def test_every_rank_is_compared_with_the_first_one_told() -> None:
    records = [told(f"engine/{rank}", 0, [7] if rank != 2 else [7, 8]) for rank in range(4)]
    assert "Ranks 0, 2 emit" in found(records)[0].title


def test_what_one_rank_did_not_tell_is_compared_with_nothing() -> None:
    records = [told("engine/0", 0, [1]), told("engine/0", 1, [2]), told("engine/1", 1, [2]), told("engine/1", 2, None)]
    assert found(records) == []


def test_where_ids_are_left_out_the_lengths_of_the_paths_are_compared() -> None:
    paths = [told("engine/0", 0, None, path=[0, 1]), told("engine/1", 0, None, path=[0, 2]), told("engine/0", 1, [4])]
    assert found([*paths, told("engine/1", 1, None, path=[0, 1, 2])]) == [], "an id and a path say different things"
    finding = found([*paths, told("engine/0", 2, None, path=[0]), told("engine/1", 2, None, path=[0, 1])])[0]
    assert finding.kind == "counts" and "Rank 0 took a path of 1, rank 1 one of 2." in finding.detail


def test_a_server_that_is_started_again_is_not_another_rank() -> None:
    assert found([told("engine/0", 0, [1]), told("engine/0#2", 0, [2, 3])]) == []
    assert found([told("engine/0#2", 0, [1]), told("engine/1#2", 0, [2, 3])]) != []
    assert found([told("other", 0, [1]), told("engine/1", 0, [2, 3])]) == []


def test_memory_is_bounded_when_nobody_else_tells_the_steps() -> None:
    detector = RankDivergence()
    for step in range(WAITING + 10):
        detector.observe(told("engine/0", step, [1], tree=Tree(budget=1, tokens=[1], parents=[0])))
    assert len(detector._waiting) == WAITING
    detector.observe(told("engine/1", WAITING + 9, [1, 2]))
    assert [finding.kind for finding in detector.findings()] == ["counts"]


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=5), st.randoms())
def test_any_interleaving_of_equal_ranks_is_silent_and_one_changed_step_is_found(
    steps: list[list[int]], random: Any
) -> None:
    streams = [[told(f"engine/{rank}", number, ids) for number, ids in enumerate(steps)] for rank in range(3)]
    changed = random.randrange(len(steps))
    streams[1][changed] = told("engine/1", changed, [*steps[changed], 9])

    def shuffled(streams: list[list[Step]]) -> list[Record]:
        left = [list(stream) for stream in streams]
        out: list[Record] = []
        while any(left):
            out.append(random.choice([stream for stream in left if stream]).pop(0))
        return out

    assert found(shuffled([streams[0], streams[2]])) == []
    finding = found(shuffled(streams))[0]
    assert f"step {changed} of request r0" in finding.title


def test_steps_that_other_ranks_repeat_count_once_in_every_other_rule() -> None:
    """A second rank that tells the counts of a healthy run changes no finding, and a flood is not found twice."""
    alone = Stream().header().run(HEALTHY)
    both: list[Record] = []
    for record in alone.records:
        both.append(record)
        if isinstance(record, Step):
            both.append(told("engine/1", record.step, record.emitted, record.rid))
    assert grave(run(both)) == grave(alone.findings()) == []


def test_a_flood_told_by_two_ranks_is_one_request_with_a_flood() -> None:
    def flood(fields: dict[str, Any]) -> None:
        fields["tree"]["tokens"] = [5, *fields["tree"]["tokens"][1:]]
        fields.update(emitted=[5], bonus=5, root=5)
        fields["target"]["ids"] = [5] * len(fields["target"]["ids"])

    alone = Stream().header().run([0] * 30, change=flood)
    both: list[Record] = []
    for record in alone.records:
        both.append(record)
        if isinstance(record, Step):
            both.append(told("engine/1", record.step, record.emitted, record.rid))
    one, two = alone.findings(), run(both)
    assert [(f.id, f.kind, f.severity, f.rid, f.detail) for f in one] == [
        (f.id, f.kind, f.severity, f.rid, f.detail) for f in two
    ]
