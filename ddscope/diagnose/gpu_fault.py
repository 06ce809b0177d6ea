"""`gpu.fault`: the kernel's or CUDA's word on a fault, next to a process that ended, whatever status it ended with.

The kernel's lines are in no unit's journal, and a server whose worker dies can shut down in good order with status 0.
An illegal access shows on several ranks and at a later call than the faulty one: it is one incident.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import WANTS, Journal, JournalRule, host_of_log
from ddscope.diagnose.runs import Exit, Run, Service
from ddscope.diagnose.system_log import OomKill, Xid
from ddscope.diagnose.words import excerpt, listed, plural, seconds
from ddscope.model import Log, Record, Step

NEAR = 5_000_000  # µs between the kernel's line and an end
ONE = 30_000_000  # µs; illegal accesses of all ranks within are one incident
MAX_INCIDENTS = 8
_ACCESS = ("illegal memory access", "cudaErrorIllegalAddress", "device-side assert triggered", "misaligned address")

XIDS = {
    13: ("an exception in a kernel", "software"),
    31: ("an access to memory that is not mapped", "software"),
    43: ("a kernel that was stopped", "software"),
    45: ("a clean-up after a process ended", "consequence"),
    48: ("a memory error that could not be corrected", "hardware"),
    61: ("an internal error of the GPU", "hardware"),
    62: ("an internal error of the GPU", "hardware"),
    63: ("a row of memory that was remapped", "hardware"),
    64: ("a row of memory that could not be remapped", "hardware"),
    69: ("an exception in a kernel", "software"),
    74: ("an error of NVLink", "hardware"),
    79: ("a GPU that has fallen off the bus", "hardware"),
    92: ("many memory errors that were corrected", "hardware"),
    94: ("a memory error, contained", "hardware"),
    95: ("a memory error, not contained", "hardware"),
    119: ("a time-out of the GPU's own processor", "either"),
    120: ("an error of the GPU's own processor", "either"),
}


Near = list[tuple[Service, Run, Exit]]
Ours = list[tuple[Service, Run]]


@dataclass(slots=True)
class _Access:
    """One incident of illegal accesses. src: the log; where: the state of the server then."""

    src: str
    t: int
    last: int
    where: str
    ranks: dict[str, None] = field(default_factory=dict)
    count: int = 0
    evidence: list[Evidence] = field(default_factory=list)


class GpuFault(JournalRule):
    """Pairs kernel lines with ends of processes, and collects illegal accesses."""

    id = "gpu.fault"
    wants = (*WANTS, Step)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._accesses: list[_Access] = []

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if not isinstance(record, Log) or self.journal.line is None:
            return
        text = self.journal.line.text
        if ("access" in text or "ddress" in text or "assert" in text) and any(mark in text for mark in _ACCESS):
            self._access(record, index, text)

    def _access(self, record: Log, index: int | None, text: str) -> None:
        found = next((a for a in self._accesses if a.src == record.src and record.t - a.last <= ONE), None)
        if found is None:
            if len(self._accesses) >= MAX_INCIDENTS:
                return
            found = _Access(record.src, record.t, record.t, self._state())
            self._accesses.append(found)
        found.last, found.count = record.t, found.count + 1
        prefix = self.journal.line.prefix if self.journal.line is not None else None
        tags = prefix.ranks if prefix is not None else {}
        rank = " ".join(f"{name}{number}" for name, number in tags.items())
        rank = rank or (f"process {record.pid}" if record.pid is not None else "")
        if rank and len(found.ranks) < 64:
            found.ranks[rank] = None
        if len(found.evidence) < MAX_EVIDENCE:
            found.evidence.append(evidence_of(record, index, excerpt(text)))

    def _state(self) -> str:
        """What ran last: shapes for whoever wants to see it again."""
        if self.journal.step is not None:
            return step_words(self.journal.step[0])
        decode = self.journal.run.batches.decode if self.journal.run is not None else None
        if decode is None:
            return ""
        return f"The last batch before it: {plural(decode.running or 0, 'request')}, {decode.tokens or 0:,} tokens."

    def findings(self) -> Iterable[Finding]:
        exits = [(service, run, end) for service, run in self.runs() for end in _ends(run)]
        told: list[tuple[int, Xid | OomKill, Evidence]] = []
        for t, event, evidence in self.journal.kernel:
            host = host_of_log(evidence.src)
            near = [e for e in exits if -NEAR <= e[2].t - t <= NEAR and host_of_log(e[0].src) == host]
            ours = [
                r
                for r in self.runs()
                if event.pid is not None and r[1].owns(event.pid) and host_of_log(r[0].src) == host
            ]
            if isinstance(event, Xid) and XIDS.get(event.number, ("", ""))[1] == "consequence" and not near:
                continue  # whoever ended did so because somebody asked
            if near or ours:
                told.append((t, event, evidence))
                others = [e for at, _, e in self.journal.kernel if e is not evidence and abs(at - t) <= NEAR]
                if not any(abs(at - t) <= NEAR and type(other) is type(event) for at, other, _ in told[:-1]):
                    yield self._kernel(t, event, [evidence, *others[:2]], near, ours)
        for access in self._accesses:
            yield self._illegal(access, [e for e in exits if 0 <= e[2].t - access.t <= ONE and e[0].src == access.src])

    def _kernel(
        self,
        t: int,
        event: Xid | OomKill,
        lines: list[Evidence],
        near: Near,
        ours: Ours,
    ) -> Finding:
        name = (near[0][0] if near else ours[0][0]).name
        ends = [end for _, _, end in sorted(near, key=lambda told: told[2].t)]
        where, ruled_out = f"The kernel's line is{_apart(t, ends)}", []
        if any(not end.failed for end in ends):
            why = "the status is 0 because the parent shut down after the fault"
            ruled_out.append(RuledOut("an end in good order", why))
            where += "; systemd counts this end as no failure, so Restart=on-failure does not start it again"
        told = _oom_killer(event, name, near, ours) if isinstance(event, OomKill) else _xid(event, name, near)
        evidence = (*lines, *(end.evidence for end in ends[:4]))
        if all(service.recovered(t) for service in (*(e[0] for e in near), *(r[0] for r in ours))):
            where += ". A later run serves"
            told = told.with_(severity="warning")
        return told.with_(detail=where + ".", evidence=evidence[:MAX_EVIDENCE], ruled_out=tuple(ruled_out))

    def _illegal(self, access: _Access, ends: Near) -> Finding:
        service = self.journal.services.get(access.src)
        name = service.name if service is not None else access.src
        ranks, past = len(access.ranks), service is not None and service.recovered(access.t)
        several = f" It shows on {listed(access.ranks, 4)}: one incident, not {ranks}." if ranks > 1 else ""
        evidence = [*access.evidence[:4], *(end.evidence for _, _, end in ends[:2])]
        return Finding(
            id=self.id,
            kind="illegal_access",
            severity="warning" if past else "critical" if ends else "high",
            confidence=0.9,
            title=f"A kernel of {name} touched memory that is not its own.",
            detail=f"Seen in {plural(access.count, 'line')}.{several} {access.where}".rstrip(),
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=(
                "The traceback shows a later call: run once with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer.",
                "Compare the last shapes with limits of drafter and kernels: position against max_position_embeddings, "
                "nodes of a tree, page size.",
            ),
            ruled_out=(
                RuledOut("the call that the traceback names", "such errors are told at a later synchronisation"),
            ),
        )


def _apart(t: int, ends: list[Exit]) -> str:
    """How far the kernel's line is from the first sign of an end."""
    if not ends:
        return " about one of its processes"
    return f" {seconds(abs(ends[0].t - t))} {'before' if ends[0].t >= t else 'after'} the first sign of its end"


def _oom_killer(event: OomKill, name: str, near: Near, ours: Ours) -> Finding:
    process = f"{event.name or 'a process'} (process {event.pid})"
    then = f", and {name} ended with it" if near else f" of {name}"
    return Finding(
        id=GpuFault.id,
        kind="oom_killer",
        severity="critical",
        confidence=0.95 if ours else 0.75,
        title=f"The kernel killed {process}{then}: the host ran out of memory.",
        next=(
            "Look at the host's memory then: weights read without mapping, pinned buffers, builds of kernels.",
            "Give it more memory or less to hold; the GPU's own memory is another matter.",
        ),
    )


def _xid(event: Xid, name: str, near: Near) -> Finding:
    words, kind = XIDS.get(event.number, ("a fault", "either"))
    then = f", and {name} ended with it" if near else f" for a process of {name}"
    return Finding(
        id=GpuFault.id,
        kind=f"xid_{event.number}",
        severity="critical" if near else "high",
        confidence=0.9 if near and kind != "consequence" else 0.6,
        title=f"The GPU driver reports Xid {event.number} on {event.device} ({words}){then}.",
        next=_next_xid(kind),
    )


def step_words(step: Step) -> str:
    """The shapes of a step."""
    nodes = len(step.tree.tokens) if step.tree is not None else 0
    batch = f", slot {step.batch[0]} of {step.batch[1]}" if step.batch is not None and len(step.batch) == 2 else ""
    where = f"{nodes} nodes at position {step.base}{batch}"
    return f"The last step before it: {step.algorithm or 'step'} {step.step}, {where}."


def _ends(run: Run) -> Iterable[Exit]:
    yield from run.deaths
    if run.ended is not None and not run.ended.asked:
        yield run.ended


def _next_xid(kind: str) -> tuple[str, ...]:
    first = {
        "software": "Usually a program's fault, not the GPU's: look at the kernels of the last step and their bounds.",
        "hardware": "Usually the GPU or its link: `nvidia-smi -q`, the vendor's diagnosis, another GPU for comparison.",
        "consequence": "Often only follows the end of a process: look for what ended it first.",
        "either": "Look it up in NVIDIA's list of Xids; it can be software or hardware.",
    }[kind]
    return (first, "Read the kernel's log itself (`journalctl -k`): a unit's journal does not hold these lines.")
