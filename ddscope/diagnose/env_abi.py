"""`env.abi`: binaries that do not fit each other: PyTorch, CUDA, driver, GPU, C library.

Read from error messages in logs and from the doctor's facts `host.env` and `host.library`. Which layer is too old is in
the symbol that is missing; the advice printed with it (`pip install --upgrade …`) is the same for all and often wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddscope.diagnose.abi import Misfit, classify
from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, Severity, evidence_of
from ddscope.diagnose.journal import WANTS, Journal, JournalRule
from ddscope.diagnose.runs import Run, Service
from ddscope.diagnose.values import host_of, items, mapping, on, text, texts
from ddscope.diagnose.words import excerpt, listed, plural, sentence, slug
from ddscope.model import Fact, Log, Record

MAX_KINDS = 32
MAX_FACTS = 64
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_ARCH = re.compile(r"(sm|compute)_(\d{1,2})(\d)[af]?")


@dataclass(slots=True)
class _Seen:
    """One misfit in one log. runs: those it was seen in, the first ones."""

    misfit: Misfit
    service: Service
    runs: list[Run] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    count: int = 0
    last: int = 0


class EnvAbi(JournalRule):
    """Collects misfits, and what the runs that showed them did afterwards."""

    id = "env.abi"
    wants = (*WANTS, Fact)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._seen: dict[tuple[str, str, str], _Seen] = {}
        self._env: dict[str, tuple[dict[str, Any], Evidence]] = {}
        self._libraries: dict[tuple[str, str], tuple[dict[str, Any], Evidence]] = {}

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if isinstance(record, Log):
            message = self.journal.message if self.journal.run is not None else None
            if message and _speaks_of_it(message):
                self._message(message, record, index)
        elif isinstance(record, Fact):
            self._fact(record, index)

    def _message(self, message: str, record: Log, index: int | None) -> None:
        misfit, run = classify(message), self.journal.run
        if misfit is None or run is None:
            return
        service = self.journal.services[record.src]
        key = (record.src, misfit.kind, misfit.name)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= MAX_KINDS:
                return
            seen = self._seen[key] = _Seen(misfit, service)
        seen.count += 1
        seen.last = record.t
        if all(run is not known for known in seen.runs) and len(seen.runs) < 4:
            seen.runs.append(run)
            seen.evidence.append(evidence_of(record, index, excerpt(message)))

    def _fact(self, fact: Fact, index: int | None) -> None:
        value = mapping(fact.value)
        host = host_of(fact.src, value)
        if fact.name == "host.env" and value and (host in self._env or len(self._env) < MAX_FACTS):
            self._env[host] = (value, evidence_of(fact, index, _env_words(value)))
        elif fact.name == "host.library" and value.get("loads") is False:
            key = (host, text(value.get("library"), "a library"))
            if key in self._libraries or len(self._libraries) < MAX_FACTS:
                cause = text(value.get("cause")) or text(value.get("error"))
                self._libraries[key] = (value, evidence_of(fact, index, f"{key[1]} does not load: {excerpt(cause)}"))

    def findings(self) -> Iterable[Finding]:
        for seen in self._seen.values():
            yield self._from_log(seen)
        for host, (value, evidence) in self._env.items():
            yield from self._from_env(host, value, evidence)
        for (host, library), (value, evidence) in self._libraries.items():
            yield self._library(host, library, value, evidence)

    def _from_log(self, seen: _Seen) -> Finding:
        name = seen.service.name
        survived = [run for run in seen.runs if _survived(run)]
        fatal = [run for run in seen.runs if run not in survived and (run.failed or run.deaths)]
        misfit = seen.misfit
        severity: Severity = "critical" if fatal else "info" if survived else "warning"
        past = bool(fatal) and seen.service.recovered(fatal[-1].t)
        if past:
            severity = "info"
        then = (
            f"{name} ended with it."
            if fatal
            else f"{name} started and works all the same: something optional is missing."
            if survived
            else f"What {name} did afterwards is not in the log."
        )
        evidence = [*seen.evidence]
        for run in fatal[:2]:
            end = run.ended or run.deaths[0]
            evidence.append(end.evidence)
        ruled_out = []
        if misfit.kind == "torch":
            why = f"{misfit.name} belongs to PyTorch, so code for the GPU may well be there"
            ruled_out.append(RuledOut("a missing GPU architecture", why))
        elif misfit.kind == "driver" and misfit.name:
            ruled_out.append(RuledOut("the PyTorch build", f"{misfit.name} is a function of the driver"))
        words = misfit.words
        return Finding(
            id=self.id,
            kind=misfit.kind + ("" if fatal or severity != "info" else ".optional"),
            severity=severity,
            confidence=0.9 if misfit.kind != "symbol" else 0.75,
            title=f"{words[:1].upper()}{words[1:]}.",
            detail=f"Seen in {plural(seen.count, 'line')}. {then}{' A later run serves.' if past else ''}",
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=(
                *misfit.next,
                "Do not follow advice that is printed with the error before that: it is the same for every reason.",
                "`ddscope doctor` shows the versions of all of them side by side.",
            ),
            ruled_out=tuple(ruled_out),
        )

    def _from_env(self, host: str, value: dict[str, Any], evidence: Evidence) -> Iterable[Finding]:
        built, taken = _version(value.get("torch_cuda")), _version(value.get("driver_cuda"))
        if built is not None and taken is not None and built[0] > taken[0]:
            yield Finding(
                id=self.id,
                kind="driver",
                severity="high",
                confidence=0.9,
                title=f"The NVIDIA driver{on(host)} is older than PyTorch's CUDA: it takes CUDA "
                f"{taken[0]}.{taken[1]}, torch is built with {built[0]}.{built[1]}.",
                detail=_env_words(value),
                evidence=(evidence,),
                next=("Update the driver, or install the torch that is built with a CUDA the driver takes.",),
                ruled_out=(RuledOut("minor versions", "within one major version newer builds run on older drivers"),),
            )
        arches = [found for arch in texts(value.get("arch_list")) if (found := _ARCH.fullmatch(arch))]
        for gpu in items(value.get("gpus")):
            capability = _version(gpu.get("capability"))
            if arches and capability is not None and not any(_runs_on(arch, capability) for arch in arches):
                name = text(gpu.get("name"), "a GPU")
                yield Finding(
                    id=self.id,
                    kind="architecture",
                    severity="high",
                    confidence=0.9,
                    title=f"torch{on(host)} holds no code for {name} (compute capability "
                    f"{capability[0]}.{capability[1]}).",
                    detail=f"It was built for {listed(texts(value.get('arch_list')), 12)}.",
                    evidence=(evidence,),
                    next=Misfit("architecture").next,
                )

    def _library(self, host: str, library: str, value: dict[str, Any], evidence: Evidence) -> Finding:
        needed = value.get("needed")
        cause = text(value.get("cause")) or text(value.get("error"), "no reason is given")
        misfit = classify(cause)
        users = texts(value.get("needed_by"))
        severity: Severity = "high" if needed is True else "info"
        who = f" Asked for by {listed(users, 4)}." if users else ""
        return Finding(
            id=self.id,
            kind=f"library.{slug(library)}",
            severity=severity,
            confidence=0.9 if needed is not None else 0.6,
            title=sentence(f"{library}{on(host)} does not load: {excerpt(cause, 160)}"),
            detail=("The server cannot serve without it." if needed is True
                    else "The server serves without it." if needed is False
                    else "Whether the server needs it is not known.") + who,
            evidence=(evidence,),
            next=misfit.next if misfit is not None else (f"Install what it lacks, or a build of {library} that fits.",),
        )  # fmt: skip


def _speaks_of_it(message: str) -> bool:
    """A quick look that leaves nearly every line out."""
    return (
        "undefined symbol" in message
        or "kernel image" in message
        or "NoKernelImage" in message
        or ("not found" in message and ("GLIBC" in message or "CXXABI" in message))
        or ("driver" in message and ("too old" in message or "insufficient" in message))
        or "unsupported toolchain" in message
    )


def _survived(run: Run) -> bool:
    return run.served and not run.deaths and not run.failed


def _version(value: object) -> tuple[int, int] | None:
    found = _VERSION.match(text(value))
    return (int(found[1]), int(found[2])) if found else None


def _runs_on(arch: re.Match[str], capability: tuple[int, int]) -> bool:
    """Compiled code runs on the same major capability and a minor one not below; PTX on everything from its own on."""
    major, minor = int(arch[2]), int(arch[3])
    if arch[1] == "compute":
        return (major, minor) <= capability
    return major == capability[0] and minor <= capability[1]


def _env_words(value: dict[str, Any]) -> str:
    parts = []
    for key, name in (
        ("torch", "torch"),
        ("torch_cuda", "built with CUDA"),
        ("driver", "driver"),
        ("driver_cuda", "which takes CUDA"),
    ):
        if text(value.get(key)):
            parts.append(f"{name} {text(value.get(key))}")
    return ", ".join(parts) or "the environment of the server"
