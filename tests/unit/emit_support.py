"""What the emitter's tests share: a viewer's books kept by the gap rule, a raw viewer, steps as a tap gives them."""

from __future__ import annotations

import json
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ddscope_hooks.emit import Emitter
from ddscope_hooks.emit.sockets import Viewer

HEADER = {"engine": {"name": "test", "version": "0", "algorithm": "ddtree"}}
DEADLINE = 60.0
"""Seconds after which what was waited for will not come, on however loaded a machine."""


def wait_for(condition: Callable[[], object], what: str = "the condition", deadline: float = DEADLINE) -> None:
    """Until the condition holds; fails when it does not in time."""
    until = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true within {deadline} s"
        time.sleep(0.002)


class Books:
    """What one viewer received, checked at every record: emitted (last seq + 1) = received + dropped.

    The rule is docs/trace-format.md's: a gap with a count stands for the `count` records that end at its own seq; any
    other record, a gap without a count included, is itself.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.emitted: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.dropped: dict[str, int] = {}

    def take(self, line: bytes) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(line)
        src = record["src"]
        emitted, received, dropped = (d.get(src, 0) for d in (self.emitted, self.received, self.dropped))
        if record["type"] == "gap" and record["of"] == src and record["count"] is not None:
            assert record["count"] > 0
            dropped += record["count"]
        else:
            received += 1
        assert record["seq"] >= emitted, f"seq {record['seq']} again, after {emitted - 1}"
        emitted = record["seq"] + 1
        assert emitted == received + dropped, f"{emitted} emitted, {received} received + {dropped} dropped: {line!r}"
        self.emitted[src], self.received[src], self.dropped[src] = emitted, received, dropped
        self.records.append(record)
        return record

    def take_all(self, lines: bytes) -> None:
        assert lines == b"" or lines.endswith(b"\n")
        for line in lines.splitlines():
            self.take(line)

    def of(self, type: str) -> list[dict[str, Any]]:
        return [r for r in self.records if r["type"] == type]

    def gaps(self) -> list[tuple[int, int | None, str]]:
        return [(r["seq"], r["count"], r["reason"]) for r in self.of("gap")]


class RawViewer:
    """A socket and the books of what comes out of it, read only when asked."""

    def __init__(self, sock: socket.socket | str) -> None:
        if isinstance(sock, str):
            path, sock = sock, socket.socket(socket.AF_UNIX)
            sock.connect(path)
        self.sock = sock
        self.sock.setblocking(False)
        self.books = Books()
        self.ended = False
        self._rest = b""

    def read(self, limit: int = 1 << 30) -> int:
        """Take at most `limit` bytes of what is there now."""
        got = 0
        while got < limit:
            try:
                data = self.sock.recv(min(1 << 16, limit - got))
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self.ended = True
                break
            got += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if line:  # an empty line is how a hello is answered
                    self.books.take(line)
        return got

    def until(self, condition: Callable[[Books], object], what: str = "what was waited for") -> Books:
        """Read until the books satisfy the condition."""
        until = time.monotonic() + DEADLINE
        while not condition(self.books):
            assert time.monotonic() < until, f"{what} did not come; last: {self.books.records[-3:]}"
            select.select([self.sock], [], [], 0.05)
            self.read()
            if self.ended and not condition(self.books):
                raise AssertionError(f"the connection ended before {what}")
        return self.books

    def say(self, **message: Any) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self.sock.close()


def step(n: int = 0, nodes: int = 64, depths: int = 15, k: int = 32, rid: str = "r0") -> dict[str, Any]:
    """Fields of a `step` with plausible contents; equal for equal n and sizes."""
    r = random.Random(n)
    ids = [[r.randrange(1000) for _ in range(k)] for _ in range(depths)]
    tokens = [r.randrange(1000) for _ in range(nodes)]
    return {
        "rid": rid, "step": n, "algorithm": "ddtree", "batch": [0, 1], "rank": 0, "base": 100 + n, "root": 5,
        "draft": {"k": k, "ids": ids, "logprobs": [[-1.5 * i for i in range(k)] for _ in ids]},
        "tree": {
            "budget": nodes, "tokens": tokens, "parents": [r.randrange(i + 1) for i in range(nodes)],
            "logprobs": [-0.25] * nodes, "positions": list(range(nodes + 1)), "mask": ["ff"] * (nodes + 1),
        },
        "target": {"ids": [7] * (nodes + 1), "logprobs": [-0.5] * (nodes + 1), "gap": [0.25] * (nodes + 1)},
        "path": [0], "bonus": 7, "emitted": [7], "time": {"draft": 10, "total": 100}, "time_domain": "host",
        "flags": {"sampled": False},
    }  # fmt: skip


@contextmanager
def emitting(folder: Any, **options: Any) -> Iterator[tuple[Emitter, str]]:
    """An emitter that listens on a socket in `folder`, and the path of it."""
    emitter = Emitter("engine/0", HEADER, **options)
    try:
        yield emitter, emitter.listen(f"unix:{os.fspath(folder)}/s")
    finally:
        emitter.close()


class Pumped:
    """An emitter whose threads do not run: the test does their work when it wants to, so any order can be tried."""

    def __init__(self, **options: Any) -> None:
        self.emitter = Emitter("engine/0", HEADER, **options)
        self.emit = self.emitter.emit

    def pump(self) -> None:
        """One turn of the writer thread."""
        self.emitter._stream.run(self.emitter._ring.take())
        self.emitter._stream.flush()

    def join(self, hello: dict[str, Any] | None = None, *, buffer: int | None = None) -> tuple[Viewer, socket.socket]:
        """A viewer, and the other end of its connection. buffer: size of the kernel buffers, as small as it allows."""
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        if buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        ours.setblocking(False)
        return self.emitter._join(ours, hello), theirs

    def close(self) -> None:
        """End; closes the viewers that are left."""
        for feed in (*self.emitter._stream.feeds, *self.emitter._stream._joining):
            feed.close()
        self.emitter.close()
