"""Views over requests and their steps: rows, trees, text, acceptance and stage times, as of any record.

They read the columns that `intake` keeps and payloads of single records; none of them walks all records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ddscope.model import Request, Step
from ddscope.session import panes
from ddscope.session.intake import Intake, step_anomalies
from ddscope.session.ledger import BIG, TIMED, RequestLedger, Steps, lean
from ddscope.session.rows import Rows
from ddscope.session.textruns import TextRuns
from ddscope.session.tokens import preview
from ddscope.session.tree import tree_view, unreadable_view
from ddscope.session.views import Curve, RequestRow, StageTime, StepRow, Timing, Totals, TreeView

TREES = 32
RATE_STEPS = 64  # newest steps over which tokens a second are counted
PREVIEW_IDS = 12  # output tokens that name a request whose prompt is not told


class RequestViews(Intake):
    """Half of the store; see `ddscope.session.store.Store`."""

    def __init__(self, path: str | Path, *, use_sidecar: bool = True, growing: bool = False) -> None:
        super().__init__(path, use_sidecar=use_sidecar, growing=growing)
        self._trees: OrderedDict[int, tuple[int, TreeView]] = OrderedDict()
        self._previews: dict[str, tuple[int, int, str]] = {}

    def step_records(self, rid: str) -> Sequence[int]:
        """Record numbers of a request's steps, ascending. Grows."""
        ledger = self._ledgers.get(rid)
        return ledger.records if ledger is not None else ()

    def requests(self, at: int | None = None) -> Rows[RequestRow]:
        """Requests in the order of their first records."""
        limit = self._limit(at)
        with self.lock:
            count = bisect_left(self._firsts, limit)
        return Rows(self._firsts, count, lambda first: self._request_row(first, limit))

    def request(self, rid: str, at: int | None = None) -> RequestRow | None:
        """One request; None when it was not seen by then."""
        ledger, limit = self._ledgers.get(rid), self._limit(at)
        return self._request_row(ledger.first, limit) if ledger is not None and ledger.first < limit else None

    def steps(self, rid: str, at: int | None = None) -> Rows[StepRow]:
        """Steps of a request, oldest first."""
        records = self.step_records(rid)
        return Rows(records, bisect_left(records, self._limit(at)), self.step_row)

    def step_row(self, record: int) -> StepRow:
        """One step's row."""
        index = self.trace.index
        rid = index.rids[index.rid[record]] if index.rid[record] >= 0 else ""
        return StepRow(
            record=record,
            rid=rid,
            step=index.step[record],
            accepted=_told(index.accepted[record]),
            emitted=_told(index.emitted[record]),
            nodes=_told(index.nodes[record]),
            budget=self._budget(rid, record),
            total_us=_told(index.total_us[record]),
            t=index.t[record],
            flags=index.flags[record],
            anomalies=step_anomalies(index.accepted[record], index.nodes[record], index.flags[record]),
        )

    def step(self, record: int) -> Step | None:
        """The step in a record; None when there is no readable step."""
        if not 0 <= record < self._n:
            return None
        found = self.record(record)
        return found if isinstance(found, Step) else None

    def tree(self, record: int) -> TreeView:
        """The tree of the step in a record, with verdicts. Any other record gives a bare root and says why."""
        with self.lock:
            known = self._trees.get(record)
            if known is not None and known[0] == self.tokens.version:
                return known[1]
            if not 0 <= record < self._n:
                return unreadable_view(record, f"there is no record {record}")
            found = self.record(record)
            if isinstance(found, Step):
                view = tree_view(found, self.tokens, record)
            else:
                view = unreadable_view(record, panes.unreadable_words(found))
            self._trees[record] = (self.tokens.version, view)
            while len(self._trees) > TREES:
                self._trees.popitem(last=False)
            return view

    def text(self, rid: str, at: int | None = None, *, prompt: bool = True) -> TextRuns:
        """The text of a request: the prompt if told and wanted, then the output up to the moment."""
        with self.lock:
            ledger, limit = self._ledgers.get(rid), self._limit(at)
            if ledger is None:
                return TextRuns(None, 0, self.tokens, ())
            steps = min(ledger.count(limit), ledger.digested)
            number, ids = self._prompt(rid, limit) if prompt else (None, ())
            return TextRuns(ledger, steps, self.tokens, self.trace.index.step, ids, number)

    def totals(self, at: int | None = None) -> Totals:
        """All requests together."""
        with self.lock:
            limit = self._limit(at)
            seen = self._all.count(limit)
            return Totals(
                requests=bisect_left(self._firsts, limit),
                steps=seen,
                emitted=self._all.emitted[seen],
                tau=self._all.tau(limit),
                rate=self._rate(self._all, max(0, seen - RATE_STEPS), seen)[1],
            )

    def curve(self, rid: str | None = None, at: int | None = None) -> Curve:
        """P(accepted ≥ d) over the steps that drafted something, of one request or of all."""
        with self.lock:
            steps = self._steps(rid)
            return steps.accepted.curve(self._limit(at)) if steps is not None else Curve.empty()

    def timing(self, rid: str | None = None, at: int | None = None) -> Timing:
        """Stage times of the newest step by then, and over all steps by then."""
        with self.lock:
            steps = self._steps(rid)
            if steps is None:
                return Timing.empty()
            seen = steps.count(self._limit(at))
            counted = min(seen, len(steps.times))
            record = steps.records[seen - 1] if seen else None
            step = self.step(record) if record is not None else None
            own = step.time if step is not None else None
            sums = {name: steps.times.sums[name][counted] for name in TIMED}
            given = {name: steps.times.given[name][counted] for name in TIMED}
            whole = sums["total"] if sums["total"] > 0 else sum(sums[name] for name in TIMED[:-1])
            return Timing(
                record=record,
                step=step.step if step is not None else None,
                stages=tuple(
                    StageTime(
                        name=name,
                        step_us=getattr(own, name) if own is not None else None,
                        sum_us=sums[name],
                        steps=given[name],
                        share=sums[name] / whole if whole > 0 and given[name] else None,
                    )
                    for name in TIMED[:-1]
                ),
                total_step_us=own.total if own is not None else None,
                total_sum_us=sums["total"],
                total_steps=given["total"],
                counted=counted,
                steps=seen,
                domain=step.time_domain if step is not None else None,
            )

    # inside ---------------------------------------------------------------------------------------------------

    def _limit(self, at: int | None) -> int:
        return self._n if at is None else max(0, min(at + 1, self._n))

    def _steps(self, rid: str | None) -> Steps | None:
        return self._all if rid is None else self._ledgers.get(rid)

    def _budget(self, rid: str, record: int) -> int | None:
        ledger = self._ledgers.get(rid)
        if ledger is not None:
            place = bisect_left(ledger.records, record)
            if place < ledger.digested and ledger.records[place] == record:
                return _told(ledger.budgets[place])
        tree = lean(self.trace.raw(record)).tree
        return tree.budget if tree is not None and tree.budget is not None and 0 <= tree.budget < BIG else None

    def _request_row(self, first: int, limit: int) -> RequestRow:
        with self.lock:
            ledger = self._ledgers[self._rids[bisect_left(self._firsts, first)]]
            index, rid = self.trace.index, ledger.rid
            request, finish = self._state.requests.last(rid, limit), self._state.finishes.last(rid, limit)
            seen = ledger.count(limit)
            done = finish is not None and (request is None or finish.number > request.number)
            reason = finish.value.reason if finish is not None and done else None
            ends = [
                ledger.records[seen - 1] if seen else first,
                *(e.number for e in (request, finish) if e is not None),
            ]
            title, title_of = self._preview(ledger, limit)
            payload = self.record(request.number) if request is not None else None
            seconds, rate = self._rate(ledger, 0, seen)
            return RequestRow(
                rid=rid,
                record=request.number if request is not None else None,
                preview=title,
                preview_of=title_of,
                prompt_len=request.value.prompt_len if request is not None else None,
                cached=request.value.cached if request is not None else None,
                sampling=payload.sampling if isinstance(payload, Request) else {},
                steps=seen,
                emitted=ledger.emitted[seen],
                tau=ledger.tau(limit),
                state="open" if not done else "error" if reason == "error" else "finished",
                reason=reason,
                t=index.t[first],
                last_t=index.t[max(ends)],
                last_step=ledger.records[seen - 1] if seen else None,
                anomalies=bisect_left(ledger.anomalies, limit),
                seconds=seconds,
                rate=rate,
            )

    def _rate(self, steps: Steps, start: int, stop: int) -> tuple[float | None, float | None]:
        """(seconds from step `start` to step `stop` - 1, tokens a second of those after the first)."""
        if stop - start < 2:
            return None, None
        mono = self.trace.index.mono
        seconds = (mono[steps.records[stop - 1]] - mono[steps.records[start]]) / 1e6
        emitted = steps.emitted[stop] - steps.emitted[start + 1]
        return (seconds, emitted / seconds) if seconds > 0 else (None, None)

    def _prompt(self, rid: str, limit: int) -> tuple[int | None, Sequence[int]]:
        request = self._state.requests.last(rid, limit)
        if request is None or not request.value.has_prompt:
            return None, ()
        record = self.record(request.number)
        return request.number, (record.prompt_ids or ()) if isinstance(record, Request) else ()

    def _preview(self, ledger: RequestLedger, limit: int) -> tuple[str, Literal["prompt", "output", ""]]:
        number, ids = self._prompt(ledger.rid, limit)
        if number is not None and ids:
            known = self._previews.get(ledger.rid)
            if known is None or known[0] != number or known[1] not in (-1 - self.tokens.retold, self.tokens.version):
                # Once all ids of a prompt are told, only an id told anew can change its title.
                told = all(self.tokens.text(i) is not None for i in ids)
                key = -1 - self.tokens.retold if told else self.tokens.version
                known = self._previews[ledger.rid] = (number, key, preview(self.tokens.join(ids)))
            return known[2], "prompt"
        seen = min(ledger.count(limit), ledger.digested)
        if not seen:
            return "", ""
        shown = ledger.ids[: min(PREVIEW_IDS, ledger.ends[seen - 1])]
        return " ".join(self.tokens.join(shown).split()), "output"


def _told(value: int) -> int | None:
    return value if value >= 0 else None
