"""Small traces for tests: valid records of every type, made by hand, and the file they make."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ddscope.model import (
    Control,
    Draft,
    Engine,
    Fact,
    Finish,
    Flags,
    Gap,
    Header,
    Log,
    Mark,
    Model,
    Position,
    Probe,
    Producer,
    Raw64,
    Record,
    Request,
    Stack,
    Step,
    StepTime,
    Target,
    Tensor,
    Thread,
    Tokens,
    TopK,
    Tree,
)
from ddscope.trace import TraceFile, TraceWriter, encode

HOSTILE = '[/INST] \x1b[31mred\x1b[0m \\" </s> ⟨ﷺ⟩ \u202e\x00'
T0 = 1_790_000_000_000_000


class Clock:
    """seq, t and mono for the next record of a source."""

    def __init__(self) -> None:
        self.seqs: dict[str, int] = {}
        self.now = 0

    def __call__(self, src: str = "engine/0", skip: int = 0) -> dict[str, Any]:
        seq = self.seqs.get(src, -1) + 1 + skip
        self.seqs[src] = seq
        self.now += 1000
        return {"src": src, "seq": seq, "t": T0 + self.now, "mono": 7_000_000 + self.now}


def header(clock: Clock, **changes: Any) -> Header:
    fields: dict[str, Any] = {
        "format": "ddscope-trace",
        "version": "1.0",
        "min_reader": "1.0",
        "producer": Producer("tests", "1"),
        "host": "server-a",
        "boot_id": "0f-1",
        "engine": Engine(name="ddscope", version="0.1", algorithm="ddtree", config={"budget": 3}),
        "model": Model(target="target", draft="draft", vocab_size=100, hidden_size=8, num_layers=2),
    }
    return Header(**clock(), **fields | changes)


def step(
    clock: Clock,
    number: int,
    base: int,
    root: int,
    parents: Sequence[int] = (0, 0, 1),
    tokens: Sequence[int] = (11, 12, 13),
    path: Sequence[int] = (0, 1),
    bonus: int = 14,
    rid: str = "r1",
    **changes: Any,
) -> Step:
    """A step that keeps every invariant, for any valid tree and path."""
    depth, mask = [0], [1]
    for i, parent in enumerate(parents):
        depth.append(depth[parent] + 1)
        mask.append(mask[parent] | 1 << (i + 1))
    n = len(parents)
    emitted = [*(tokens[node - 1] for node in path[1:]), bonus]
    fields: dict[str, Any] = {
        "algorithm": "ddtree",
        "batch": [0, 1],
        "rank": 0,
        "draft": Draft(
            k=2, ids=[[11, 12], [13, 11]], logprobs=[[-0.25, -1.5], [-0.5, None]], logz=[9.5, 8.0], entropy=[1.0, 0.5]
        ),
        "tree": Tree(
            budget=max(n, 3),
            tokens=list(tokens),
            parents=list(parents),
            logprobs=[-0.25] * n,
            positions=[base + d for d in depth],
            mask=[format(row, "x") for row in mask],
        ),
        "target": Target(
            ids=[11] * (n + 1),
            logprobs=[-0.125] * (n + 1),
            gap=[2.5] * (n + 1),
            topk=TopK(ids=[[11, 12]] * len(path), logprobs=[[-0.125, -3.0]] * len(path)),
        ),
        "path": list(path),
        "bonus": bonus,
        "emitted": emitted,
        "time": StepTime(draft=100, build=20, mask=5, verify=900, commit=10, total=1035),
        "time_domain": "host",
        "flags": Flags(graph=False, overlap=False, sampled=False),
    }
    return Step(**clock(), rid=rid, step=number, base=base, root=root, **fields | changes)


def sample_records() -> list[Record]:
    """A short session with every record type but the footer: three steps, logs of hostile bytes, both kinds of gap."""
    clock = Clock()
    not_utf8 = Raw64(base64.b64encode(b"\xff\xfe[/INST]\x00").decode())
    return [
        header(clock),
        Fact(**clock(), name="engine.state", value={"state": "running", "rid": "r1", "step": 0, "reason": None}),
        Tokens(
            **clock(),
            ids=[1, 2, 10, 11, 12, 13, 14],
            text=["<s>", HOSTILE, " the", "[/INST]", "\x1b[31m", "é", not_utf8],
        ),
        Request(
            **clock(),
            rid="r1",
            prompt_len=2,
            prompt_ids=[1, 2],
            sampling={"temperature": 0.0, "max_new_tokens": 6, "seed": 7},
            cached_tokens=0,
        ),
        Tensor(
            **clock(),
            name="draft.target_hidden",
            shape=[2, 8],
            dtype="float32",
            device="cpu",
            expect=[None, 40],
            ok=False,
            owner="drafter",
        ),
        step(clock, 0, base=2, root=10, path=[0, 1, 3], bonus=14),
        Log(
            **clock("journal/server"),
            message=HOSTILE,
            cursor="s=1",
            unit="server",
            pid=4100,
            priority=3,
            ident="python3",
        ),
        Log(**clock("journal/server"), message=None, cursor="s=2", unit="server", priority=6),
        Log(**clock("journal/server"), message=not_utf8, partial=True),
        Gap(**clock("engine/0", skip=3), of="engine/0", count=4, reason="ring_full"),
        step(clock, 1, base=5, root=14, parents=[0, 1], tokens=[11, 12], path=[0], bonus=13),
        Probe(**clock("probe"), rung="health", ok=True, ms=1.25, detail="200 OK"),
        Probe(**clock("probe"), rung="generate", ok=False, ms=None, detail="no answer in 5 s"),
        Gap(**clock("journal/server"), of="journal/server", count=None, reason="cursor_lost"),
        Stack(
            **clock("stack"),
            pid=4100,
            mode="nonblocking",
            threads=[Thread(id=1, name="MainThread", gil=True, frames=["wait (threading.py:320)", HOSTILE])],
        ),
        Control(**clock(), command="set", args={"budget": 1}, by="viewer"),
        step(
            clock,
            2,
            base=6,
            root=13,
            parents=[0],
            tokens=[11],
            path=[0, 1],
            emitted=[11],
            flags=Flags(truncated=True, sampled=True, nonfinite={"target": 2}),
        ),
        Mark(**clock("viewer"), text="here it went wrong " + HOSTILE, at=Position("engine/0", 5)),
        Finish(**clock(), rid="r1", reason="length", emitted=6, steps=3),
    ]


def lines(records: Iterable[Record]) -> bytes:
    return b"".join(map(encode, records))


def write_sample(path: Path) -> bytes:
    """The sample as a finished trace; returns its bytes."""
    with TraceWriter(path) as writer:
        for record in sample_records():
            writer.write(record)
    return path.read_bytes()


def index_all(trace: TraceFile) -> TraceFile:
    """Poll until everything is indexed."""
    wait_for(lambda: trace.poll(1.0) >= 0 and trace.done)
    return trace


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)
