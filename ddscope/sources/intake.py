"""What an engine's socket says, made into lines that can be appended to a trace: every seq once, or covered by a gap.

Pure: bytes in, bytes out. After a reconnect an engine repeats what a newcomer needs; what is here already is left out. A
new engine behind the same path begins again at seq 0 with another header, so its records get a source of their own:
`engine/0#2`, then `engine/0#3`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from ddscope.model import Gap
from ddscope.trace import encode

# How the emitter begins every line. Another spelling of the same JSON is understood too, only slower.
_HEAD = re.compile(rb'\{"type":"([\w.\-]+)","src":"([^"\\]*)","seq":(\d{1,16}),"t":(\d{1,16}),"mono":(\d{1,16})[,}]')


class _Common(msgspec.Struct):
    type: str
    src: str
    seq: int
    t: int
    mono: int


_COMMON = msgspec.json.Decoder(_Common)
_GAP = msgspec.json.Decoder(Gap)


class _Life:
    """One engine behind a source id: from a header to the next different one."""

    def __init__(self, name: str, header: bytes) -> None:
        self.name = name
        self.header = header
        self.next = 0


class Intake:
    """State of one socket's stream over all its connections.

    received, dropped: records handed on, and records covered by gaps handed on. repeated: lines left out because they are
    here already. malformed: lines that are no records; they are left out, and a gap says so when the next record comes.
    """

    def __init__(self) -> None:
        self.received = 0
        self.dropped = 0
        self.repeated = 0
        self.malformed = 0
        self._lives: dict[str, list[_Life]] = {}

    def hello(self) -> dict[str, Any]:
        """What to tell the engine on connecting, so that it goes on where we are: the header's hash and the last seq."""
        lives = [past[-1] for past in self._lives.values()]
        if len(lives) != 1:
            return {"type": "hello", "header": None, "seq": -1}
        return {"type": "hello", "header": hashlib.sha256(lives[0].header).hexdigest(), "seq": lives[0].next - 1}

    def take(self, lines: list[bytes]) -> bytes:
        """Lines as they came, each without its newline, to lines for the sink."""
        out: list[bytes] = []
        for line in lines:
            self._line(line, out)
        return b"\n".join((*out, b"")) if out else b""

    def _line(self, line: bytes, out: list[bytes]) -> None:
        head = _HEAD.match(line)
        if head is not None and line.endswith(b"}"):
            kind, src = head[1].decode("ascii"), head[2].decode("utf-8", "replace")
            seq, t, mono = int(head[3]), int(head[4]), int(head[5])
        else:
            try:
                common = _COMMON.decode(line)
            except (ValueError, RecursionError):
                self.malformed += 1
                return
            kind, src, seq, t, mono = common.type, common.src, common.seq, common.t, common.mono
        life = self._life(kind, src, line)
        first = seq
        if kind == "gap":
            gap = _own_gap(line, src)
            if gap is not None and gap.count is not None:
                first = seq + 1 - gap.count
        if seq < life.next:
            self.repeated += 1
            return
        if first > life.next:
            out.append(self._gap(life, first - 1, t, mono, "disconnected"))
        if kind == "gap" and gap is not None and gap.count is not None:
            out.append(self._gap(life, seq, t, mono, gap.reason))
            return
        life.next = seq + 1
        self.received += 1
        out.append(line if life.name == src else _renamed(line, src, life.name))

    def _life(self, kind: str, src: str, line: bytes) -> _Life:
        past = self._lives.setdefault(src, [])
        if not past:
            past.append(_Life(src, line if kind == "header" else b""))
        elif kind == "header" and line != past[-1].header:
            if past[-1].header:
                past.append(_Life(f"{src}#{len(past) + 1}", line))
            else:
                past[-1].header = line
        return past[-1]

    def _gap(self, life: _Life, last: int, t: int, mono: int, reason: str) -> bytes:
        count = last + 1 - life.next
        life.next = last + 1
        self.dropped += count
        gap = Gap(src=life.name, seq=last, t=t, mono=mono, of=life.name, count=count, reason=reason)
        return encode(gap).rstrip(b"\n")


def _own_gap(line: bytes, src: str) -> Gap | None:
    try:
        gap = _GAP.decode(line)
    except ValueError:
        return None
    return gap if gap.of == src else None


def _renamed(line: bytes, src: str, name: str) -> bytes:
    """The line with its source's new name, in `of` too; everything else, unknown fields included, as it was."""
    record = msgspec.json.decode(line)
    record["src"] = name
    if record.get("of") == src:
        record["of"] = name
    return msgspec.json.encode(record)
