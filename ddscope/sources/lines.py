"""From the bytes of a log to encoded `log` records with their own source and gapless seq. No file, no process."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from datetime import datetime

from ddscope.model import Gap, Log, Raw64, Text
from ddscope.sources.threaded import Threaded
from ddscope.trace import encode

LONGEST = 48 * 1024
"""Bytes of one message, as in journald; longer lines come in pieces, all but the last marked `partial`."""

_STAMP = re.compile(rb"^\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_LEVEL = re.compile(rb"\b(CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG)\b")
_PRIORITY = {b"CRITICAL": 2, b"FATAL": 2, b"ERROR": 3, b"WARNING": 4, b"WARN": 4, b"INFO": 6, b"DEBUG": 7}
HEAD = 160
"""Bytes at the start of a line in which a level is looked for."""


def as_text(data: bytes) -> Text:
    """A string where the bytes are UTF-8, else base64. Nothing is lost."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return Raw64(base64.b64encode(data).decode("ascii"))


def clocks() -> tuple[int, int]:
    """Now: µs since the epoch and µs of the monotonic clock."""
    return time.time_ns() // 1000, time.monotonic_ns() // 1000


def priority_of(line: bytes) -> int | None:
    """Syslog priority (RFC 5424, section 6.2.1) by the first level word near the start of a line; None without one."""
    level = _LEVEL.search(line[:HEAD])
    return _PRIORITY[level[1]] if level else None


def stamp_of(line: bytes) -> int | None:
    """µs since the epoch of a `[2026-11-30 14:02:11.5] …` line, in local time; None without a possible time."""
    stamp = _STAMP.match(line)
    if stamp is None:
        return None
    try:
        seconds = datetime.fromisoformat(stamp[1].decode("ascii")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return int(seconds) * 1_000_000 + int((stamp[2] or b"").ljust(6, b"0"))


class LogLines:
    """Numbers and encodes the records of one log source, and hands them to the sink in batches.

    received: records so far. dropped: entries that gaps with a count stand for.
    """

    def __init__(self, src: str, sink: Callable[[bytes], object]) -> None:
        self.src = src
        self.received = 0
        self.dropped = 0
        self._sink = sink
        self._batch: list[bytes] = []

    def log(
        self,
        message: bytes | None,
        *,
        t: int | None = None,
        mono: int | None = None,
        cursor: str | None = None,
        unit: str | None = None,
        pid: int | None = None,
        priority: int | None = None,
        ident: str | None = None,
        partial: bool = False,
    ) -> None:
        """Add one entry. t, mono: µs; where the source tells no time, the present."""
        now, now_mono = clocks()
        record = Log(
            src=self.src,
            seq=self.received + self.dropped,
            t=now if t is None else t,
            mono=now_mono if mono is None else mono,
            message=None if message is None else as_text(message),
            cursor=cursor,
            unit=unit,
            pid=pid,
            priority=priority,
            ident=ident,
            partial=True if partial else None,
        )
        self.received += 1
        self._batch.append(encode(record))

    def gap(self, reason: str, count: int | None = None) -> None:
        """Something is missing here: `count` entries, or nobody knows how many."""
        if count is None:
            self.received += 1
        else:
            self.dropped += count
        seq = self.received + self.dropped - 1
        t, mono = clocks()
        self._batch.append(encode(Gap(src=self.src, seq=seq, t=t, mono=mono, of=self.src, count=count, reason=reason)))

    def flush(self) -> None:
        """Hand what was added to the sink."""
        if self._batch:
            batch, self._batch = b"".join(self._batch), []
            self._sink(batch)


class LogSource(Threaded):
    """A source of the records of one log, which `_lines` makes."""

    _lines: LogLines

    @property
    def received(self) -> int:
        """Records handed on."""
        return self._lines.received


class LineCutter:
    """Bytes, however they come, to records: lines, in pieces where they are long. `rest` is a line that has begun.

    A line without a time of its own (of a traceback) has the last one's.
    """

    def __init__(self, lines: LogLines, unit: str) -> None:
        self.rest = b""
        self._lines = lines
        self._unit = unit
        self._stamp: int | None = None

    def take(self, data: bytes) -> None:
        """More bytes."""
        *lines, rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._tell(line.removesuffix(b"\r"), ended=True)
        whole = len(rest) // LONGEST * LONGEST
        if whole:
            self._tell(rest[:whole], ended=False)
        self.rest = rest[whole:]

    def finish(self) -> None:
        """Nothing more will come of the line that has begun: it is told as partial."""
        if self.rest:
            self._tell(self.rest, ended=False)
            self.rest = b""

    def _tell(self, line: bytes, *, ended: bool) -> None:
        self._stamp = stamp_of(line) or self._stamp
        priority = priority_of(line)
        while len(line) > LONGEST:
            self._lines.log(line[:LONGEST], t=self._stamp, unit=self._unit, priority=priority, partial=True)
            line, priority = line[LONGEST:], None
        self._lines.log(line, t=self._stamp, unit=self._unit, priority=priority, partial=not ended)
