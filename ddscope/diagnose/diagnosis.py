"""All detectors over one stream of records: `Diagnosis` (incremental) and `diagnose(path)` (a whole trace file)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddscope.diagnose.base import Detector, Evidence, Finding, evidence_of
from ddscope.diagnose.gaps import Gaps
from ddscope.diagnose.ranking import ranked
from ddscope.diagnose.relations import relate
from ddscope.model import Header, Record, Step
from ddscope.trace.ranks import Ranks

Observe = Callable[[Record, int | None], None]


class Diagnosis:
    """Runs detectors over records as they come; `findings()` may be asked for at any moment.

    detectors: the rules to run; all of them by default.
    """

    def __init__(self, detectors: list[Detector] | None = None) -> None:
        if detectors is None:
            from ddscope.diagnose.detectors import all_detectors  # deferred: the first paint comes without the rules

            detectors = all_detectors()
        self._detectors = list(detectors)
        self._gaps = Gaps()
        self._ranks = Ranks()
        self._routes: dict[type, tuple[tuple[Detector, Observe], ...]] = {}
        self._failed: dict[str, Finding] = {}
        self._cached: list[Finding] | None = None

    def observe(self, record: object, index: int | None = None) -> None:
        """Take in the next record; index is its number in the file. What is no Record (an unknown type) is ignored."""
        if isinstance(record, Header):
            self._ranks.header(record)
        route = self._routes.get(type(record))
        if route is None:
            route = self._route(type(record))
        if not route:
            return
        assert isinstance(record, Record)
        repeated = isinstance(record, Step) and self._ranks.repeats(record.src, record.tree is not None)
        for detector, observe in route:
            if repeated and not detector.ranks:
                continue
            try:
                observe(record, index)
            except Exception as exc:  # a rule with a defect must never end a session; it says so and stays off
                self._switch_off(detector, exc, evidence_of(record, index, "the record it failed on"))
        self._cached = None

    def findings(self) -> list[Finding]:
        """What is known so far, ranked, consequences folded into their causes. Cheap when nothing has changed."""
        if self._cached is None:
            found = [f for d in self._detectors if d.id not in self._failed for f in d.findings()]
            self._cached = ranked([*self._gaps.qualify(relate(found)), *self._failed.values()])
        return list(self._cached)

    def _route(self, kind: type) -> tuple[tuple[Detector, Observe], ...]:
        """Detectors that want this class of record, found once a class."""
        route: tuple[tuple[Detector, Observe], ...] = ()
        if issubclass(kind, Record):
            wanted = [
                d for d in (self._gaps, *self._detectors) if issubclass(kind, d.wants) and d.id not in self._failed
            ]
            route = tuple((d, d.observe) for d in wanted)
        self._routes[kind] = route
        return route

    def _switch_off(self, detector: Detector, exc: Exception, where: Evidence) -> None:
        self._routes.clear()
        self._failed[detector.id] = Finding(
            id="diagnose.detector_failed",
            kind=detector.id,
            severity="info",
            confidence=1.0,
            title=f"The rule {detector.id} failed on a record and is switched off for this trace.",
            detail=f"{type(exc).__name__}: {exc}. Its findings are missing; the other rules go on.",
            evidence=(where,),
            next=("Report this with the record named in the evidence: it is a defect of ddscope, not of the server.",),
        )


def diagnose(path: str | Path) -> list[Finding]:
    """Ranked findings of a trace file, finished or still growing (up to its present end).

    Raises ddscope.trace.TraceError, with one sentence, when the file is missing or is no trace.
    """
    from ddscope.trace import TraceFile  # deferred: the rules themselves need no file

    diagnosis = Diagnosis()
    with TraceFile(path) as trace:
        while trace.poll(1.0):
            pass
        for number in range(trace.index.n):
            diagnosis.observe(trace.record(number), number)
    return diagnosis.findings()
