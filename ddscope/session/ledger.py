"""Steps as columns, one ledger a request and one for the whole run: what was accepted, emitted and how long it took.

Two passes fill it: the index's columns first, then the few fields of the payload that views over a whole run need, for
text and stage times. Sums are prefix sums, so "as of" is a bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from ddscope.session.views import STAGES, Curve

DEEPEST = 4096  # accepted counts beyond it are one bucket; a path is never that long
BIG = 2**62
TIMED = (*STAGES, "total")


class _TreeBudget(msgspec.Struct, gc=False):
    budget: int | None = None


class _Time(msgspec.Struct, gc=False):
    draft: int | None = None
    build: int | None = None
    mask: int | None = None
    verify: int | None = None
    commit: int | None = None
    total: int | None = None


class Lean(msgspec.Struct, gc=False):
    """The fields of a step that the second pass keeps. Everything else of the line is skipped by the decoder."""

    base: int | None = None
    root: int | None = None
    bonus: int | None = None
    path: list[int] | None = None
    emitted: list[int] | None = None
    tree: _TreeBudget | None = None
    time: _Time | None = None


_LEAN = msgspec.json.Decoder(Lean)


def lean(line: bytes) -> Lean:
    """The lean fields of a step's line; empty ones when the line cannot be read."""
    try:
        return _LEAN.decode(line)
    except (ValueError, RecursionError, OverflowError):
        return Lean()


class AcceptedCounts:
    """How many steps accepted how much, as of any record: for each count the records that had it."""

    def __init__(self) -> None:
        self._records: dict[int, array[int]] = {}

    def add(self, record: int, accepted: int) -> None:
        """One step that drafted something."""
        accepted = min(max(accepted, 0), DEEPEST)
        records = self._records.get(accepted)
        if records is None:
            records = self._records[accepted] = array("I")
        records.append(record)

    def curve(self, limit: int) -> Curve:
        """P(accepted ≥ d) over the steps of records below `limit`."""
        counts = {accepted: bisect_left(records, limit) for accepted, records in self._records.items()}
        counts = {accepted: count for accepted, count in counts.items() if count}
        at_least = []
        left = n = sum(counts.values())
        for depth in range(max(counts, default=0)):
            left -= counts.get(depth, 0)
            at_least.append(left)
        return Curve(n, tuple(at_least))


class StageSums:
    """Prefix sums of stage times over steps in record order: values in µs, and how many steps gave one."""

    def __init__(self) -> None:
        self.sums = {name: array("q", [0]) for name in TIMED}
        self.given = {name: array("I", [0]) for name in TIMED}
        self._columns = tuple(zip(self.sums.values(), self.given.values(), strict=True))

    def add(self, time: _Time | None) -> None:
        """One step's times."""
        for (sums, given), value in zip(self._columns, _values(time), strict=True):
            before = sums[-1]
            if value is not None and -BIG < before + value < BIG:
                sums.append(before + value)
                given.append(given[-1] + 1)
            else:
                sums.append(before)
                given.append(given[-1])

    def __len__(self) -> int:
        return len(self.sums["total"]) - 1


class Steps:
    """Columns of steps in record order: of one request, or of all."""

    def __init__(self) -> None:
        self.records = array("I")
        self.emitted = array("q", [0])  # prefix sum over the steps that told
        self.told = array("Q", [0])  # how many steps told
        self.accepted = AcceptedCounts()
        self.times = StageSums()

    def add(self, record: int, accepted: int, emitted: int, nodes: int) -> None:
        """One step, from the index's columns; -1 is unknown."""
        self.records.append(record)
        self.emitted.append(self.emitted[-1] + max(emitted, 0))
        self.told.append(self.told[-1] + (emitted >= 0))
        if accepted >= 0 and nodes != 0:  # a step that drafted nothing says nothing about the drafter
            self.accepted.add(record, accepted)

    def count(self, limit: int) -> int:
        """Steps of records below `limit`."""
        return bisect_left(self.records, limit)

    def tau(self, limit: int) -> float | None:
        """Mean emitted a step."""
        seen = self.count(limit)
        return self.emitted[seen] / self.told[seen] if self.told[seen] else None


class RequestLedger(Steps):
    """One request: its steps, its anomalies, and the ids of its text in order.

    ids: every known token of the output; those of step j end at ends[j] and begin where the step before it ends: a root
    where the text would lack it (rooted[j] = 1), then what the step emitted; split[j] of them accepted (-1 unknown).
    missing[j]: tokens before the step that no record holds, -1 when nobody knows how many.
    """

    def __init__(self, rid: str, first: int, place: int) -> None:
        super().__init__()
        self.rid = rid
        self.first = first  # record number of its first record of any kind
        self.place = place  # among the requests, in the order of their first records
        self.src = -1  # number of the source whose steps count; -1 while nobody has told any
        self.anomalies = array("I")
        self.ids = array("q")
        self.ends = array("I")
        self.missing = array("q")
        self.rooted = array("B")
        self.split = array("q")
        self.budgets = array("q")
        self.runs = array("Q", [0])  # prefix sum of text runs
        self.barriers = array("I")  # places in ids before which tokens are missing
        self._next: int | None = None  # position of the newest known token of the text

    def digest(self, step: Lean, prompt_len: int | None, truncated: bool) -> None:
        """Second pass, steps in order. prompt_len: of the request as known before this step."""
        self.times.add(step.time)
        budget = step.tree.budget if step.tree is not None else None
        self.budgets.append(budget if budget is not None and 0 <= budget < BIG else -1)
        missing, rooted = self._hole_before(step, prompt_len)
        if missing:
            self.barriers.append(len(self.ids))
        emitted = step.emitted or []
        self.ids.extend(_fitting([step.root, *emitted] if rooted and step.root is not None else emitted))
        split = _split(step, truncated)
        self.ends.append(len(self.ids))
        self.missing.append(missing)
        self.rooted.append(rooted)
        self.split.append(split)
        accepted = 0 if split < 0 else split
        runs = bool(missing) + rooted + bool(accepted) + (len(emitted) > accepted)
        self.runs.append(self.runs[-1] + runs)
        if step.base is not None:
            self._next = step.base + len(emitted)
        elif self._next is not None:
            self._next += len(emitted)

    def _hole_before(self, step: Lean, prompt_len: int | None) -> tuple[int, bool]:
        """(tokens that are missing before this step, whether its root must be shown)."""
        known = step.root is not None
        if not self.ends:  # first step: the root is the prefill's token, at position prompt_len
            if step.base is None or prompt_len is None:
                return (-1 if prompt_len is None else 0), known
            return min(max(step.base - prompt_len, 0), BIG), known
        if step.base is None or self._next is None or step.base <= self._next:
            return 0, False
        hole = step.base - self._next - known
        return min(hole, BIG), known

    @property
    def digested(self) -> int:
        """Steps the second pass has read."""
        return len(self.ends)


def _values(time: _Time | None) -> tuple[int | None, ...]:
    """Times in the order of TIMED."""
    if time is None:
        return (None,) * len(TIMED)
    return time.draft, time.build, time.mask, time.verify, time.commit, time.total


def _fitting(ids: list[int]) -> array[int]:
    """Ids as a column; those beyond 64 bits, which no vocabulary has, become -1."""
    try:
        return array("q", ids)
    except OverflowError:
        return array("q", [token if -BIG < token < BIG else -1 for token in ids])


def _split(step: Lean, truncated: bool) -> int:
    """How many of the emitted tokens were accepted ones; -1 when the source does not say."""
    emitted = step.emitted or []
    if step.path is not None and step.path:
        return min(len(emitted), len(step.path) - 1)
    if emitted and step.bonus == emitted[-1] and not truncated:
        return len(emitted) - 1
    return -1 if emitted else 0


def last_at_or_before(records: Sequence[int], limit: int) -> int | None:
    """The last record below `limit`."""
    place = bisect_left(records, limit) - 1
    return records[place] if place >= 0 else None
