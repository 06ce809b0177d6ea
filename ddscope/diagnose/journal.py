"""What the logs have told so far, for all rules that read them: services, their runs, the kernel, probes, holes.

One `Journal` is shared by the rules of a diagnosis; the first that is handed a record takes it in, the others find it
known. It draws no conclusions. Time is that of the records, never of a clock: replay says what live said.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose import sglang_log, vllm_log
from ddscope.diagnose.base import Detector, Evidence, Finding, evidence_of
from ddscope.diagnose.log_events import (
    Death,
    Decode,
    Event,
    Http,
    Line,
    Phase,
    Prefill,
    Ready,
    ServerArgs,
    Stop,
    Version,
    Watchdog,
)
from ddscope.diagnose.messages import message_of
from ddscope.diagnose.runs import MAX_KEPT, Exit, OpenPhase, Run, Service
from ddscope.diagnose.system_log import OomKill, SystemEvent, UnitExit, UnitState, Xid, read
from ddscope.diagnose.words import excerpt
from ddscope.model import Gap, Log, Probe, Record, Step

WANTS: tuple[type[Record], ...] = (Log, Gap, Probe)
MAX_SERVICES = 64
MAX_KERNEL = 32
MAX_PROBES = 64
SERVERS = ("sglang", "vllm", "VllmWorker")
PAUSE = 60_000_000  # µs; between batch lines further apart the server had nothing to do


def is_log(src: str) -> bool:
    """Whether a source is a journal or a log file."""
    return src.startswith(("journal", "log"))


def host_of_log(src: str) -> str:
    """The host in the name of a log's source, `journal/<host>/<unit>`; "" where there is only one."""
    parts = src.split("/")
    return parts[1] if len(parts) > 2 else ""


class Journal:
    """The state of all logs. message, line, system and run are of the record that was observed last."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.kernel: list[tuple[int, Xid | OomKill, Evidence]] = []
        self.probes: dict[tuple[str, str], list[tuple[Probe, Evidence]]] = {}  # source, rung → the last ones
        self.step: tuple[Step, int | None] | None = None  # the last one, and its record number
        self.message: str | None = None
        self.now = 0
        self.line: Line | None = None
        self.system: SystemEvent | None = None
        self.run: Run | None = None
        self._last: Record | None = None

    def observe(self, record: Record, index: int | None = None) -> None:
        """Take in a record, once."""
        if record is self._last:
            return
        self._last = record
        self.message = self.line = self.system = self.run = None
        if record.t > self.now:
            self.now = record.t
        if isinstance(record, Log):
            self._log(record, index)
        elif isinstance(record, Step):
            self.step = (record, index)
        elif isinstance(record, Gap):
            if is_log(record.of):
                service = self._service(record.of)
                if service is not None:
                    service.lost = record.t
        elif isinstance(record, Probe):
            self._probe(record, index)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _log(self, record: Log, index: int | None) -> None:
        message = self.message = message_of(record)
        if not message:
            return
        self.system = read(record, message)
        if self.system is not None:
            self._systems(self.system, record, index, message)
            return
        if record.ident in ("kernel", "systemd-journald", "systemd"):
            return
        service = self._service(record.src)
        if service is None:
            return
        self.line = line = vllm_log.parse(message) or sglang_log.parse(message)
        run = self.run = self._run(service, record, index, line.event)
        run.seen = max(run.seen, record.t)
        if line.event is not None:
            service.server = service.server or not isinstance(line.event, Http)
            self._event(run, line, record, index)
        elif not service.server and any(name in message for name in SERVERS):
            service.server = True
        pid = record.pid if record.pid is not None or line.prefix is None else line.prefix.pid
        run.tracebacks.feed(line.text, pid, record, index)

    def _service(self, src: str) -> Service | None:
        service = self.services.get(src)
        if service is None:
            if len(self.services) >= MAX_SERVICES:  # a whole system's journal: only servers are worth their place
                other = next((known for known in self.services.values() if not known.server), None)
                if other is None:
                    return None
                del self.services[other.src]
            service = self.services[src] = Service(src)
        return service

    def servers(self) -> list[Service]:
        """Services that serve models; where none is known to, and there is only one, that one."""
        known = [service for service in self.services.values() if service.server]
        if known or len(self.services) != 1:
            return known
        return list(self.services.values())

    def _run(self, service: Service, record: Log, index: int | None, event: Event | None) -> Run:
        """The run that a line belongs to: that of its process; after an end, or with new arguments, another one."""
        run = service.now
        starts = isinstance(event, ServerArgs)
        if run is not None and not (starts and (run.args or run.served or run.ended)):
            if run.ended is None or run.owns(record.pid) or (record.pid is None and not starts):
                run.join(record.pid)
                return run
            for older in reversed(service.runs[:-1]):
                if older.owns(record.pid):
                    return older
        if run is not None and run.ended is not None and not starts:
            for older in reversed(service.runs):
                if older.owns(record.pid):
                    return older
        text = excerpt(self.message or "", 120)
        run = Run(service.count, record.t, evidence_of(record, index, f"the first line of a run: “{text}”"))
        run.begun = starts
        run.join(record.pid)
        return service.begin(run)

    def _event(self, run: Run, line: Line, record: Log, index: int | None) -> None:
        event = line.event
        if isinstance(event, Version):
            run.version = event.version
        if isinstance(event, Decode | Prefill):
            self._batch(run, event, record, index)
        elif isinstance(event, Http):
            if event.status == 200:
                told = (record.t, evidence_of(record, index, f"{event.method} {excerpt(event.path, 60)} answered 200"))
                if event.path.startswith(("/health", "/ping")):
                    run.health = told
                elif event.path not in ("/get_model_info", "/model_info", "/server_info", "/metrics", "/v1/models"):
                    run.answered = told
        elif isinstance(event, Phase):
            self._phase(run, event, record, index)
        elif isinstance(event, Ready):
            run.is_ready(record.t, evidence_of(record, index, "the server says that it is ready"))
        elif isinstance(event, ServerArgs):
            run.args, run.begun, run.main = event.values, True, record.pid
            run.args_evidence = evidence_of(record, index, "the server's arguments")
        elif isinstance(event, Watchdog):
            if len(run.watchdogs) < MAX_KEPT:
                ranks = line.prefix.ranks if line.prefix is not None else {}
                rank = " ".join(f"{name}{number}" for name, number in ranks.items())
                run.watchdogs.append((record.t, evidence_of(record, index, excerpt(line.text)), rank))
        elif isinstance(event, Death):
            self._death(run, event, line, record, index)
        elif isinstance(event, Stop):
            run.stopping = run.stopping or not run.deaths

    def _batch(self, run: Run, event: Decode | Prefill, record: Log, index: int | None) -> None:
        batches = run.batches
        if isinstance(event, Prefill):
            batches.prefill = (record.t, event)
        elif event.running is not None:  # else a line that tells only acceptance, right after one that tells the load
            if batches.decode is not None and batches.last is not None:
                apart = record.t - batches.last[0]
                if 0 < apart < PAUSE and batches.decode.running:
                    batches.intervals.append(apart)
            batches.decode = event
        batches.count += 1
        if batches.first is None:
            batches.first = record.t
        batches.last = (record.t, record, index)

    def _phase(self, run: Run, event: Phase, record: Log, index: int | None) -> None:
        phase = run.phases.get(event.name)
        if phase is None or (phase.ended and event.state != "end"):
            if event.state == "end" or (phase is None and len(run.phases) >= MAX_KEPT):
                return
            evidence = evidence_of(record, index, f"{event.name} began")
            phase = run.phases[event.name] = OpenPhase(event.name, record.t, record.t, evidence)
        phase.seen = max(phase.seen, record.t)
        phase.progress = event.progress or phase.progress
        phase.ended = event.state == "end"

    def _death(self, run: Run, event: Death, line: Line, record: Log, index: int | None) -> None:
        status = "" if event.code is None else str(event.code)
        evidence = evidence_of(record, index, excerpt(line.text))
        if len(run.deaths) < MAX_KEPT:
            run.deaths.append(Exit(event.kind, record.t, excerpt(line.text), evidence, pid=event.pid, status=status))

    # -- the system ----------------------------------------------------------------------------------------------------

    def _systems(self, event: SystemEvent, record: Log, index: int | None, message: str) -> None:
        evidence = evidence_of(record, index, excerpt(message))
        if isinstance(event, Xid | OomKill):
            if len(self.kernel) < MAX_KERNEL:
                self.kernel.append((record.t, event, evidence))
        elif isinstance(event, UnitExit | UnitState):
            service = self._service(record.src)
            if service is not None:
                if event.unit.endswith((".service", ".scope")):
                    service.unit = event.unit
                if isinstance(event, UnitExit):
                    self._ended(service, event, record.t, evidence)
                else:
                    self._state(service, event, record.t, evidence)

    def _ended(self, service: Service, event: UnitExit, t: int, evidence: Evidence) -> None:
        run = service.now
        if run is None or (run.ended is not None and run.ended.what == "unit"):
            return
        run.ended = Exit(
            "unit",
            t,
            evidence.text,
            evidence,
            failed=event.failed,
            asked=run.stopping,
            status=f"{event.code} {event.status}",
        )
        if run.failed and not run.served:
            service.failures += 1

    def _state(self, service: Service, event: UnitState, t: int, evidence: Evidence) -> None:
        run = service.now
        if event.what == "restart":
            if service.restarts is None or (event.count or 0) > service.restarts[0]:
                service.restarts = (event.count or 0, evidence)
            if service.first_restart is None:
                service.first_restart = t
        elif event.what == "start_limit":
            service.limit = (t, evidence)
        elif event.what == "stopping" and run is not None and run.ended is None:
            run.stopping = True
        elif event.what in ("deactivated", "stopped") and run is not None and run.ended is None:
            run.ended = Exit("deactivated", t, evidence.text, evidence, failed=False, asked=run.stopping)
        if event.what != "failed" or service.state is None or service.state[0] == "started":
            service.state = (event.what, t, evidence)

    def _probe(self, probe: Probe, index: int | None) -> None:
        key = (probe.src, probe.rung)
        told = self.probes.setdefault(key, []) if key in self.probes or len(self.probes) < MAX_PROBES else []
        words = "answers" if probe.ok else "does not"
        said = f": {excerpt(probe.detail, 160)}" if probe.detail else ""
        told.append((probe, evidence_of(probe, index, f"{probe.rung} {words}{said}")))
        del told[:-MAX_KEPT]


class JournalRule(Detector):
    """A rule that reads what the logs told. journal: the one it shares with other rules; its own without."""

    wants = WANTS

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal or Journal()

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)

    def findings(self) -> Iterable[Finding]:
        raise NotImplementedError

    def runs(self) -> Iterable[tuple[Service, Run]]:
        """All runs that are known, in the order of their services."""
        for service in self.journal.servers():
            for run in service.runs:
                yield service, run


class StateRule(JournalRule):
    """A rule that looks at no record itself: beside others that do, it asks for none."""

    wants = (*WANTS, Step)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        if journal is not None:
            self.wants = ()
