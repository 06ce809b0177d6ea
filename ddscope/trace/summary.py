"""`stats`: what a trace holds, counted. Records by type, requests, τ, depth curve, stage times, tokens a second, drops.

Counts only what records say; what they mean is diagnosis.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from ddscope.model import Finish, Gap, Header, Request, StepTime
from ddscope.trace.codec import UNREADABLE, Unknown
from ddscope.trace.file import TraceFile
from ddscope.trace.index import KIND, TRUNCATED, TraceIndex
from ddscope.trace.ranks import Ranks


class StageTime(msgspec.Struct):
    """One stage over all steps that time it, µs."""

    steps: int = 0
    total_us: int = 0

    @property
    def mean_us(self) -> float:
        """µs a step."""
        return self.total_us / self.steps if self.steps else 0.0


class RequestStats(msgspec.Struct):
    """One request. tau: mean emitted over its steps, None without a step that tells.

    seconds: from its `request` record to its last step or finish; tokens_per_s: `emitted` over these.
    """

    rid: str
    prompt_len: int | None = None
    cached_tokens: int | None = None
    steps: int = 0
    emitted: int = 0
    tau: float | None = None
    reason: str | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None


class Stats(msgspec.Struct):
    """What a trace holds. curve[d - 1] = share of steps that accepted at least d drafted tokens, of those that tell.

    tau: mean emitted per target forward.    active_s: time in which at least one request was open.
    sources: emitted, received, dropped.    gaps: how many gap records of each reason.
    """

    path: str
    size: int = 0
    records: int = 0
    types: dict[str, int] = {}
    unknown_types: dict[str, int] = {}
    damaged: int = 0
    torn_bytes: int = 0
    finished: bool = False
    seconds: float = 0.0
    active_s: float = 0.0
    requests: list[RequestStats] = []
    steps: int = 0
    truncated: int = 0
    emitted: int = 0
    tau: float | None = None
    tokens_per_s: float | None = None
    curve: list[float] = []
    curve_steps: int = 0
    stages: dict[str, StageTime] = {}
    sources: dict[str, dict[str, int]] = {}
    dropped: int = 0
    gaps: dict[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values, with the mean of each stage."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for name, stage in self.stages.items():
            plain["stages"][name]["mean_us"] = stage.mean_us
        return plain


class _Timed(msgspec.Struct, gc=False):
    """Of a step line, only its times."""

    time: StepTime | None = None


_TIMED = msgspec.json.Decoder(_Timed)
_STAGES = ("draft", "build", "mask", "verify", "commit", "total")


def stats(path: str | os.PathLike[str]) -> Stats:
    """Count a trace, finished or not. Raises TraceError when the file is no trace or needs a newer reader."""
    with TraceFile(path) as trace:
        while not trace.done:
            trace.poll(1.0)
        index = trace.index
        size = trace.size
        result = Stats(path=str(path), size=size, records=index.n, torn_bytes=size - index.end)
        _count_types(result, trace)
        spans = _count_requests(result, trace)
        _count_steps(result, trace)
        _count_stages(result, trace)
        _count_sources(result, trace)
        if index.n:
            result.finished = index.kind[index.n - 1] == KIND["footer"]
            told = (
                index.t[: index.n - 1] if result.finished and index.n > 1 else index.t
            )  # a footer's clock is the writer's
            result.seconds = (max(told) - min(told)) / 1e6
        result.active_s = _union(spans) / 1e6
        if result.active_s > 0:
            result.tokens_per_s = result.emitted / result.active_s
        return result


def _count_types(result: Stats, trace: TraceFile) -> None:
    by_kind = trace.index.by_kind
    result.types = {kind: len(rows) for kind, rows in by_kind.items() if rows and kind not in ("unknown", "damaged")}
    result.damaged = len(by_kind["damaged"])
    names = Counter(record.type for record in map(trace.record, by_kind["unknown"]) if isinstance(record, Unknown))
    result.unknown_types = dict(sorted(names.items()))


def _count_requests(result: Stats, trace: TraceFile) -> list[tuple[int, int]]:
    """Fill in the requests; returns (begin, end) of each that has both, µs since the epoch."""
    index = trace.index
    of: dict[str, RequestStats] = {}
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for row in index.by_kind["request"]:
        record = trace.record(row)
        if isinstance(record, Request):
            of[record.rid] = RequestStats(record.rid, record.prompt_len, record.cached_tokens)
            begins[record.rid] = record.t
    repeated = set(_repeated(trace))
    for rid, told in index.steps_of.items():
        rows = [row for row in told if row not in repeated] if repeated else told
        if not rows:
            continue
        one = of.setdefault(rid, RequestStats(rid))
        one.steps = len(rows)
        one.emitted = sum(index.emitted[row] for row in rows if index.emitted[row] > 0)
        one.tau = _tau(index, rows)
        begins.setdefault(rid, index.t[rows[0]])
        ends[rid] = index.t[rows[-1]]
    for row in index.by_kind["finish"]:
        record = trace.record(row)
        if isinstance(record, Finish):
            one = of.setdefault(record.rid, RequestStats(record.rid))
            one.reason, one.emitted = record.reason, record.emitted
            ends[record.rid] = max(record.t, ends.get(record.rid, record.t))
    for rid, one in of.items():
        if rid in begins and rid in ends and ends[rid] > begins[rid]:
            one.seconds = (ends[rid] - begins[rid]) / 1e6
            one.tokens_per_s = one.emitted / one.seconds
    result.requests = list(of.values())
    result.emitted = sum(one.emitted for one in of.values())
    return [(begins[rid], ends[rid]) for rid in of if rid in begins and rid in ends]


def _repeated(trace: TraceFile) -> list[int]:
    """Steps that only repeat the counts of what another rank tells in full."""
    index, ranks = trace.index, Ranks()
    for row in index.by_kind["header"]:
        record = trace.record(row)
        if isinstance(record, Header):
            ranks.header(record)
    followers = {number for number, name in enumerate(index.sources) if ranks.follower(name)}
    if not followers:
        return []
    return [row for row in index.by_kind["step"] if index.src[row] in followers and index.nodes[row] < 0]


def _count_steps(result: Stats, trace: TraceFile) -> None:
    index = trace.index
    repeated = set(_repeated(trace))
    rows = [row for row in index.by_kind["step"] if row not in repeated]
    result.steps = len(rows)
    result.truncated = sum(1 for row in rows if index.flags[row] & TRUNCATED)
    accepted = Counter(index.accepted[row] for row in rows)
    accepted.pop(-1, None)
    told = accepted.total()
    result.curve_steps = told
    if told:
        result.tau = _tau(index, rows)
        at_least = told
        for depth in range(max(accepted)):
            at_least -= accepted[depth]
            result.curve.append(at_least / told)


def _tau(index: TraceIndex, rows: Sequence[int]) -> float | None:
    """Mean emitted per step, over the steps that tell: what was cut off at the end of a text was not emitted."""
    counts = (index.emitted[row] if index.emitted[row] >= 0 else index.accepted[row] + 1 for row in rows)
    told = [count for row, count in zip(rows, counts, strict=True) if max(index.emitted[row], index.accepted[row]) >= 0]
    return sum(told) / len(told) if told else None


def _count_stages(result: Stats, trace: TraceFile) -> None:
    stages = {name: StageTime() for name in _STAGES}
    for row in trace.index.by_kind["step"]:
        try:
            time = _TIMED.decode(trace.raw(row)).time
        except UNREADABLE:
            continue
        if time is None:
            continue
        for name in _STAGES:
            value = getattr(time, name)
            if value is not None:
                stages[name].steps += 1
                stages[name].total_us += value
    result.stages = {name: stage for name, stage in stages.items() if stage.steps}


def _count_sources(result: Stats, trace: TraceFile) -> None:
    result.sources = {name: counters._asdict() for name, counters in trace.index.counters.items()}
    result.dropped = sum(counters["dropped"] for counters in result.sources.values())
    reasons = Counter(
        record.reason for record in map(trace.record, trace.index.by_kind["gap"]) if isinstance(record, Gap)
    )
    result.gaps = dict(sorted(reasons.items()))


def _union(spans: list[tuple[int, int]]) -> int:
    """Length of what the spans cover together."""
    total, reach = 0, None
    for begin, end in sorted(spans):
        if reach is None or begin > reach:
            total += end - begin
            reach = end
        elif end > reach:
            total += end - reach
            reach = end
    return total
