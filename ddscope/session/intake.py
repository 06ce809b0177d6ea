"""Taking a trace in: the index's columns into ledgers, small records through the reducer, a lean look at each step.

Everything here is a function of the records and their order, never of when they came or how they were cut into polls.
What is asked of it afterwards is `ddscope.session.store`.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from pathlib import Path

from ddscope.model import Gap, Header, Record, Tokens
from ddscope.session.ledger import RequestLedger, Steps, lean
from ddscope.session.reducer import KINDS, State, reduce
from ddscope.session.tokens import TokenTable
from ddscope.session.views import Anomaly
from ddscope.trace import TraceFile, Unknown
from ddscope.trace.index import KIND, NONFINITE, NOT_OK, TRUNCATED
from ddscope.trace.ranks import Ranks, rank_of

SLICE = 1000  # records taken in between two looks at the clock
PAYLOADS = 512  # records kept decoded

_STEP, _TOKENS, _REQUEST, _FINISH = KIND["step"], KIND["tokens"], KIND["request"], KIND["finish"]
_TENSOR, _GAP = KIND["tensor"], KIND["gap"]
_TAKEN = (*KINDS, "tokens", "step")


def step_anomalies(accepted: int, nodes: int, flags: int) -> tuple[Anomaly, ...]:
    """What is odd about a step, from its columns (-1 = unknown). A step that drafted nothing cannot accept anything."""
    found: list[Anomaly] = []
    if accepted == 0 and nodes != 0:
        found.append("accepted_zero")
    if flags & NONFINITE:
        found.append("nonfinite")
    if flags & TRUNCATED:
        found.append("truncated")
    return tuple(found)


def wanted_gap(gap: Gap) -> bool:
    """Whether nothing was lost here: it was before a viewer came, or an engine was asked to leave it out."""
    return gap.of == gap.src and (
        gap.reason == "joined_late" or (gap.reason == "rate_limited" and gap.src.startswith("engine/"))
    )


class Intake:
    """One trace file, taken in by `poll`. `n` records are in; `version` moves whenever anything changed."""

    def __init__(self, path: str | Path, *, use_sidecar: bool = True, growing: bool = False) -> None:
        self.trace = TraceFile(path, use_sidecar=use_sidecar, growing=growing)
        self.path = Path(path)
        self.version = 0
        self.tokens = TokenTable()
        self._ranks = Ranks()
        self.lock = threading.RLock()
        self._n = 0
        self._state = State()
        self._ledgers: dict[str, RequestLedger] = {}
        self._rids: list[str] = []  # in the order of their first records
        self._firsts = array("I")
        self._all = Steps()
        self._owners = array("L")  # ledger number of each step of `_all`
        self._logs = array("I")
        self._loose = array("I")  # anomalies of no request
        self._anomalies = array("I")
        self._open: dict[str, int] = {}  # unfinished requests → newest step
        self._newest: str | None = None
        self._taken = dict.fromkeys((*_TAKEN, "log"), 0)
        self._unnumbered: Counter[str] = Counter()  # gaps without a count, by the source that lacks records
        self._left_out: dict[str, Counter[str]] = {}  # records that nobody wanted: reason → by source
        self._payloads: OrderedDict[int, Record | Unknown] = OrderedDict()

    # taking in ------------------------------------------------------------------------------------------------

    def poll(self, budget_s: float = 0.02) -> bool:
        """Take in what is new for about budget_s seconds. True when anything changed, so that there may be more."""
        deadline = time.perf_counter() + budget_s
        changed = self.trace.poll(budget_s / 2) > 0
        while self._n < self.trace.index.n:
            with self.lock:
                self._take(min(self._n + SLICE, self.trace.index.n))
            changed = True
            if time.perf_counter() >= deadline:
                break
        while len(self._all.times) < len(self._all.records):
            with self.lock:
                self._digest(50)
            changed = True
            if time.perf_counter() >= deadline:
                break
        if changed:
            self.version += 1
        return changed

    @property
    def settled(self) -> bool:
        """Everything that is in the file has been taken in."""
        indexed, size = self.trace.progress
        return indexed >= size and self._n == self.trace.index.n and len(self._all.times) == len(self._all.records)

    def _take(self, stop: int) -> None:
        """First pass over records up to `stop`."""
        index = self.trace.index
        numbers: list[int] = []
        for name in _TAKEN:
            numbers += self._new_of(name, stop)
        logs, gaps = self._new_of("log", stop), []
        for number in sorted(numbers):
            kind = index.kind[number]
            if kind == _STEP:
                self._take_step(number)
            else:
                self._take_small(number, kind)
                if kind == _GAP and not self.source(number).startswith("engine/"):
                    gaps.append(number)
        self._logs.extend(sorted([*logs, *gaps]) if gaps else logs)
        self._n = stop

    def _new_of(self, name: str, stop: int) -> array[int]:
        numbers = self.trace.index.by_kind[name]
        start = self._taken[name]
        end = bisect_left(numbers, stop, start)
        self._taken[name] = end
        return numbers[start:end]

    def _take_step(self, number: int) -> None:
        index = self.trace.index
        accepted, emitted, nodes = index.accepted[number], index.emitted[number], index.nodes[number]
        if self._ranks.repeats(self.source(number), nodes >= 0):
            return  # another rank tells the same step, and more of it
        ledger = self._ledger(number)
        if ledger.src < 0:
            ledger.src = index.src[number]
        elif ledger.src != index.src[number]:
            return  # a second server has a request of the same name, or tells the same one
        ledger.add(number, accepted, emitted, nodes)
        self._all.add(number, accepted, emitted, nodes)
        self._owners.append(ledger.place)
        if self._anomalies_of(number):
            ledger.anomalies.append(number)
            self._anomalies.append(number)
        if ledger.rid in self._open or not self._state.finishes.count_of(ledger.rid):
            self._open[ledger.rid] = number
        self._newest = ledger.rid

    def _take_small(self, number: int, kind: int) -> None:
        record = self.trace.record(number)  # past the cache: these are read once
        if kind == _TOKENS:
            if isinstance(record, Tokens):
                self.tokens.add(record.ids, record.text)
            return
        self._state = reduce(self._state, number, record)
        if isinstance(record, Header):
            self._ranks.header(record)
        if kind == _REQUEST:
            ledger = self._ledger(number)
            self._open.setdefault(ledger.rid, -1)
            if not rank_of(self.source(number)):
                ledger.src = self.trace.index.src[number]  # a server that was started again may use the name again
        elif kind == _FINISH:
            ledger = self._ledger(number)
            self._open.pop(ledger.rid, None)
            if getattr(record, "reason", None) == "error":
                ledger.anomalies.append(number)
                self._anomalies.append(number)
        elif kind == _GAP:
            if isinstance(record, Gap) and wanted_gap(record):
                self._left_out.setdefault(record.reason, Counter())[record.src] += record.count or 0
            if (
                self._state.gaps
                and (last := self._state.gaps.latest())
                and last.number == number
                and last.value is None
            ):
                self._unnumbered[last.key] += 1
        elif kind == _TENSOR and self.trace.index.flags[number] & NOT_OK:
            self._loose.append(number)
            self._anomalies.append(number)

    def _ledger(self, number: int) -> RequestLedger:
        rid = self.trace.index.rids[self.trace.index.rid[number]]
        ledger = self._ledgers.get(rid)
        if ledger is None:
            ledger = self._ledgers[rid] = RequestLedger(rid, number, len(self._rids))
            self._rids.append(rid)
            self._firsts.append(number)
        return ledger

    def _anomalies_of(self, number: int) -> tuple[Anomaly, ...]:
        index = self.trace.index
        return step_anomalies(index.accepted[number], index.nodes[number], index.flags[number])

    def _digest(self, count: int) -> None:
        """Second pass over the next `count` steps."""
        done = len(self._all.times)
        for place in range(done, min(done + count, len(self._all.records))):
            number = self._all.records[place]
            ledger = self._ledgers[self._rids[self._owners[place]]]
            request = self._state.requests.last(ledger.rid, number)
            step = lean(self.trace.raw(number))
            prompt_len = request.value.prompt_len if request is not None else None
            ledger.digest(step, prompt_len, bool(self.trace.index.flags[number] & TRUNCATED))
            self._all.times.add(step.time)

    # reading --------------------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of records taken in."""
        return self._n

    def record(self, number: int) -> Record | Unknown:
        """A record with its payload; the newest asked for are kept. Raises IndexError outside of 0..n - 1."""
        if not 0 <= number < self._n:
            raise IndexError(number)
        with self.lock:
            found = self._payloads.get(number)
            if found is None:
                found = self._payloads[number] = self.trace.record(number)
                while len(self._payloads) > PAYLOADS:
                    self._payloads.popitem(last=False)
            else:
                self._payloads.move_to_end(number)
            return found

    def source(self, number: int) -> str:
        """The source of a record; "" when the line is damaged beyond telling."""
        src = self.trace.index.src[number]
        return self.trace.index.sources[src] if src >= 0 else ""

    def close(self) -> None:
        """Give the file back."""
        self.trace.close()
