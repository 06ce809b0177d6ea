"""What an engine's socket says, made into lines that can be appended to a trace: every seq once, or covered by a gap.

Pure: bytes in, bytes out. After a reconnect an engine repeats what a newcomer needs; what is here already is left out.
A new engine behind the same path begins again at seq 0 with another header, so its records get a source of their own:
`engine/0#2`, then `engine/0#3`. So do those of a second engine that calls itself what another one already does.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from typing import Any

import msgspec

from ddscope.model import Gap
from ddscope.trace import encode

# How the emitter begins every line. Another spelling of the same JSON is understood too, only slower.
_HEAD = re.compile(
    rb'\{"type":"([\w./-]{1,64})","src":"([^"\\\x00-\x1f\x80-\xff]{1,256})","seq":(0|[1-9]\d{0,14}),'
    rb'"t":(\d{1,15}|[1-8]\d{15}),"mono":(\d{1,15}|[1-8]\d{15})[,}]'
)


class _Common(msgspec.Struct):
    """What every record has."""

    type: str
    src: str
    seq: int
    t: int
    mono: int


_COMMON = msgspec.json.Decoder(_Common)
_GAP = msgspec.json.Decoder(Gap)


class Names:
    """Source ids in use: one of these for all sockets of a session, as a trace has each seq of a source once."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()
        self._lock = threading.Lock()

    def give(self, src: str) -> str:
        """A name for an engine that calls itself `src`: that one, then `src#2`, `src#3`."""
        with self._lock:
            self._given[src] += 1
            count = self._given[src]
        return src if count == 1 else f"{src}#{count}"


class _Life:
    """One engine behind a source id, from its header to the next different one. `next`: the seq that is due."""

    def __init__(self, name: str, header: bytes | None) -> None:
        self.name = name
        self.header = header
        self.next = 0


class Intake:
    """State of one socket's stream over all its connections.

    received, dropped: records handed on, and records covered by gaps handed on. repeated: lines left out because they
    are here already. malformed: lines that are no records; they are left out, and a gap covers them with the next one.
    names: shared with the other sockets of a session.
    """

    def __init__(self, names: Names | None = None) -> None:
        self.received = 0
        self.dropped = 0
        self.repeated = 0
        self.malformed = 0
        self._names = names if names is not None else Names()
        self._lives: dict[str, list[_Life]] = {}

    def hello(self) -> dict[str, Any]:
        """What to tell the engine on connecting, so that it goes on where we are: the header's hash, the last seq."""
        lives = [past[-1] for past in self._lives.values()]
        if len(lives) != 1 or lives[0].header is None:
            return {"type": "hello", "header": None, "seq": -1}
        return {"type": "hello", "header": hashlib.sha256(lives[0].header).hexdigest(), "seq": lives[0].next - 1}

    def take(self, lines: list[bytes]) -> bytes:
        """Lines as they came, each without its newline, to whole lines for the sink."""
        out: list[bytes] = []
        for line in lines:
            if not line:
                continue  # how an engine answers a hello
            record = self._common(line)
            if record is None:
                self.malformed += 1
            else:
                self._take(line, record, out)
        return b"\n".join((*out, b"")) if out else b""

    def _common(self, line: bytes) -> _Common | None:
        head = _HEAD.match(line)
        if head is not None and line.endswith(b"}"):
            return _Common(head[1].decode(), head[2].decode(), int(head[3]), int(head[4]), int(head[5]))
        try:
            record = _COMMON.decode(line)
        except (ValueError, RecursionError):
            return None
        return record if record.seq >= 0 else None

    def _take(self, line: bytes, record: _Common, out: list[bytes]) -> None:
        life = self._life(record, line)
        gap = _counted_gap(line, record)
        first = record.seq if gap is None else record.seq + 1 - (gap.count or 0)
        if record.seq < life.next:
            self.repeated += 1
            return
        if first > life.next:
            out.append(self._gap(life, first - 1, record, "disconnected"))
        if gap is not None:
            out.append(self._gap(life, record.seq, record, gap.reason))
            return
        life.next = record.seq + 1
        self.received += 1
        out.append(line if life.name == record.src else _renamed(line, record.src, life.name))

    def _life(self, record: _Common, line: bytes) -> _Life:
        past = self._lives.setdefault(record.src, [])
        header = line if record.type == "header" else None
        if not past:
            past.append(_Life(self._names.give(record.src), header))
        elif header is not None and header != past[-1].header:
            if past[-1].header is None and past[-1].next == 0:
                past[-1].header = header
            else:
                past.append(_Life(self._names.give(record.src), header))
        return past[-1]

    def _gap(self, life: _Life, last: int, at: _Common, reason: str) -> bytes:
        count = last + 1 - life.next
        life.next = last + 1
        self.dropped += count
        gap = Gap(src=life.name, seq=last, t=at.t, mono=at.mono, of=life.name, count=count, reason=reason)
        return encode(gap).rstrip(b"\n")


def _counted_gap(line: bytes, record: _Common) -> Gap | None:
    """The gap in this line if it covers seqs of its own source, else None: then the line is a record of its own."""
    if record.type != "gap":
        return None
    try:
        gap = _GAP.decode(line)
    except ValueError:
        return None
    counted = gap.of == record.src and gap.count is not None and 0 < gap.count <= record.seq + 1
    return gap if counted else None


def _renamed(line: bytes, src: str, name: str) -> bytes:
    """The line with its source's new name, in `of` too; everything else, unknown fields included, as it was."""
    record = msgspec.json.decode(line)
    record["src"] = name
    if record.get("of") == src:
        record["of"] = name
    return msgspec.json.encode(record)
