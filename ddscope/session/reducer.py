"""What a trace says, record by record: `reduce(state, number, record)` is pure and gives the next state.

Steps and log lines are not kept here: they are too many, and the index holds their columns (`ledger`). Payloads stay in
the file; a trail holds record numbers and the few scalars that rows need at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddscope.model import (
    Control,
    Fact,
    Finish,
    Gap,
    Header,
    Mark,
    Probe,
    Request,
    Stack,
    Tensor,
)
from ddscope.session.trail import Trail
from ddscope.trace.ranks import rank_of


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """Scalars of a `request` record."""

    prompt_len: int
    cached: int | None
    has_prompt: bool


@dataclass(frozen=True, slots=True)
class FinishSeen:
    """Scalars of a `finish` record."""

    reason: str
    emitted: int
    steps: int


@dataclass(frozen=True, slots=True)
class State:
    """Everything but steps and logs, as of record `n` - 1. Keys: rid, tensor, fact, command or source names.

    Rungs and processes are told by host, so `probes` and `stacks` have keys of source and rung or pid (`fact_key`).

    Each rank of a server tells its own facts: `facts` are those that hold for all, as the first rank tells them, and
    `rank_facts` those of every engine source and of every host's probes, by source and name (`fact_key`).
    """

    n: int = 0
    headers: Trail[bool] = field(default_factory=Trail)  # value: the header names an engine
    requests: Trail[RequestSeen] = field(default_factory=Trail)
    finishes: Trail[FinishSeen] = field(default_factory=Trail)
    tensors: Trail[bool | None] = field(default_factory=Trail)  # value: ok
    facts: Trail[None] = field(default_factory=Trail)
    rank_facts: Trail[None] = field(default_factory=Trail)
    controls: Trail[None] = field(default_factory=Trail)
    marks: Trail[None] = field(default_factory=Trail)
    gaps: Trail[int | None] = field(default_factory=Trail)  # value: count
    probes: Trail[bool] = field(default_factory=Trail)
    stacks: Trail[int] = field(default_factory=Trail)


def fact_key(src: str, name: str) -> str:
    """Key of a fact in `rank_facts`: no source has a newline in its name."""
    return f"{src}\n{name}"


PROBE = "probe"
"""How the sources begin that tell of a host."""

KINDS = ("header", "request", "finish", "tensor", "fact", "control", "mark", "gap", "probe", "stack")
"""Types of record that move the state."""


def reduce(state: State, number: int, record: object) -> State:
    """The state after record `number`. Records of other types, unknown and damaged ones only move `n`."""
    n = number + 1
    match record:
        case Fact(name=name, src=src):
            rank = rank_of(src)
            facts = state.facts if rank else state.facts.append(number, name, None)
            if rank is None and not src.startswith(PROBE):
                return replace(state, n=n, facts=facts)
            told = state.rank_facts.append(number, fact_key(src, name), None)
            return replace(state, n=n, facts=facts, rank_facts=told)
        case Tensor(name=name, ok=ok):
            return replace(state, n=n, tensors=state.tensors.append(number, name, ok))
        case Request(rid=rid):
            seen = RequestSeen(record.prompt_len, record.cached_tokens, record.prompt_ids is not None)
            return replace(state, n=n, requests=state.requests.append(number, rid, seen))
        case Finish(rid=rid):
            done = FinishSeen(record.reason, record.emitted, record.steps)
            return replace(state, n=n, finishes=state.finishes.append(number, rid, done))
        case Gap(of=of, count=count):
            return replace(state, n=n, gaps=state.gaps.append(number, of, count))
        case Mark(src=src):
            return replace(state, n=n, marks=state.marks.append(number, src, None))
        case Control(command=command):
            return replace(state, n=n, controls=state.controls.append(number, command, None))
        case Probe(rung=rung, ok=fine):
            return replace(state, n=n, probes=state.probes.append(number, fact_key(record.src, rung), fine))
        case Stack(src=src, pid=pid):
            return replace(state, n=n, stacks=state.stacks.append(number, fact_key(src, str(pid)), pid))
        case Header(src=src, engine=engine):
            return replace(state, n=n, headers=state.headers.append(number, src, engine is not None))
        case _:
            return replace(state, n=n)
