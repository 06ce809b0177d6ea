"""The records of trace format 1.0 as msgspec Structs, one class a `type`.

What the fields mean and which invariants hold between records is in docs/trace-format.md; reading, writing and checking
files is `ddscope.trace`. A field that a source cannot know is absent (None here), never zero.
"""

from __future__ import annotations

import base64
from typing import Any, ClassVar, Literal

import msgspec

FORMAT = "ddscope-trace"
VERSION = (1, 0)


class Raw64(msgspec.Struct, frozen=True):
    """Bytes that are not UTF-8, in base64 (RFC 4648, section 4)."""

    b64: str


Text = str | Raw64
"""Foreign text: a string where the bytes are UTF-8, else base64."""


def text_bytes(text: Text) -> bytes:
    """The bytes behind a foreign text. Base64 that does not decode yields its ASCII form, so nothing is hidden."""
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(text.b64, validate=True)
    except ValueError:
        return text.b64.encode("utf-8", "surrogatepass")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every record has.

    src:  source id: `engine/0` (rank 0), `journal/<unit>`, `probe`, `stack`, `doctor`, `viewer`.
    seq:  per source, from 0, gapless or covered by a `gap`.
    t:    µs since the epoch.
    mono: µs of the source host's monotonic clock.
    """

    type: ClassVar[str]
    src: str
    seq: int
    t: int
    mono: int


class Producer(msgspec.Struct, frozen=True):
    """Who wrote the trace."""

    name: str
    version: str


class Engine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine that ran: `config` holds its settings as the engine names them."""

    name: str
    version: str
    algorithm: str
    config: dict[str, Any] = {}


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pair that ran. Names of folders or packages, never absolute paths."""

    target: str
    draft: str | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_layers: int | None = None
    tokenizer_sha256: str | None = None


class Header(Record, frozen=True, kw_only=True, omit_defaults=True, tag="header"):
    """First line of a trace. `min_reader` is the lowest reader version that may open it, as "major.minor"."""

    type: ClassVar[str] = "header"
    format: str
    version: str
    min_reader: str
    producer: Producer
    host: str
    boot_id: str | None = None
    engine: Engine | None = None
    model: Model | None = None


class Tokens(Record, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """Text of token ids, each id once, before or with its first use, so that a replay needs no tokenizer."""

    type: ClassVar[str] = "tokens"
    ids: list[int]
    text: list[Text]


class Request(Record, frozen=True, kw_only=True, omit_defaults=True, tag="request"):
    """A request enters the engine. `prompt_ids` is absent when redacted."""

    type: ClassVar[str] = "request"
    rid: str
    prompt_len: int
    prompt_ids: list[int] | None = None
    sampling: dict[str, Any] = {}
    cached_tokens: int | None = None


class Draft(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Marginals of a drafter with independent positions. D depths, k candidates, descending in log-probability.

    ids, logprobs: [D][k]; logz (full-vocabulary logsumexp, nats), entropy (nats): [D].
    """

    k: int
    ids: list[list[int]]
    logprobs: list[list[float | None]]
    logz: list[float | None] | None = None
    entropy: list[float | None] | None = None


class Auto(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a budget that the engine chose by itself is what it is: most nodes it might have chosen, and the tokens
    (emitted) and µs (us) that it expected of the step."""

    most: int
    emitted: float
    us: int


class Tree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Draft tree of n nodes besides the root. Node i + 1 has tokens[i]; parents[i] ≤ i; 0 is the root.

    budget:    nodes without the root that were allowed; n may be smaller. auto: why, where the engine chose it.
    logprobs:  [n] drafter's log-probability of the node's token at its depth (not the path's).
    positions: [n + 1] positions the target was given, root first (should be base + depth).
    mask:      [n + 1] hex strings: bit j of row i set means that node i sees node j (should be the ancestor closure).
    """

    budget: int
    tokens: list[int]
    parents: list[int]
    logprobs: list[float | None] | None = None
    positions: list[int] | None = None
    mask: list[str] | None = None
    auto: Auto | None = None


class TopK(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Target's k likeliest tokens at each node of the path: ids and logprobs are [len(path)][k], descending."""

    ids: list[list[int]]
    logprobs: list[list[float | None]]


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the target chose at every node: [n + 1], root first. gap: top-1 minus top-2 logit."""

    ids: list[int]
    logprobs: list[float | None] | None = None
    gap: list[float | None] | None = None
    topk: TopK | None = None


class StepTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stage times of a step in µs."""

    draft: int | None = None
    build: int | None = None
    mask: int | None = None
    verify: int | None = None
    commit: int | None = None
    total: int | None = None


class Flags(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """nonfinite: count of NaN and ±inf logits seen, by place (`draft`, `target`); graph, overlap: ran under one;
    sampled: temperature > 0; truncated: the text ended inside this step (EOS or token limit)."""

    nonfinite: dict[str, int] | None = None
    graph: bool | None = None
    overlap: bool | None = None
    sampled: bool | None = None
    truncated: bool | None = None


class Step(Record, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """One target forward for one request. base: position of the root; root: its token; path: nodes, root first."""

    type: ClassVar[str] = "step"
    rid: str
    step: int
    algorithm: str | None = None
    batch: list[int] | None = None
    rank: int | None = None
    base: int | None = None
    root: int | None = None
    draft: Draft | None = None
    tree: Tree | None = None
    target: Target | None = None
    path: list[int] | None = None
    bonus: int | None = None
    emitted: list[int] | None = None
    time: StepTime | None = None
    time_domain: Literal["host", "cuda_event"] | None = None
    flags: Flags | None = None


class Tensor(Record, frozen=True, kw_only=True, omit_defaults=True, tag="tensor"):
    """A tensor that entered a module: once a name, and again on change. expect: ints, or null where any size fits."""

    type: ClassVar[str] = "tensor"
    name: str
    shape: list[int]
    dtype: str
    device: str | None = None
    expect: list[int | None] | None = None
    ok: bool | None = None
    owner: str | None = None


class Finish(Record, frozen=True, kw_only=True, omit_defaults=True, tag="finish"):
    """A request left the engine. emitted: its output tokens, prefill included. reason: stop, length, abort, error."""

    type: ClassVar[str] = "finish"
    rid: str
    reason: str
    emitted: int
    steps: int


class Log(Record, frozen=True, kw_only=True, omit_defaults=True, tag="log"):
    """One journal or log entry. partial: the source split or cut the line. message None: the journal returned null."""

    type: ClassVar[str] = "log"
    message: Text | None
    cursor: str | None = None
    unit: str | None = None
    pid: int | None = None
    priority: int | None = None
    ident: str | None = None
    partial: bool | None = None


class Probe(Record, frozen=True, kw_only=True, omit_defaults=True, tag="probe"):
    """One rung of the ladder of liveness: unit, process, port, health, generate, progress."""

    type: ClassVar[str] = "probe"
    rung: str
    ok: bool
    ms: float | None = None
    detail: str | None = None


class Thread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thread of a stack dump, innermost frame first. active: it was running or ready to, not waiting."""

    id: int
    name: str | None = None
    gil: bool | None = None
    active: bool | None = None
    frames: list[str] = []


class Stack(Record, frozen=True, kw_only=True, omit_defaults=True, tag="stack"):
    """A py-spy dump of one process. process: what it calls itself."""

    type: ClassVar[str] = "stack"
    pid: int
    process: str | None = None
    threads: list[Thread]
    mode: str | None = None


class Fact(Record, frozen=True, kw_only=True, omit_defaults=True, tag="fact"):
    """Something known about the server: versions, hashes, arguments in force. Names are in docs/trace-format.md."""

    type: ClassVar[str] = "fact"
    name: str
    value: Any


class Control(Record, frozen=True, kw_only=True, omit_defaults=True, tag="control"):
    """A command that was given to the engine, and by whom."""

    type: ClassVar[str] = "control"
    command: str
    args: dict[str, Any] = {}
    by: str | None = None


class Position(msgspec.Struct, frozen=True):
    """A record, named by its source and sequence number."""

    src: str
    seq: int


class Mark(Record, frozen=True, kw_only=True, omit_defaults=True, tag="mark"):
    """A person's bookmark or note."""

    type: ClassVar[str] = "mark"
    text: str
    at: Position


class Gap(Record, frozen=True, kw_only=True, omit_defaults=True, tag="gap"):
    """Records that are missing. With a count, it stands for the `count` records of `of` that end at its own seq."""

    type: ClassVar[str] = "gap"
    of: str
    count: int | None
    reason: str


class Footer(Record, frozen=True, kw_only=True, omit_defaults=True, tag="footer"):
    """Last line of a finished trace. records: how many of each type before it; sha256 of all bytes before it."""

    type: ClassVar[str] = "footer"
    records: dict[str, int]
    emitted: int
    dropped: int
    sha256: str


RECORD_TYPES: dict[str, type[Record]] = {
    cls.type: cls
    for cls in (
        Header, Tokens, Request, Step, Tensor, Finish, Log, Probe, Stack, Fact, Control, Mark, Gap, Footer,
    )
}  # fmt: skip
