"""One run of a server as its log tells it: milestones, phases, batches, how it ended. Bounded.

Filled by `journal.py`; read by the rules about starting, serving and dying.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ddscope.diagnose.base import Evidence, evidence_of
from ddscope.diagnose.log_events import Decode, Prefill
from ddscope.diagnose.messages import message_of
from ddscope.diagnose.tracebacks import Tracebacks
from ddscope.diagnose.words import excerpt
from ddscope.model import Log

MAX_PIDS = 128
MAX_KEPT = 8
INTERVALS = 32


@dataclass(slots=True)
class Exit:
    """An end of a process that the log tells. what: unit (its main process), deactivated, subprocess, worker, sigquit,
    exception. failed: not a status of 0. asked: somebody had asked systemd to stop the unit."""

    what: str
    t: int
    text: str
    evidence: Evidence
    failed: bool = True
    asked: bool = False
    pid: int | None = None
    status: str = ""


@dataclass(slots=True)
class OpenPhase:
    """A phase that has begun. t: when; seen: the last sign of it; progress: its last `2/5`."""

    name: str
    t: int
    seen: int
    evidence: Evidence
    progress: str = ""
    ended: bool = False


@dataclass(slots=True)
class Batches:
    """What the Decode and Prefill lines of a run said."""

    count: int = 0
    first: int | None = None  # t
    last: tuple[int, Log, int | None] | None = None  # t, the line, its record number
    decode: Decode | None = None
    prefill: tuple[int, Prefill] | None = None
    intervals: deque[int] = field(default_factory=lambda: deque(maxlen=INTERVALS))

    def usual(self) -> int | None:
        """µs between two lines of a server at work: the median of the last ones."""
        if len(self.intervals) < 3:
            return None
        return sorted(self.intervals)[len(self.intervals) // 2]


@dataclass(slots=True)
class Run:
    """Times are µs since the epoch. begun: the log shows that an SGLang server starts, which will say when it is ready;
    ready, ended: None until they are seen."""

    number: int
    t: int
    evidence: Evidence
    begun: bool = False
    pids: dict[int, None] = field(default_factory=dict)
    main: int | None = None
    args: dict[str, str] = field(default_factory=dict)
    args_evidence: Evidence | None = None
    version: str = ""
    ready: tuple[int, Evidence] | None = None
    health: tuple[int, Evidence] | None = None  # last 200 of a health check
    answered: tuple[int, Evidence] | None = None  # last 200 of anything else
    stopping: bool = False
    seen: int = 0  # t of its last line
    ended: Exit | None = None
    deaths: list[Exit] = field(default_factory=list)
    watchdogs: list[tuple[int, Evidence, str]] = field(default_factory=list)  # t, evidence, rank
    phases: dict[str, OpenPhase] = field(default_factory=dict)
    batches: Batches = field(default_factory=Batches)
    tracebacks: Tracebacks = field(default_factory=Tracebacks)

    @property
    def served(self) -> bool:
        """It said that it is ready, or it worked."""
        return self.ready is not None or self.batches.first is not None

    @property
    def failed(self) -> bool:
        """It ended, by itself and not with a status of 0."""
        return self.ended is not None and self.ended.failed and not self.ended.asked

    @property
    def coming(self) -> bool:
        """It has not served yet, and nothing of it has ended or died."""
        return not (self.served or self.deaths or self.ended is not None)

    def phase(self) -> OpenPhase | None:
        """The phase that has begun last and is not over."""
        open_ = [phase for phase in self.phases.values() if not phase.ended]
        return max(open_, key=lambda phase: phase.seen, default=None)

    def is_ready(self, t: int, evidence: Evidence) -> None:
        """It said so; every phase of its start is over."""
        self.ready = (t, evidence)
        for phase in self.phases.values():
            phase.ended = True

    def progressed(self) -> tuple[int, Evidence] | None:
        """The last sign of work: a batch line."""
        if self.batches.last is None:
            return None
        t, record, index = self.batches.last
        return t, evidence_of(record, index, f"the last batch: {excerpt(message_of(record) or '', 160)}")

    def owns(self, pid: int | None) -> bool:
        """Whether a process is known to belong to it."""
        return pid is not None and pid in self.pids

    def join(self, pid: int | None) -> None:
        """A process of this run."""
        if pid is not None and len(self.pids) < MAX_PIDS:
            self.pids[pid] = None


@dataclass(slots=True)
class Service:
    """One service: a unit of a journal, or a log file. Of its runs the first ones and the last ones are kept."""

    src: str
    unit: str = ""
    runs: list[Run] = field(default_factory=list)
    count: int = 0
    restarts: tuple[int, Evidence] | None = None  # systemd's counter, its highest
    first_restart: int | None = None  # t
    failures: int = 0  # runs that failed before they served
    limit: tuple[int, Evidence] | None = None  # systemd gave up
    state: tuple[str, int, Evidence] | None = None  # systemd's last word: started, stopped, …
    lost: int = 0  # t of the last hole in its log
    server: bool = False  # it wrote what only a server of models writes

    @property
    def name(self) -> str:
        """How findings call it."""
        return excerpt(self.unit or self.src.partition("/")[2] or self.src, 80)

    @property
    def now(self) -> Run | None:
        """The last run."""
        return self.runs[-1] if self.runs else None

    def recovered(self, since: int) -> bool:
        """Whether a run that began after that time serves, as far as is known."""
        run = self.now
        return run is not None and run.t > since and run.served and not run.failed and not run.deaths

    def begin(self, run: Run) -> Run:
        """Another run."""
        self.count += 1
        self.runs.append(run)
        if len(self.runs) > 2 * MAX_KEPT:
            del self.runs[MAX_KEPT]
        return run
