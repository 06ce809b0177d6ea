"""Arithmetic of the sampling controls alone: which passes are admitted, and the bucket of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddscope_hooks.config import Sample
from ddscope_hooks.taps.sampling import Sampling


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 50), st.integers(0, 300))
def test_one_pass_of_n_is_admitted(every: int, passes: int) -> None:
    sampling = Sampling(Sample(every=every), Clock())
    assert sum(sampling.admit() for _ in range(passes)) == passes // every


def test_none_is_admitted_at_0_and_all_at_1() -> None:
    assert not any(Sampling(Sample(every=0), Clock()).admit() for _ in range(9))
    assert all(Sampling(Sample(), Clock()).admit() for _ in range(9))
    assert Sampling(Sample(), Clock()).whole
    assert not any(Sampling(s, Clock()).whole for s in (Sample(every=0), Sample(every=2), Sample(max_bytes_per_s=9)))


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5000)), max_size=200), st.integers(1, 10_000))
def test_no_more_bytes_than_the_bound_but_for_what_was_under_way(events: list[tuple[float, int]], rate: int) -> None:
    """Each event: time goes on, and if a pass is admitted it makes so many bytes."""
    clock = Clock()
    sampling = Sampling(Sample(max_bytes_per_s=rate), clock)
    start, total, largest = clock.now, 0, 0
    for pause, size in events:
        clock.now += pause
        if sampling.admit():
            sampling.wrote(size)
            total, largest = total + size, max(largest, size)
            assert total <= rate * (1 + clock.now - start) + largest + 1e-6


def test_after_a_pause_the_bucket_holds_one_second_not_more() -> None:
    clock = Clock()
    sampling = Sampling(Sample(max_bytes_per_s=100), clock)
    assert sampling.admit()
    sampling.wrote(1000)
    clock.now += 8
    assert not sampling.admit()  # 900 over, 800 filled
    clock.now += 1.5
    assert sampling.admit()
    clock.now += 3600
    assert sampling.admit()
    sampling.wrote(150)
    clock.now += 0.1
    assert not sampling.admit()


@given(st.lists(st.one_of(st.integers(1, 9), st.none()), max_size=50))
def test_what_is_left_out_is_taken_once(events: list[int | None]) -> None:
    """None: it is told."""
    sampling = Sampling(Sample())
    told = 0
    for count in events:
        if count is None:
            told += sampling.take_left_out()
        else:
            sampling.leave_out(count)
    assert told + sampling.take_left_out() == sum(count or 0 for count in events) and sampling.take_left_out() == 0


def test_new_controls_begin_anew() -> None:
    clock = Clock()
    sampling = Sampling(Sample(max_bytes_per_s=10), clock)
    sampling.wrote(1000)
    assert not sampling.admit()
    sampling.set(Sample(every=2, rid="a"))
    assert [sampling.admit() for _ in range(4)] == [False, True, False, True]
    assert sampling.match("abc") and not sampling.match("b")
