"""`startup.*`: why a server did not start, what only looks like it, and what it is doing while it is quiet.

The same block of text (torchcodec, FFmpeg, a traceback) is noise in a run that serves afterwards and the cause in one
that ends there: what decides is what the same run did next. Of a crash loop the first exit matters, not the last.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose import abi
from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut
from ddscope.diagnose.journal import StateRule
from ddscope.diagnose.runs import Run, Service
from ddscope.diagnose.tracebacks import Trouble, is_ffmpeg, missing_file
from ddscope.diagnose.words import listed, plural, seconds, slug

LOOP = 3  # starts that failed
HOUR = 3_600_000_000  # µs
QUIET = 30_000_000  # µs a phase may take before it is worth a word
_CUDA_FILES = (
    "libnvrtc",
    "libcudart",
    "libcublas",
    "libcudnn",
    "libcuda",
    "libnv",
    "libnpp",
    "libcusparse",
    "libcufft",
)


def fatal_trouble(run: Run) -> Trouble | None:
    """What did not load and ended the run; None where the run went on after it, or ended by something else."""
    if run.served or not run.failed or run.ended is None or not run.ended.status.startswith("exited"):
        return None
    last = run.tracebacks.last(run.ended.t)
    if last is None or last.trouble is None or last.trouble.ignored:
        return None
    if any(phase.t > last.t for phase in run.phases.values()):
        return None
    return last.trouble


def survived(run: Run, trouble: Trouble) -> bool:
    """Whether the run did its work after that."""
    ready = run.ready is not None and run.ready[0] >= trouble.t
    return ready or (run.batches.last is not None and run.batches.last[0] >= trouble.t)


class OptionalImport(StateRule):
    """Something did not load, and the server started and served all the same.

    Lines of a server that only say what it does without (a sound SGLang writes a dozen) are not worth a word.
    """

    id = "startup.optional_import"

    def findings(self) -> Iterable[Finding]:
        for service in self.journal.servers():
            seen = [
                (run, trouble)
                for run in service.runs
                for trouble in run.tracebacks.listed()
                if trouble.loud and survived(run, trouble)
            ]
            if seen:
                yield self._finding(service, seen)

    def _finding(self, service: Service, seen: list[tuple[Run, Trouble]]) -> Finding:
        libraries = list(dict.fromkeys(trouble.library for _, trouble in seen))
        run, trouble = seen[0]
        evidence = list(dict.fromkeys(e for _, trouble in seen[:3] for e in trouble.evidence[:2]))
        if run.ready is not None:
            evidence.append(run.ready[1])
        work = run.progressed()
        if work is not None:
            evidence.append(work[1])
        process = f"process {trouble.pid}" if trouble.pid is not None else "the same run"
        runs = plural(len({id(run) for run, _ in seen}), "run")
        return Finding(
            id=self.id,
            severity="info",
            confidence=0.95,
            title=f"{listed(libraries, 4)} could not be loaded, and {service.name} started and works without: noise.",
            detail=f"Seen in {runs}; {process} wrote it and went on. Inside it says: {trouble.cause()}",
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=("Nothing, unless requests need it: those (audio, video) may be refused one by one.",),
            ruled_out=(
                RuledOut(
                    "the cause of whatever else is wrong",
                    "the run said that it is ready, or computed batches, after the block",
                ),
            ),
        )


class ImportFatal(StateRule):
    """The same block, and the process ended there."""

    id = "startup.import_fatal"

    def findings(self) -> Iterable[Finding]:
        for service in self.journal.servers():
            found: dict[tuple[str, str], list[tuple[Run, Trouble]]] = {}
            for run in service.runs:
                trouble = fatal_trouble(run)
                if trouble is not None and abi.classify(trouble.cause()) is None:
                    found.setdefault((trouble.library, trouble.cause()), []).append((run, trouble))
            for (library, cause), seen in found.items():
                yield self._finding(service, library, cause, seen)

    def _finding(self, service: Service, library: str, cause: str, seen: list[tuple[Run, Trouble]]) -> Finding:
        trouble, past = seen[0][1], service.recovered(seen[-1][0].t)
        missing = missing_file(cause)
        why = f"{missing} is not there" if missing else cause
        evidence = [e for run, trouble in seen[:3] for e in (*trouble.evidence[:1], *_exit(run))]
        ruled_out = []
        if trouble.causes and not is_ffmpeg(cause):
            tried = sum(cause == other for other in trouble.causes)
            whose = " which is no file of FFmpeg's" if missing else " which FFmpeg has no part in"
            what = (
                f"the headline speaks of it whatever the reason is; {plural(tried, 'attempt')} failed on this,{whose}"
            )
            ruled_out.append(RuledOut("FFmpeg", what))
        return Finding(
            id=self.id,
            kind=slug(library),
            severity="info" if past else "critical",
            confidence=0.95 if trouble.causes else 0.85,
            title=f"{service.name} {'did' if past else 'does'} not start: {library} could not be loaded, because {why}."
            + (" A later run serves." if past else ""),
            detail=f"{plural(len(seen), 'run')} ended right after it, before the server was ready. Innermost: {cause}",
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=_next_fatal(library, missing),
            ruled_out=tuple(ruled_out),
        )


def _next_fatal(library: str, missing: str | None) -> tuple[str, ...]:
    if missing is not None and missing.startswith(_CUDA_FILES):
        todo = (
            f"{missing} is a file of the CUDA toolkit: compare the CUDA that {library} was built for with the one that "
            "torch brings, and install the build that fits (or the missing nvidia-… package)."
        )
    elif missing is not None:
        todo = f"Install what holds {missing} in the version that its name says, or a build of {library} that has it."
    else:
        todo = f"Import {library} in the server's own Python and read its error."
    return (todo, f"If nothing needs {library} (a text model), removing it lets the server start.")


def _exit(run: Run) -> tuple[Evidence, ...]:
    return () if run.ended is None else (run.ended.evidence,)


def close(failed: list[Run]) -> bool:
    """Whether enough runs failed within an hour: crashes weeks apart are no loop."""
    ends = [run.ended.t for run in failed if run.ended is not None]
    return any(last - first <= HOUR for first, last in zip(ends, ends[LOOP - 1 :], strict=False))


class CrashLoop(StateRule):
    """systemd starts it again and again. The first exit's cause is the finding, the loop its consequence."""

    id = "startup.crash_loop"

    def findings(self) -> Iterable[Finding]:
        for service in self.journal.servers():
            failed = [run for run in service.runs if run.failed]
            restarts = service.restarts[0] if service.restarts is not None else 0
            if not failed or service.recovered(failed[-1].t):
                continue
            if (service.limit is not None and len(failed) > 1) or (restarts >= LOOP and close(failed)):
                yield self._finding(service, failed, restarts)

    def _finding(self, service: Service, failed: list[Run], restarts: int) -> Finding:
        first = failed[0]
        assert first.ended is not None
        last = first.tracebacks.last(first.ended.t)
        gave_up = service.limit is not None
        cause = last.text if last is not None else "its log names no reason"
        evidence = [first.ended.evidence, *((last.evidence,) if last is not None else ())]
        evidence += [told[1] for told in (service.restarts, service.limit) if told is not None]
        ended = failed[-1].ended
        if ended is not None and ended is not first.ended:
            evidence.append(ended.evidence)
        span = seconds(ended.t - first.ended.t) if ended is not None else ""
        never = service.failures >= len(failed)
        next_ = [
            "Read the first exit, not the last: later ones can fail for another reason, such as a port still held."
        ]
        if "already in use" in cause:
            next_ = ["An older process still holds the port: find it (`ss -ltnp`) and end it before the next start."]
        return Finding(
            id=self.id,
            severity="high",
            confidence=0.9,
            title=f"{service.name} crashes again and again" + (", and systemd has given up." if gave_up else "."),
            detail=f"{plural(len(failed), 'run')} failed" + (" before they were ready" if never else "")
            + (f" within {span}" if span else "") + f"; systemd counts {plural(restarts, 'restart')}. "
            f"The first ended with: {cause}",
            symptom=f"{service.name} was started {len(failed)} times and failed each time.",
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=(*next_, "After the fix: `systemctl reset-failed`, then start it once by hand."),
        )  # fmt: skip


class StartupPhase(StateRule):
    """The server is quiet because it loads, compiles or captures."""

    id = "startup.phase"

    def findings(self) -> Iterable[Finding]:
        for service in self.journal.servers():
            run = service.now
            known = run is not None and run.coming and service.lost <= run.t
            phase = run.phase() if run is not None and known else None
            if run is None or phase is None or self.journal.now - phase.t < QUIET:
                continue
            since, quiet = seconds(self.journal.now - phase.t), seconds(self.journal.now - phase.seen)
            progress = f", {phase.progress} so far" if phase.progress else ""
            yield Finding(
                id=self.id,
                kind=phase.name.replace(" ", "_"),
                severity="info",
                confidence=0.85,
                title=f"{service.name} is still starting: {phase.name} for {since}{progress}.",
                detail=f"Its last sign of it is {quiet} old. A first start may compile kernels for 20 minutes.",
                evidence=(phase.evidence,),
                next=("Wait for the line that says that it is ready, and watch whether GPU or disk are at work.",),
                ruled_out=(RuledOut("a server that is stuck", "this process has not said yet that it is ready"),),
            )
