"""The time cursor: an explicit machine of two modes, LIVE and PAUSED, over record numbers.

LIVE follows the newest step of the newest active request, or of the one a person picked. PAUSED moves only when told,
and counts what came meanwhile. It knows no file and no screen: `Timeline` is all it asks.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol


class Mode(enum.Enum):
    """LIVE follows, PAUSED stays."""

    LIVE = "LIVE"
    PAUSED = "PAUSED"


class Timeline(Protocol):
    """What a cursor asks of a store."""

    @property
    def n(self) -> int:
        """Number of records known."""

    def newest_rid(self) -> str | None:
        """The request with the newest step among the open ones, else among all; None without steps."""

    def step_records(self, rid: str) -> Sequence[int]:
        """Record numbers of a request's steps, ascending."""

    def anomaly_records(self, rid: str | None = None) -> Sequence[int]:
        """Record numbers of anomalies, ascending; of all requests and tensors when rid is None."""

    def rid_of(self, record: int) -> str | None:
        """The request a record belongs to, None when it belongs to none."""


class Cursor:
    """Where the screen stands: `record` is the moment, `step_record` the step shown at it (None: no step by then).

    Transitions (moment / step shown):

    | mode   | event                    | after                                                                     |
    |--------|--------------------------|---------------------------------------------------------------------------|
    | LIVE   | on_new                   | LIVE, newest record / newest step of the followed request                 |
    | LIVE   | step(+n)                 | LIVE: there is nothing after the newest                                   |
    | LIVE   | step(-n), to, anomaly    | PAUSED there; LIVE as before when there is nowhere to go                  |
    | LIVE   | pause                    | PAUSED, same moment and step                                              |
    | LIVE   | pick(rid)                | LIVE at that request's newest step                                        |
    | PAUSED | on_new                   | PAUSED, nothing moves, `pending` grows                                    |
    | PAUSED | step, to, anomaly        | PAUSED there; stays at an end                                             |
    | PAUSED | pick(rid)                | PAUSED, same moment / its last step by then; its first step if it came later |
    | any    | live                     | LIVE, pending 0                                                           |
    """

    def __init__(self, timeline: Timeline, *, mode: Mode = Mode.LIVE) -> None:
        self._timeline = timeline
        self.mode = mode
        self.rid: str | None = None
        self.picked: str | None = None
        self.record: int | None = None
        self.step_record: int | None = None
        self.pending = 0
        self._seen = timeline.n
        if mode is Mode.LIVE:
            self.on_new()

    @property
    def is_live(self) -> bool:
        """True while it follows."""
        return self.mode is Mode.LIVE

    @property
    def at(self) -> int | None:
        """For views "as of": None while LIVE (everything), else the moment; -1 when paused before any record."""
        if self.mode is Mode.LIVE:
            return None
        return self._seen - 1 if self.record is None else self.record

    # events ---------------------------------------------------------------------------------------------------

    def on_new(self) -> bool:
        """Records may have come. Returns True when the request or the step shown changed."""
        n = self._timeline.n
        if self.mode is Mode.PAUSED:
            self.pending = max(0, n - self._seen)
            return False
        self._seen, self.pending = n, 0
        rid = self.picked if self.picked is not None else self._timeline.newest_rid()
        records = self._timeline.step_records(rid) if rid is not None else ()
        return self._place(rid, n - 1 if n else None, records[-1] if records else None)

    def live(self) -> bool:
        """Follow the newest step again."""
        self.mode = Mode.LIVE
        return self.on_new()

    def pause(self) -> None:
        """Stay here."""
        if self.mode is Mode.LIVE:
            self.mode, self._seen, self.pending = Mode.PAUSED, self._timeline.n, 0

    def toggle(self) -> None:
        """Pause when LIVE, else go LIVE."""
        if self.is_live:
            self.pause()
        else:
            self.live()

    def pick(self, rid: str | None) -> bool:
        """Follow one request, or the newest active one again (None)."""
        self.picked = rid
        if self.mode is Mode.LIVE:
            return self.on_new()
        if rid is None:
            return False
        records = self._timeline.step_records(rid)
        shown = self._by(records, self.record)
        if shown is None and records:
            return self._place(rid, records[0], records[0])
        return self._place(rid, self.record, shown)

    def step(self, by: int) -> bool:
        """Move by steps within the request; stops at its ends. Backward from LIVE pauses."""
        records = self._steps()
        if not records or by == 0:
            return False
        place = -1 if self.step_record is None else bisect_left(records, self.step_record)
        goal = min(max(place + by, 0), len(records) - 1)
        if goal == place or (self.is_live and by > 0):
            return False
        return self.to(records[goal])

    def first(self) -> bool:
        """To the first step of the request."""
        records = self._steps()
        return self.to(records[0]) if records else False

    def last(self) -> bool:
        """To the last step of the request known now, PAUSED."""
        records = self._steps()
        return self.to(records[-1]) if records else False

    def to(self, record: int) -> bool:
        """To any record: a step, a log line, the evidence of a finding. Pauses. Out of range is clamped."""
        if self._timeline.n == 0:
            return False
        record = min(max(record, 0), self._timeline.n - 1)
        self.pause()
        rid = self._timeline.rid_of(record)
        if rid is None:
            rid = self.rid
        elif self.picked is not None:
            self.picked = rid  # a person who went elsewhere does not want to be thrown back by `live`
        shown = self._by(self._timeline.step_records(rid), record) if rid is not None else None
        return self._place(rid, record, shown)

    def anomaly(self, direction: int, *, everywhere: bool = False) -> bool:
        """To the next (+1) or previous (-1) anomaly of the request, or of all. Stays when there is none."""
        records = self._timeline.anomaly_records(None if everywhere else self.rid)
        # LIVE stands at the step it shows, not at the log lines behind it: the anomaly shown is not the next one.
        here = self.step_record if self.is_live and self.step_record is not None else self.record
        here = -1 if here is None else here
        place = bisect_right(records, here) if direction > 0 else bisect_left(records, here) - 1
        return self.to(records[place]) if 0 <= place < len(records) else False

    # inside ---------------------------------------------------------------------------------------------------

    def _steps(self) -> Sequence[int]:
        return self._timeline.step_records(self.rid) if self.rid is not None else ()

    def _place(self, rid: str | None, record: int | None, step_record: int | None) -> bool:
        before = (self.rid, self.step_record, self.at)
        self.rid, self.record, self.step_record = rid, record, step_record
        return before != (rid, step_record, self.at)

    @staticmethod
    def _by(records: Sequence[int], moment: int | None) -> int | None:
        if not records or moment is None:
            return None
        place = bisect_right(records, moment) - 1
        return records[place] if place >= 0 else None
