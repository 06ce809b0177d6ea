"""`serve.*`: a server that is up and does not serve, is not ready yet, or is down: the rung of the ladder that fails.

Silence is no evidence by itself: an idle server is silent, so is one that compiles, and a log may have holes. What
counts is a request of our own that gets no answer while no step is made, or the server's own watchdog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, Severity, evidence_of
from ddscope.diagnose.journal import StateRule, host_of_log
from ddscope.diagnose.runs import Exit, Run, Service
from ddscope.diagnose.startup import fatal_trouble
from ddscope.diagnose.words import excerpt, listed, plural, seconds, sentence
from ddscope.model import Probe

RUNGS = ("unit", "process", "port", "health", "generate", "progress")
DOWN = ("unit", "process", "port", "health")
TIMES = 3  # of the usual interval without a batch
LEAST = 5_000_000  # µs without one, at least
STARTING = 10_000_000  # µs after which a start is worth a word
LONG = 300_000_000  # µs without a line of a server that starts
_REFUSED = re.compile(r"(?:^|\bHTTP(?:/[\d.]{1,4})? |\bstatus |\banswers |\()(4\d\d)\b")

Told = tuple[Probe, Evidence]

_NEXT_STUCK = (
    "Take the stacks of the scheduler processes now, twice (py-spy, non-blocking): the frame that stays is what waits.",
    "With several ranks compare their stacks: one that is in another collective than the rest has parted from them.",
    "Keep the log around the last batch; restart only after that, as a restart takes the evidence away.",
)


class _ServeRule(StateRule):
    """What the rules about serving share: the ladder of each prober, and the service it belongs to."""

    def ladders(self) -> Iterable[tuple[str, dict[str, Told]]]:
        """The latest probe of every rung, by source."""
        ladders: dict[str, dict[str, Told]] = {}
        for (src, rung), told in self.journal.probes.items():
            ladders.setdefault(src, {})[rung] = told[-1]
        return ladders.items()

    def service(self, src: str) -> Service | None:
        """The service that a prober looks at: of its host where names tell, the one heard last where not."""
        host = src.partition("/")[2]
        known = [service for service in self.journal.servers() if service.runs]
        of_host = [service for service in known if host_of_log(service.src) == host]
        of_host = of_host or [service for service in known if not host_of_log(service.src)]
        return max(of_host, key=lambda service: service.runs[-1].seen, default=None)

    def worked(self, run: Run | None) -> tuple[int, Evidence] | None:
        """The last sign of work: a step of a trace, or a batch in the log."""
        told = [run.progressed()] if run is not None else []
        if self.journal.step is not None and len({src for src, _ in self.journal.probes}) < 2:  # of which host, else?
            step, index = self.journal.step
            if run is not None and run.begun and step.t < run.t:
                return run.progressed()  # a step of the server that ran before
            told.append((step.t, evidence_of(step, index, f"step {step.step}")))
        return max((t for t in told if t is not None), key=lambda t: t[0], default=None)


def starting(service: Service | None) -> bool:
    """Whether the last run is known to be on its way and not there yet. Where its log has a hole, nobody knows."""
    run = service.now if service is not None else None
    if service is None or run is None or service.lost > run.t:
        return False
    return run.begun and run.coming


def failing(ladder: dict[str, Told]) -> str | None:
    """`generate` or `progress` where it is the lowest rung that fails; None where another one does, or none."""
    lower = [ladder[rung][0] for rung in DOWN if rung in ladder]
    if not lower or not all(probe.ok for probe in lower):
        return None
    generate, progress = ladder.get("generate"), ladder.get("progress")
    if generate is not None and not generate[0].ok:
        return "generate"
    if progress is None or progress[0].ok or (generate is not None and generate[0].t >= progress[0].t):
        return None
    return "progress"


class AliveNotServing(_ServeRule):
    """`/health` answers and a request does not; or the watchdog says that no step is made."""

    id = "serve.alive_not_serving"

    def findings(self) -> Iterable[Finding]:
        probed = False
        for src, ladder in self.ladders():
            finding = self._probed(src, ladder)
            if finding is not None:
                probed = True
                yield finding
        if not probed:
            for service, run in self.runs():
                stuck = [w for w in run.watchdogs if run.batches.last is None or w[0] > run.batches.last[0]]
                if stuck:
                    yield self._watchdog(service, run, stuck)

    def _probed(self, src: str, ladder: dict[str, Told]) -> Finding | None:
        rung = failing(ladder)
        if rung is None:
            return None
        told = ladder[rung]
        service = self.service(src)
        run = service.now if service is not None else None
        if starting(service):
            return None
        refused = _REFUSED.search(told[0].detail or "") if rung == "generate" else None
        if refused:
            return self._refused(told, refused[1])
        worked = self.worked(run)
        if worked is not None and not self._silent(run, worked[0]):
            return None
        phase = run.phase() if run is not None else None
        if phase is not None and (worked is None or phase.seen > worked[0]):
            return None  # it compiles
        probes = self.journal.probes[src, rung]
        failed = probes[max((n for n, told in enumerate(probes) if told[0].ok), default=-1) + 1 :]
        return self._stuck(ladder, failed, service, run, worked)

    def _silent(self, run: Run | None, worked: int) -> bool:
        usual = run.batches.usual() if run is not None else None
        return self.journal.now - worked >= max(TIMES * usual if usual is not None else 0, LEAST)

    def _refused(self, generate: Told, status: str) -> Finding:
        return Finding(
            id=self.id,
            kind="refused",
            severity="info",
            confidence=0.6,
            title=f"The server refused the probe with {status}: that says nothing about whether it serves.",
            detail=generate[0].detail or "",
            evidence=(generate[1],),
            next=("Give the probe what the server asks for (a key, a model name), or turn it off with --no-probe.",),
        )

    def _stuck(
        self,
        ladder: dict[str, Told],
        failed: list[Told],
        service: Service | None,
        run: Run | None,
        worked: tuple[int, Evidence] | None,
    ) -> Finding:
        first, last = failed[0][0], failed[-1][0]
        own = first.rung == "generate"
        hole = service is not None and service.lost > (worked[0] if worked is not None else 0)
        evidence = [
            failed[0][1],
            *(ladder[rung][1] for rung in ("health", "port", "process", "unit") if rung in ladder),
        ]
        why = "the probe is a request of its own, and gets no answer" if own else "it counts requests that run"
        ruled_out = [RuledOut("an idle server", why)]
        if worked is not None:
            evidence.insert(1, worked[1])
            quiet = f"The last sign of work is {seconds(self.journal.now - worked[0])} old"
            usual = run.batches.usual() if run is not None else None
            quiet += f"; usually one comes every {seconds(usual)}." if usual is not None else "."
        else:
            quiet = "No step and no batch of it was seen at all."
        if run is not None and run.ready is not None:
            evidence.append(run.ready[1])
            ruled_out.append(RuledOut("a server that is still starting", "this run has said that it is ready"))
        if hole:
            quiet += " The log has a hole since then, so only the probe counts."
        name = service.name if service is not None and service.runs else "The server"
        said = f" {excerpt(last.detail, 160)}." if last.detail else ""
        does = "a request for a few tokens does not" if own else "the requests that run get no tokens"
        probes = plural(len(failed), "probe") + " without an answer." if own else "By its own metrics."
        return Finding(
            id=self.id,
            kind=first.rung,
            severity="critical",
            confidence=(0.7 if hole else 0.8) + (0.15 if len(failed) > 1 else 0.05 if worked is not None else 0.0),
            title=f"{name} is alive and does not serve: health answers, {does}.",
            detail=f"{probes} {quiet}{said}",
            symptom=f"{name} is alive and does not serve.",
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=_NEXT_STUCK,
            ruled_out=tuple(ruled_out),
        )

    def _watchdog(self, service: Service, run: Run, stuck: list[tuple[int, Evidence, str]]) -> Finding:
        ranks = listed(sorted({rank for _, _, rank in stuck if rank}))
        worked = run.progressed()
        evidence = [stuck[0][1], *(told[1] for told in stuck[1:3])]
        detail = f"Its own watchdog says so{' on ' + ranks if ranks else ''}."
        if worked is not None:
            evidence.insert(0, worked[1])
            detail += f" The last batch is {seconds(stuck[0][0] - worked[0])} older than that."
        ruled_out = []
        if run.health is not None and (worked is None or run.health[0] > worked[0]):
            evidence.append(run.health[1])
            ruled_out.append(
                RuledOut("a sound server", "health answered all the while: it does not look at the scheduler")
            )
        ruled_out.append(RuledOut("a tool that is missing", "where py-spy is not found only the stacks are missing"))
        if service.recovered(run.t):
            detail += " A later run serves."
        return Finding(
            id=self.id,
            kind="watchdog",
            severity="warning" if service.recovered(run.t) else "critical",
            confidence=0.9 if worked is not None else 0.8,
            title=f"The scheduler of {service.name} made no step any more although it had work.",
            detail=detail,
            symptom=f"The scheduler of {service.name} stood still until its watchdog ended it. {detail}",
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=_NEXT_STUCK,
            ruled_out=tuple(ruled_out),
        )


class NotReady(_ServeRule):
    """A run that has begun and not said yet that it is ready, whatever a health check says."""

    id = "serve.not_ready"

    def findings(self) -> Iterable[Finding]:
        for service in self.journal.servers():
            run = service.now
            if run is None or not starting(service) or run.phase() is not None:
                continue
            if self.journal.now - run.t < STARTING or self._answered(run, "generate") is not None:
                continue
            answered = self._answered(run, "health")
            quiet = self.journal.now - run.seen
            severity: Severity = "warning" if answered is not None or quiet > LONG else "info"
            ruled_out: tuple[RuledOut, ...] = ()
            if answered is not None:
                why = "it answered before this process was ready: an older process, or another one, holds the port"
                ruled_out = (RuledOut("a server that is up", why),)
            yield Finding(
                id=self.id,
                severity=severity,
                confidence=0.8,
                title=f"{service.name} was started {seconds(self.journal.now - run.t)} ago and is not ready yet.",
                detail=f"The line that says so has not come from this run. Its last line is {seconds(quiet)} old.",
                evidence=tuple(e for e in (run.args_evidence or run.evidence, answered) if e is not None),
                next=("Read the last lines of this run: what it does now is the last thing it said.",),
                ruled_out=ruled_out,
            )

    def _answered(self, run: Run, rung: str) -> Evidence | None:
        """A probe that succeeded since this run began."""
        for _, ladder in self.ladders():
            told = ladder.get(rung)
            if told is not None and told[0].ok and told[0].t > run.t:
                return told[1]
        return None


class Down(_ServeRule):
    """A rung below generate is down and nobody is starting it; or the last run died."""

    id = "serve.down"

    def findings(self) -> Iterable[Finding]:
        for service in self.journal.servers():
            run = service.now
            if run is not None and not run.watchdogs and fatal_trouble(run) is None:
                end = _crash(run)
                if end is not None:
                    yield self._crashed(service, run, end)
        for src, ladder in self.ladders():
            rung = next((rung for rung in DOWN if rung in ladder and not ladder[rung][0].ok), None)
            if rung is None:
                continue
            known = self.service(src)
            if rung in ("port", "health") and starting(known):
                continue
            probe, evidence = ladder[rung]
            before = [ladder[below][1] for below in RUNGS[: RUNGS.index(rung)] if below in ladder]
            run = known.now if known is not None else None
            if run is not None and run.ended is not None:
                before.append(run.ended.evidence)
            name = known.name if known is not None else "The server"
            told = Finding(
                id=self.id,
                kind=rung,
                severity="high",
                confidence=0.9,
                title=_DOWN[rung].format(name=name),
                detail=probe.detail or "",
                evidence=(evidence, *before)[:MAX_EVIDENCE],
                next=tuple(todo.format(name=name) for todo in _NEXT_DOWN[rung]),
            )
            if rung in ("unit", "process") and run is not None and run.ended is not None and run.ended.asked:
                told = told.with_(
                    severity="warning",
                    title=f"{name} does not run, because somebody stopped it.",
                    next=(f"Start it again if it should run: `systemctl start {name}`.",),
                    ruled_out=(RuledOut("a crash", "its log shows that systemd was asked to stop it"),),
                )
            yield told

    def _crashed(self, service: Service, run: Run, end: Exit) -> Finding:
        last = run.tracebacks.last()
        why = f": {excerpt(last.text, 160)}" if last is not None else ", and its log gives no reason."
        evidence = [
            *((last.evidence,) if last is not None else ()),
            end.evidence,
            *(d.evidence for d in run.deaths[:2]),
        ]
        if run.ended is not None:
            evidence.append(run.ended.evidence)
        return Finding(
            id=self.id,
            kind="crashed",
            severity="high",
            confidence=0.85 if last is not None else 0.7,
            title=sentence(f"{service.name} died{'' if run.served else ' before it was ready'}{why}"),
            detail=f"{seconds(end.t - run.t)} after its start. {end.text}",
            symptom=f"{service.name} died.",
            evidence=tuple(dict.fromkeys(evidence))[:MAX_EVIDENCE],
            next=("Read the traceback from its end, and what the kernel says at that time (`journalctl -k`).",),
        )


def _crash(run: Run) -> Exit | None:
    """How a run died by itself; None for one that lives, or that was asked to stop."""
    if run.stopping or (run.ended is not None and (run.ended.asked or not (run.ended.failed or run.deaths))):
        return None
    if run.ended is None and (
        not run.deaths or (run.batches.last is not None and run.batches.last[0] > run.deaths[-1].t)
    ):
        return None
    return run.deaths[0] if run.deaths else run.ended


_DOWN = {
    "unit": "{name} is not active.",
    "process": "The main process of {name} is not there.",
    "port": "{name} runs, but nothing listens on its port.",
    "health": "{name} listens, but its health check is not answered.",
}
_NEXT_DOWN = {
    "unit": (
        "Read how it ended: `systemctl status {name}`, its last lines, and the findings about its start or its end.",
        "Start it again only after that: `systemctl start {name}`.",
    ),
    "process": ("Read the last lines of the process, and the kernel's log at that time (`journalctl -k`).",),
    "port": ("Check the port in the server's arguments (`ss -ltnp` shows who listens), and whether it is starting.",),
    "health": ("Take the stacks of the process that listens: its event loop is blocked, or its start is not over.",),
}
