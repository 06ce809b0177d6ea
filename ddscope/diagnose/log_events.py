"""What lines of a server's log say, as small values. Who reads which line: `sglang_log.py`, `vllm_log.py`."""

from __future__ import annotations

import msgspec


class Prefix(msgspec.Struct, frozen=True):
    """What stands before a message. stamp: local time as written; ranks: `{"TP": 1, "DP": 0}`; pid: where told."""

    stamp: str
    ranks: dict[str, int]
    pid: int | None = None


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """A batch line, the mean over the steps since the line before: `Decode batch` of SGLang (40 steps by default).

    Of vLLM one line tells the load and another one the acceptance, whose `running` is None. accept_len: emitted per
    step (the target's own token included). accept_rate: of what was drafted; which formula is told by
    `accept_rate.formula`. tokens: in the cache. fields: every number of an SGLang line under its own name.
    """

    running: int | None = None
    tokens: int | None = None
    queue: int | None = None
    accept_len: float | None = None
    accept_rate: float | None = None
    cap_len: float | None = None
    block_accept_len: float | None = None
    throughput: float | None = None
    graph: bool | None = None
    iteration: int | None = None
    fields: dict[str, float] = {}


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """`Prefill batch`: requests that enter, tokens that are computed, and those that the prefix cache had."""

    new_seqs: int | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = None
    running: int | None = None
    queue: int | None = None
    graph: bool | None = None
    iteration: int | None = None
    fields: dict[str, float] = {}


class ServerArgs(msgspec.Struct, frozen=True):
    """`server_args=ServerArgs(…)`, `non-default args: {…}`, as text by name; strings without their quotes."""

    values: dict[str, str]


class Ready(msgspec.Struct, frozen=True):
    """The server has started, warm-up included, and answers."""


class Http(msgspec.Struct, frozen=True):
    """A request as the web server logs it when it has answered."""

    method: str
    path: str
    status: int


class Phase(msgspec.Struct, frozen=True):
    """A part of the start. state: begin, progress or end; progress: `2/5` or `40%`."""

    name: str
    state: str
    progress: str = ""


class Watchdog(msgspec.Struct, frozen=True):
    """No step for `timeout` seconds although there is work. soft: it only says so."""

    who: str
    timeout: float | None
    soft: bool | None


class Death(msgspec.Struct, frozen=True):
    """A process of the server died, or is about to. kind: exception, sigquit, subprocess, worker."""

    kind: str
    name: str = ""
    pid: int | None = None
    code: int | None = None


class Stop(msgspec.Struct, frozen=True):
    """Somebody asked the server to end (SIGTERM); its processes end because of that."""


class Version(msgspec.Struct, frozen=True):
    """`sglang version 0.5.9`, `vLLM API server version 0.11.0`."""

    version: str


Event = Decode | Prefill | ServerArgs | Ready | Http | Phase | Watchdog | Death | Stop | Version


class Line(msgspec.Struct, frozen=True):
    """A line: its prefix if it has one, the text behind it, and what it says if that is known."""

    text: str
    prefix: Prefix | None = None
    event: Event | None = None
