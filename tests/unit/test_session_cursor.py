"""The time cursor's transitions, one row a transition."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import pytest

from ddscope.session import Cursor, Mode

LIVE, PAUSED = Mode.LIVE, Mode.PAUSED


class FakeTimeline:
    """Records as letters: `a` and `b` are steps of requests a and b, `A` and `B` anomalous ones, `.` belongs to nobody,
    `x` is an anomaly of nobody."""

    def __init__(self, records: str) -> None:
        self.records = records

    @property
    def n(self) -> int:
        return len(self.records)

    def newest_rid(self) -> str | None:
        steps = [c.lower() for c in self.records if c in "abAB"]
        return steps[-1] if steps else None

    def step_records(self, rid: str) -> Sequence[int]:
        return [i for i, c in enumerate(self.records) if c.lower() == rid]

    def anomaly_records(self, rid: str | None = None) -> Sequence[int]:
        return [i for i, c in enumerate(self.records) if c == "x" or (c in "AB" and rid in (None, c.lower()))]

    def rid_of(self, record: int) -> str | None:
        c = self.records[record].lower()
        return c if c in "ab" else None


# record:   0123456789
RECORDS = "..aabA.bx."
Move = Callable[[Cursor], object]


def add(records: str) -> Move:
    def move(cursor: Cursor) -> None:
        timeline = cursor._timeline
        assert isinstance(timeline, FakeTimeline)
        timeline.records += records
        cursor.on_new()

    return move


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        # moves → (mode, rid, moment, step shown, pending)
        pytest.param([], (LIVE, "b", 9, 7, 0), id="live shows the newest step of the newest active request"),
        pytest.param([add("a")], (LIVE, "a", 10, 10, 0), id="live follows another request when nobody picked one"),
        pytest.param([lambda c: c.pick("b"), add("a")], (LIVE, "b", 10, 7, 0), id="live stays with a picked request"),
        pytest.param([lambda c: c.pick("b"), lambda c: c.pick(None), add("a")], (LIVE, "a", 10, 10, 0), id="unpick"),
        pytest.param([lambda c: c.step(+1)], (LIVE, "b", 9, 7, 0), id="nothing after the newest"),
        pytest.param([lambda c: c.step(-1)], (PAUSED, "b", 4, 4, 0), id="a move backward pauses"),
        pytest.param([lambda c: c.pick("a"), lambda c: c.step(-2)], (PAUSED, "a", 2, 2, 0), id="two back"),
        pytest.param([lambda c: c.step(-9)], (PAUSED, "b", 4, 4, 0), id="backward stops at the first step"),
        pytest.param([Cursor.pause], (PAUSED, "b", 9, 7, 0), id="pause keeps the moment"),
        pytest.param([Cursor.pause, add("ab.")], (PAUSED, "b", 9, 7, 3), id="paused means nothing moves"),
        pytest.param([Cursor.pause, add("ab."), Cursor.live], (LIVE, "b", 12, 11, 0), id="live again"),
        pytest.param(
            [Cursor.pause, add("b"), lambda c: c.step(+1)], (PAUSED, "b", 10, 10, 1), id="forward while paused"
        ),
        pytest.param([Cursor.pause, lambda c: c.step(+1)], (PAUSED, "b", 9, 7, 0), id="forward stops at the last step"),
        pytest.param([Cursor.toggle, Cursor.toggle], (LIVE, "b", 9, 7, 0), id="toggle there and back"),
        pytest.param([lambda c: c.to(3)], (PAUSED, "a", 3, 3, 0), id="to a step of another request"),
        pytest.param(
            [lambda c: c.to(6)], (PAUSED, "b", 6, 4, 0), id="to a log line: the step shown is the last by then"
        ),
        pytest.param([lambda c: c.to(1)], (PAUSED, "b", 1, None, 0), id="to a moment before any step"),
        pytest.param([lambda c: c.to(1), lambda c: c.step(+1)], (PAUSED, "b", 4, 4, 0), id="from there to the first"),
        pytest.param([lambda c: c.to(99)], (PAUSED, "b", 9, 7, 0), id="beyond the end is the end"),
        pytest.param([lambda c: c.to(-5)], (PAUSED, "b", 0, None, 0), id="before the start is the start"),
        pytest.param(
            [lambda c: c.to(6), lambda c: c.pick("a")], (PAUSED, "a", 6, 5, 0), id="same moment, other request"
        ),
        pytest.param(
            [lambda c: c.to(3), lambda c: c.pick("b")], (PAUSED, "b", 4, 4, 0), id="its first when it came later"
        ),
        pytest.param([lambda c: c.to(3), lambda c: c.pick(None)], (PAUSED, "a", 3, 3, 0), id="unpick moves nothing"),
        pytest.param([lambda c: c.anomaly(-1)], (LIVE, "b", 9, 7, 0), id="no anomaly: stays, and stays live"),
        pytest.param(
            [lambda c: c.anomaly(+1)], (PAUSED, "b", 8, 7, 0), id="next anomaly of nobody, after the step shown"
        ),
        pytest.param([lambda c: c.anomaly(-1, everywhere=True)], (PAUSED, "a", 5, 5, 0), id="anomaly of any request"),
        pytest.param([lambda c: c.to(2), lambda c: c.anomaly(+1)], (PAUSED, "a", 5, 5, 0), id="anomaly of the request"),
        pytest.param(
            [lambda c: c.to(2), lambda c: c.anomaly(+1), lambda c: c.anomaly(+1)],
            (PAUSED, "a", 8, 5, 0),
            id="then the tensor",
        ),
        pytest.param([lambda c: c.pick("a"), Cursor.first], (PAUSED, "a", 2, 2, 0), id="first"),
        pytest.param([lambda c: c.to(2), Cursor.last], (PAUSED, "a", 5, 5, 0), id="last"),
        pytest.param(
            [lambda c: c.pick("b"), lambda c: c.to(2), Cursor.live], (LIVE, "a", 9, 5, 0), id="live where one went"
        ),
    ],
)
def test_transition(moves: list[Move], expected: tuple[object, ...]) -> None:
    cursor = Cursor(FakeTimeline(RECORDS))
    for move in moves:
        move(cursor)
    assert (cursor.mode, cursor.rid, cursor.record, cursor.step_record, cursor.pending) == expected


def test_as_of_is_everything_while_live_and_the_moment_while_paused() -> None:
    cursor = Cursor(FakeTimeline(RECORDS))
    assert cursor.at is None
    cursor.to(3)
    assert cursor.at == 3


def test_paused_before_any_record_shows_nothing_that_comes_later() -> None:
    cursor = Cursor(FakeTimeline(""))
    cursor.pause()
    add("aa")(cursor)
    assert (cursor.at, cursor.pending, cursor.step_record) == (-1, 2, None)
    cursor.live()
    assert (cursor.at, cursor.pending, cursor.step_record) == (None, 0, 1)


def test_moves_on_an_empty_timeline_do_nothing() -> None:
    cursor = Cursor(FakeTimeline(""))
    moved = [cursor.step(-1), cursor.to(0), cursor.anomaly(1), cursor.first(), cursor.last(), cursor.pick("q")]
    assert not any(moved[:-1])
    assert (cursor.mode, cursor.record, cursor.step_record) == (LIVE, None, None)


def test_the_answer_says_whether_the_screen_must_be_drawn() -> None:
    cursor = Cursor(FakeTimeline(RECORDS))
    timeline = cursor._timeline
    assert isinstance(timeline, FakeTimeline)
    timeline.records += "."
    assert not cursor.on_new(), "a log line moves no step"
    timeline.records += "b"
    assert cursor.on_new()
    assert cursor.step(-1)
    assert not cursor.to(cursor.record or 0)
    assert bisect_right(timeline.step_records("b"), cursor.record or 0) == 2
