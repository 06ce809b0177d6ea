"""`config.requested_vs_effective`: what was asked for is not what is in force.

Read from the drafter's own configuration against the engine's, from a server's arguments as given and as resolved,
and from settings that make numbers up. Acceptance does not have to show it: layer ids off by one or two measured
τ 3.24, as without the fault. Where the curve shows it too, `accept.curve` names the same cause, and this is folded in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.drafter_inputs import Cause, DrafterInputs
from ddscope.diagnose.journal import WANTS, Journal, JournalRule
from ddscope.diagnose.simulated import MARK, simulated
from ddscope.diagnose.values import host_of, mapping, on, shown
from ddscope.diagnose.words import excerpt, listed, plural, slug
from ddscope.model import Fact, Header, Log, Record

SETTINGS_NOT = ("replay_check", "draft.features", "engine.state", "engine.error")  # frequent, and no settings
MAX_HOSTS = 32
MAX_PATCHES = 8

SAME = {"nextn": "eagle"}
"""Names that a server resolves to another one, by design."""
_UNSET = ("none", "auto", "null", "")
_TELLING = (
    "speculative_", "attention_backend", "sampling_backend", "cuda_graph", "overlap", "dtype", "quantization",
    "page_size", "tp_size", "dp_size", "radix", "simulate",
)  # fmt: skip
_NO_INSTALL = ("could NOT install", "could not install", "could not be installed")


class RequestedVsEffective(JournalRule):
    """Compares `drafter.checkpoint` with `drafter.in_force`, `server.args` with itself, and looks for simulation."""

    id = "config.requested_vs_effective"
    wants = (*WANTS, Fact, Header)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._inputs = DrafterInputs()
        self._simulated: list[tuple[float, Evidence]] = []
        self._args: dict[str, tuple[dict[str, Any], Evidence]] = {}
        self._patches: list[Evidence] = []

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if isinstance(record, Log):
            self._log(record, index)
        elif isinstance(record, Fact):
            self._inputs.observe(record, index)
            self._fact(record, index)
        elif isinstance(record, Header) and record.engine is not None:
            text = str(record.engine.config)
            self._simulates(text, record, index, "the engine's configuration simulates acceptance")

    def _log(self, record: Log, index: int | None) -> None:
        message = self.journal.message
        if not message:
            return
        if MARK in message:
            self._simulates(message, record, index, excerpt(message))
        failed = "nstall" in message and "atch" in message and any(mark in message for mark in _NO_INSTALL)
        if failed and len(self._patches) < MAX_PATCHES:
            self._patches.append(evidence_of(record, index, excerpt(message)))

    def _fact(self, fact: Fact, index: int | None) -> None:
        if fact.name in SETTINGS_NOT:
            return
        said = f"{fact.name}: {fact.value}"
        if MARK in said.upper():
            self._simulates(said, fact, index, excerpt(said))
        value = mapping(fact.value)
        if fact.name == "server.args" and value and len(self._args) < MAX_HOSTS:
            key = f"{host_of(fact.src, value)} {shown(value.get('unit') or value.get('pid') or '')}"
            self._args[key] = (value, evidence_of(fact, index, "the server's arguments, as given and as in force"))

    def _simulates(self, text: str, record: Record, index: int | None, said: str) -> None:
        length = simulated(text)
        if length is not None and len(self._simulated) < MAX_EVIDENCE:
            self._simulated.append((length, evidence_of(record, index, said)))

    def findings(self) -> Iterable[Finding]:
        for cause in self._inputs.causes():
            yield self._finding(cause)
        if self._simulated:
            yield self._simulation()
        if self._patches:
            yield self._patch()
        for value, evidence in self._args.values():
            yield from self._server(value, evidence)
        yield from self._unused()

    def _finding(self, cause: Cause) -> Finding:
        return Finding(
            id=self.id,
            kind=cause.kind,
            severity="warning",
            confidence=0.9,
            title=f"The drafter is not fed as it was trained: {cause.words}.",
            detail="Read from the configurations. Acceptance need not fall much, and the text stays right.",
            symptom="The drafter is not fed as it was trained.",
            evidence=cause.evidence,
            next=cause.next,
            ruled_out=(
                RuledOut("wrong text", "a drafter's inputs change what is proposed, not what the target accepts"),
            ),
        )

    def _simulation(self) -> Finding:
        length = self._simulated[0][0]
        return Finding(
            id=self.id,
            kind="simulated",
            severity="warning",
            confidence=0.95,
            title="Acceptance is simulated by a setting: how high or low it is says nothing about the drafter.",
            detail=f"The accept length is set to {length:g}. With some modes the text is made up, too.",
            evidence=tuple(evidence for _, evidence in self._simulated),
            next=("Remove SGLANG_SIMULATE_ACC_LEN and what belongs to it, restart, and measure again.",),
            ruled_out=(RuledOut("a fault of the drafter", "what is accepted is not decided by its drafts"),),
        )

    def _patch(self) -> Finding:
        return Finding(
            id=self.id,
            kind="patch",
            severity="warning",
            confidence=0.85,
            title="A patch says that it could not install: the server runs without it.",
            detail=f"{plural(len(self._patches), 'line')} of the log. What it guards against can show much later.",
            evidence=tuple(self._patches),
            next=("Compare the version of the server with the one the patch is for; fix or remove the patch.",),
        )

    def _server(self, value: dict[str, Any], evidence: Evidence) -> Iterable[Finding]:
        requested, effective = mapping(value.get("requested")), mapping(value.get("effective"))
        differ = [
            (name, asked, effective[name])
            for name, asked in sorted(requested.items())
            if any(part in name for part in _TELLING)
            if name in effective and not same(asked, effective[name])
        ]
        if not differ:
            return
        words = [f"{name} {shown(asked)} was asked for, {shown(given)} is in force" for name, asked, given in differ]
        yield Finding(
            id=self.id,
            kind="+".join(slug(name) for name, _, _ in differ[:4]),
            severity="warning",
            confidence=0.9,
            title=f"The server{on(host_of(evidence.src, value))} does not run as it was asked to: {words[0]}.",
            detail=f"{listed(words[1:], 6)}." if words[1:] else "",
            evidence=(evidence,),
            next=("Read the server's warnings at its start: it says there why it takes another value.",),
            ruled_out=(RuledOut("names that mean the same", "aliases such as NEXTN for EAGLE are not counted"),),
        )

    def _unused(self) -> Iterable[Finding]:
        """A draft model, and no algorithm that uses it."""
        for service in self.journal.servers():
            run = service.now
            if run is None or run.args_evidence is None:
                continue
            algorithm = run.args.get("speculative_algorithm", "?")
            draft = run.args.get("speculative_draft_model_path", "none")
            if algorithm.lower() in _UNSET and draft.lower() not in _UNSET:
                yield Finding(
                    id=self.id,
                    kind="speculation_off",
                    severity="warning",
                    confidence=0.85,
                    title=f"{service.name} has a draft model and does not speculate: no algorithm is set.",
                    detail=f"speculative_algorithm is {algorithm or 'empty'}.",
                    evidence=(run.args_evidence,),
                    next=("Give --speculative-algorithm, or take the draft model away.",),
                )


def same(asked: Any, given: Any) -> bool:
    """Whether a value in force is what was asked for. `auto` and nothing ask for nothing."""
    one, two = str(asked).strip().lower(), str(given).strip().lower()
    if one in _UNSET or SAME.get(one, one) == SAME.get(two, two):
        return True
    try:
        return float(one) == float(two)
    except ValueError:
        return False
