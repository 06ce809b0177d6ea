"""The time cursor under any order of events: paused never moves by itself, live is always at the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ddscope.session import Cursor, Mode

RIDS = ("a", "b", "c")


class Growing:
    """A timeline of (rid or None, anomalous) that grows."""

    def __init__(self) -> None:
        self.records: list[tuple[str | None, bool]] = []

    @property
    def n(self) -> int:
        return len(self.records)

    def newest_rid(self) -> str | None:
        return next((rid for rid, _ in reversed(self.records) if rid), None)

    def step_records(self, rid: str) -> Sequence[int]:
        return [i for i, (owner, _) in enumerate(self.records) if owner == rid]

    def anomaly_records(self, rid: str | None = None) -> Sequence[int]:
        return [i for i, (owner, odd) in enumerate(self.records) if odd and (rid is None or owner in (None, rid))]

    def rid_of(self, record: int) -> str | None:
        return self.records[record][0]


class CursorMachine(RuleBasedStateMachine):
    @initialize(records=st.lists(st.tuples(st.sampled_from([*RIDS, None]), st.booleans()), max_size=5))
    def start(self, records: list[tuple[str | None, bool]]) -> None:
        self.timeline = Growing()
        self.timeline.records = list(records)
        self.cursor = Cursor(self.timeline)
        self.came = 0  # while paused

    def shown(self) -> tuple[Any, ...]:
        return self.cursor.rid, self.cursor.record, self.cursor.step_record, self.cursor.at

    @rule(rid=st.sampled_from([*RIDS, None]), odd=st.booleans())
    def record_comes(self, rid: str | None, odd: bool) -> None:
        before, mode = self.shown(), self.cursor.mode
        self.timeline.records.append((rid, odd))
        self.cursor.on_new()
        if mode is Mode.PAUSED:
            self.came += 1
            assert self.shown() == before, "paused means nothing moves"
        assert self.cursor.mode is mode, "records change no mode"

    @rule()
    def pause(self) -> None:
        step, was_live = self.cursor.step_record, self.cursor.is_live
        self.cursor.pause()
        assert self.cursor.mode is Mode.PAUSED and self.cursor.step_record == step
        self.came = 0 if was_live else self.came

    @rule()
    def live(self) -> None:
        self.cursor.live()
        assert self.cursor.mode is Mode.LIVE
        self.came = 0

    def moved_by_hand(self, was_live: bool) -> None:
        if was_live and not self.cursor.is_live:
            self.came = 0

    @rule(by=st.integers(-3, 3))
    def step(self, by: int) -> None:
        was_live, before = self.cursor.is_live, self.cursor.step_record
        rid = self.cursor.rid
        moved = self.cursor.step(by)
        self.moved_by_hand(was_live)
        if not moved:
            assert self.cursor.step_record == before and self.cursor.is_live == was_live
            return
        assert self.cursor.mode is Mode.PAUSED and self.cursor.rid == rid
        assert self.cursor.step_record == self.cursor.record, "a step is a moment of its own"
        if before is not None and self.cursor.step_record is not None:
            assert (self.cursor.step_record - before) * by > 0

    @rule(record=st.integers(-2, 12))
    def to(self, record: int) -> None:
        was_live = self.cursor.is_live
        self.cursor.to(record)
        self.moved_by_hand(was_live)
        if self.timeline.n:
            assert self.cursor.mode is Mode.PAUSED
            assert self.cursor.record == min(max(record, 0), self.timeline.n - 1)

    @rule(direction=st.sampled_from([-1, 1]), everywhere=st.booleans())
    def anomaly(self, direction: int, everywhere: bool) -> None:
        was_live, before = self.cursor.is_live, self.shown()
        here = self.cursor.step_record if was_live and self.cursor.step_record is not None else self.cursor.record
        rid = None if everywhere else self.cursor.rid
        expected = [
            i for i in self.timeline.anomaly_records(rid) if (i - (-1 if here is None else here)) * direction > 0
        ]
        self.cursor.anomaly(direction, everywhere=everywhere)
        self.moved_by_hand(was_live)
        if expected:
            assert self.cursor.record == (expected[0] if direction > 0 else expected[-1])
        else:
            assert self.shown() == before

    @rule(rid=st.sampled_from([*RIDS, None]))
    def pick(self, rid: str | None) -> None:
        mode = self.cursor.mode
        self.cursor.pick(rid)
        assert self.cursor.mode is mode and self.cursor.picked == rid
        if rid is not None:
            assert self.cursor.rid == rid

    @invariant()
    def live_is_at_the_end_and_paused_counts(self) -> None:
        cursor, timeline = self.cursor, self.timeline
        if cursor.is_live:
            assert cursor.at is None and cursor.pending == 0
            assert cursor.record == (timeline.n - 1 if timeline.n else None)
            steps = timeline.step_records(cursor.rid) if cursor.rid else []
            assert cursor.step_record == (steps[-1] if steps else None)
            assert cursor.rid == (cursor.picked or timeline.newest_rid())
        else:
            assert cursor.pending == self.came
            assert cursor.at is not None

    @invariant()
    def the_step_shown_is_the_requests_last_by_the_moment(self) -> None:
        cursor = self.cursor
        if cursor.rid is None or cursor.record is None:
            assert cursor.step_record is None
            return
        steps = self.timeline.step_records(cursor.rid)
        place = bisect_right(steps, cursor.record) - 1
        assert cursor.step_record == (steps[place] if place >= 0 else None)


CursorMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCursorMachine = CursorMachine.TestCase
