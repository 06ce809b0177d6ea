"""The store: what one trace file says, as of any record, for one poller and one reader.

Views read the state and the columns that `intake` keeps; payloads are read from the file when a view needs them.
`at` is a record number, inclusive; None means everything taken in so far.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddscope.model import Fact, Header, Mark, Position, Probe, Stack, Tensor
from ddscope.session import panes
from ddscope.session.first import FirstPaint, first_paint
from ddscope.session.hosts import HostView, StackView, host_view, stack_view
from ddscope.session.marks import MarksBeside
from ddscope.session.reducer import PROBE, fact_key
from ddscope.session.requests import RequestViews
from ddscope.session.rows import Rows
from ddscope.session.servers import RANK_FACTS, RankView, rank_view
from ddscope.session.views import Counters, EngineState, GapRow, LogRow, MarkRow, ProbeRow, TensorRow
from ddscope.trace import TraceError
from ddscope.trace.ranks import rank_of


class Store(RequestViews):
    """Views over one trace. Raises TraceError when the file cannot be opened; nothing raises afterwards."""

    def __init__(self, path: str | Path, *, use_sidecar: bool = True, growing: bool = False) -> None:
        super().__init__(path, use_sidecar=use_sidecar, growing=growing)
        self.beside = MarksBeside(self.path)
        self._merged: dict[str, tuple[tuple[int, int], Sequence[int]]] = {}
        self._places: dict[int, tuple[array[int], array[int]]] = {}
        self._looked: dict[int, int] = {}
        self._restarted: set[int] = set()

    # what a cursor asks ---------------------------------------------------------------------------------------

    def newest_rid(self) -> str | None:
        """The request with the newest step among the unfinished ones, else among all."""
        with self.lock:
            if self._newest is None or self._newest in self._open:
                return self._newest
            rid = max(self._open, key=self._open.__getitem__, default=None)
            return rid if rid is not None and self._open[rid] >= 0 else self._newest

    def anomaly_records(self, rid: str | None = None) -> Sequence[int]:
        """Record numbers of a request's anomalies and of those of no request (tensors); of all when rid is None."""
        with self.lock:
            if rid is None:
                return self._anomalies
            ledger = self._ledgers.get(rid)
            own: Sequence[int] = ledger.anomalies if ledger is not None else ()
            if not self._loose:
                return own
            sizes = (len(own), len(self._loose))
            known = self._merged.get(rid)
            if known is None or known[0] != sizes:
                known = self._merged[rid] = (sizes, sorted([*own, *self._loose]))
            return known[1]

    def rid_of(self, record: int) -> str | None:
        """The request that a record belongs to; facts and commands that name one included."""
        if not 0 <= record < self._n:
            return None
        number = self.trace.index.rid[record]
        if number >= 0:
            return self.trace.index.rids[number]
        rid = panes.rid_named(self.record(record))
        return rid if rid in self._ledgers else None

    # the file -------------------------------------------------------------------------------------------------

    @property
    def header(self) -> Header:
        """The newest header that names an engine, of a first rank if there is one, else the first of all.

        Raises TraceError while a growing file has none.
        """
        with self.lock:
            headers = self._state.headers
            engines = [entry for entry in map(headers.__getitem__, range(len(headers))) if entry.value]
            for entry in sorted(engines, key=lambda entry: (not rank_of(entry.key), entry.number), reverse=True):
                if isinstance(found := self.record(entry.number), Header):
                    return found
        return self.trace.header()

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes taken in, bytes of the file)."""
        index = self.trace.index
        return (index.offset[self._n] if self._n < index.n else index.end), self.trace.size

    @property
    def counters(self) -> dict[str, Counters]:
        """Per source: emitted = received + dropped, and how many of its gaps do not know their number."""
        with self.lock:
            told = self.trace.index.counters
            names = [*told, *(name for name in self._unnumbered if name not in told)]
            unnumbered, left_out = self._unnumbered, list(self._left_out.values())
            late = self._left_out.get("joined_late", Counter())
            return {
                n: Counters(n, *told.get(n, (0, 0, 0)), unnumbered[n], sum(by[n] for by in left_out), late[n])
                for n in names
            }

    def first_paint(self, at: int | None = None) -> FirstPaint | None:
        """The last step, or the last one with step number `at`, without waiting for the index."""
        return first_paint(self.trace, at)

    def record_at(self, offset: int) -> int | None:
        """Number of the record that begins at a byte offset; None while it has not been taken in."""
        place = bisect_left(self.trace.index.offset, offset, 0, self._n)
        return place if place < self._n and self.trace.index.offset[place] == offset else None

    def find(self, src: str, seq: int) -> int | None:
        """Number of the record that a source sent as `seq`; the last one when a restarted source used it again."""
        with self.lock:
            if src not in self.trace.index.sources:
                return None
            numbers, seqs = self._places_of(self.trace.index.sources.index(src))
            if seqs is not None:
                place = bisect_right(seqs, seq) - 1
                return numbers[place] if place >= 0 and seqs[place] == seq else None
            column = self.trace.index.seq
            return next((number for number in reversed(numbers) if column[number] == seq), None)

    # everything else ------------------------------------------------------------------------------------------

    def tensors(self, at: int | None = None) -> list[TensorRow]:
        """Every tensor as last told, in the order of their names' first use."""
        with self.lock:
            limit, trail, hidden = self._limit(at), self._state.tensors, self._hidden_size()
            rows = []
            for name in trail.keys(limit):
                entry = trail.last(name, limit)
                if entry is not None and isinstance(record := self.record(entry.number), Tensor):
                    rows.append(panes.tensor_row(entry.number, record, hidden, trail.count_of(name, limit)))
            return rows

    def logs(self, at: int | None = None) -> Rows[LogRow]:
        """Log lines, and the gaps between them, in record order."""
        return Rows(self._logs, bisect_left(self._logs, self._limit(at)), self._log_row)

    def facts(self, at: int | None = None) -> dict[str, Any]:
        """The newest value of every fact; of ranks that run one model together, as the first rank tells it."""
        with self.lock:
            limit = self._limit(at)
            told = {name: value for facts in self.rank_facts(at).values() for name, value in facts.items()}
            return told | {name: self._fact(name, limit)[1] for name in self._state.facts.keys(limit)}

    def rank_facts(self, at: int | None = None) -> dict[str, dict[str, Any]]:
        """The newest value of every fact by the engine source, or the host's probes, that told it, in order."""
        with self.lock:
            limit, trail = self._limit(at), self._state.rank_facts
            told: dict[str, dict[str, Any]] = {}
            for key in trail.keys(limit):
                src, _, name = key.partition("\n")
                entry = trail.last(key, limit)
                if entry is not None and isinstance(record := self.record(entry.number), Fact):
                    told.setdefault(src, {})[name] = record.value
            return told

    def ranks(self, at: int | None = None) -> list[RankView]:
        """What every engine source said of itself, in the order of their headers."""
        with self.lock:
            limit, headers, books = self._limit(at), self._state.headers, self.counters
            views = []
            for src in headers.keys(limit):
                entry = headers.last(src, limit)
                found = self.record(entry.number) if entry is not None and entry.value else None
                if isinstance(found, Header):
                    follower = self._ranks.follower(src)
                    told = {name: self._rank_fact(src, name, limit) for name in RANK_FACTS}
                    views.append(rank_view(src, found.engine, follower, told, books.get(src)))
            return views

    def state(self, at: int | None = None) -> EngineState:
        """What the engine last said of itself, its breakpoints and deliberate faults."""
        with self.lock:
            limit = self._limit(at)
            number, value = self._fact("engine.state", limit)
            fault = self._fact("fault", limit)[1]
            name = fault.get("name") if isinstance(fault, dict) else None
            breakpoints = self._fact("breakpoints", limit)[1]
            return panes.engine_state(number, value, breakpoints, name if isinstance(name, str) else None)

    def gaps(self, at: int | None = None) -> Rows[GapRow]:
        """Gaps of all sources in record order."""
        numbers = self.trace.index.by_kind["gap"]
        return Rows(numbers, bisect_left(numbers, self._limit(at)), lambda i: panes.gap_row(i, self.record(i)))

    def marks(self, at: int | None = None) -> list[MarkRow]:
        """Notes in the file by then, and those kept beside it."""
        with self.lock:
            trail = self._state.marks
            rows = []
            for place in range(trail.count(self._limit(at))):
                number = trail[place].number
                if isinstance(record := self.record(number), Mark):
                    rows.append(panes.mark_row(number, record, self.find(record.at.src, record.at.seq)))
            return rows + [panes.mark_row(None, mark, self.find(mark.at.src, mark.at.seq)) for mark in self.beside.all]

    def add_mark_beside(self, text: str, at: Position) -> None:
        """Keep a note beside the file. Raises TraceError when it cannot be written."""
        with self.lock:
            self.beside.add(text, at)
            self.version += 1

    def probes(self, at: int | None = None) -> list[ProbeRow]:
        """The newest answer of every rung of every host."""
        with self.lock:
            limit, trail = self._limit(at), self._state.probes
            entries = [entry for key in trail.keys(limit) if (entry := trail.last(key, limit)) is not None]
            records = [(entry.number, self.record(entry.number)) for entry in entries]
            return [panes.probe_row(number, record) for number, record in records if isinstance(record, Probe)]

    def hosts(self, at: int | None = None) -> list[HostView]:
        """What is known of every host that is, or was, watched."""
        with self.lock:
            rows, facts = self.probes(at), self.rank_facts(at)
            names = dict.fromkeys([row.src for row in rows] + [src for src in facts if src.startswith(PROBE)])
            return [host_view(src, [row for row in rows if row.src == src], facts.get(src, {})) for src in names]

    def stacks(self, at: int | None = None) -> list[StackView]:
        """The newest dump of every process, those taken last first."""
        with self.lock:
            limit, trail = self._limit(at), self._state.stacks
            views = []
            for key in trail.keys(limit):
                entry = trail.last(key, limit)
                stack = self.record(entry.number) if entry is not None else None
                if entry is None or not isinstance(stack, Stack):
                    continue
                was = trail.last(key, entry.number)
                before = self.record(was.number) if was is not None else None
                views.append(stack_view(entry.number, stack, before if isinstance(before, Stack) else None))
            return sorted(views, key=lambda view: -view.t)

    def stack(self, at: int | None = None) -> tuple[int, Stack] | None:
        """The newest stack dump with its record number."""
        with self.lock:
            entry = self._state.stacks.latest(self._limit(at))
            if entry is not None and isinstance(record := self.record(entry.number), Stack):
                return entry.number, record
            return None

    # inside ---------------------------------------------------------------------------------------------------

    def _log_row(self, number: int) -> LogRow:
        return panes.log_row(number, self.record(number))

    def _fact(self, name: str, limit: int) -> tuple[int | None, Any]:
        entry = self._state.facts.last(name, limit)
        if entry is None or not isinstance(record := self.record(entry.number), Fact):
            return None, None
        return entry.number, record.value

    def _rank_fact(self, src: str, name: str, limit: int) -> Any:
        entry = self._state.rank_facts.last(fact_key(src, name), limit)
        record = self.record(entry.number) if entry is not None else None
        return record.value if isinstance(record, Fact) else None

    def _hidden_size(self) -> int | None:
        try:
            model = self.header.model
        except TraceError:
            return None
        return model.hidden_size if model is not None else None

    def _places_of(self, src: int) -> tuple[array[int], array[int] | None]:
        """Record numbers of a source and their seqs; None for the seqs when they do not ascend (a restarted source)."""
        numbers, seqs = self._places.setdefault(src, (array("Q"), array("q")))
        column, start = self.trace.index.src, (numbers[-1] + 1 if numbers else 0)
        # One pass over the column, continued the next time: a person's marks are few, the records many.
        fresh = [i for i in range(max(start, self._looked.get(src, 0)), self._n) if column[i] == src]
        self._looked[src] = self._n
        numbers.extend(fresh)
        for i in fresh:
            if seqs and self.trace.index.seq[i] <= seqs[-1]:
                self._restarted.add(src)
            seqs.append(self.trace.index.seq[i])
        return numbers, None if src in self._restarted else seqs
