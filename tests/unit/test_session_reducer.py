"""The reducer is pure: a state says the same whatever was made of it afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddscope.model import Fact, Finish, Gap, Tokens
from ddscope.session.reducer import FinishSeen, State, reduce
from ddscope.session.trail import Trail
from tests.unit.session_support import ENGINE


def fact(seq: int, name: str) -> Fact:
    return Fact(src=ENGINE, seq=seq, t=0, mono=0, name=name, value=seq)


def test_an_older_state_is_left_as_it_was() -> None:
    first = reduce(State(), 0, fact(0, "a"))
    second = reduce(first, 1, fact(1, "a"))
    other = reduce(first, 5, fact(5, "b"))
    assert (len(State().facts), len(first.facts), len(second.facts), len(other.facts)) == (0, 1, 2, 2)
    assert [state.n for state in (first, second, other)] == [1, 2, 6]
    assert (first.facts.keys(), second.facts.keys(), other.facts.keys()) == (["a"], ["a"], ["a", "b"])
    assert [entry.number for state in (second, other) if (entry := state.facts.latest())] == [1, 5]


def test_records_of_other_types_only_move_the_number() -> None:
    state = reduce(State(), 3, Tokens(src=ENGINE, seq=0, t=0, mono=0, ids=[], text=[]))
    assert (state.n, state.facts, len(reduce(state, 4, object()).gaps)) == (4, state.facts, 0)


def test_what_rows_need_at_once_is_kept() -> None:
    finish = Finish(src=ENGINE, seq=0, t=0, mono=0, rid="r", reason="stop", emitted=3, steps=2)
    state = reduce(State(), 0, finish)
    state = reduce(state, 1, Gap(src=ENGINE, seq=5, t=0, mono=0, of=ENGINE, count=4, reason="ring_full"))
    entry = state.finishes.last("r")
    assert entry is not None and entry.value == FinishSeen("stop", 3, 2)
    gap = state.gaps.last(ENGINE)
    assert gap is not None and (gap.number, gap.value) == (1, 4)


entries = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), max_size=12)


@given(entries, entries, st.integers(0, 30))
def test_a_trail_is_a_list_read_as_of_any_record(
    shared: list[tuple[int, str]], more: list[tuple[int, str]], limit: int
) -> None:
    def grow(trail: Trail[int], told: list[tuple[int, str, int]], steps: list[tuple[int, str]]) -> Trail[int]:
        for by, key in steps:
            number = (told[-1][0] if told else 0) + by
            told.append((number, key, len(told)))
            trail = trail.append(*told[-1])
        return trail

    told: list[tuple[int, str, int]] = []
    trail = grow(Trail(), told, shared)
    branch_told = list(told)
    grow(trail, list(told), more)  # somebody else goes on from here first
    branch = grow(trail, branch_told, list(reversed(more)))
    for found, expected in ((trail, told), (branch, branch_told)):
        assert [tuple(found[i]) for i in range(len(found))] == expected
        for bound in (None, limit):
            seen = [entry for entry in expected if bound is None or entry[0] < bound]
            assert found.count(bound) == len(seen)
            assert found.keys(bound) == list(dict.fromkeys(key for _, key, _ in seen))
            latest = found.latest(bound)
            assert (tuple(latest) if latest else None) == (seen[-1] if seen else None)
            for key in "abc":
                own = [entry for entry in seen if entry[1] == key]
                assert found.count_of(key, bound) == len(own)
                last, first = found.last(key, bound), found.first(key, bound)
                assert (tuple(last) if last else None, tuple(first) if first else None) == (
                    (own[-1], own[0]) if own else (None, None)
                )
