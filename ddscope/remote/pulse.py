"""Whether a server makes progress, as far as its hooks and its journal show it. Pure: lines in, a verdict out.

Silence is a sign only where a request is known to be open: SGLang logs every fortieth step, so a last line that speaks
of running requests says nothing once they have finished.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from statistics import median
from typing import NamedTuple

FLOOR_S = 10.0
"""No silence shorter than this is a stall: a prefill may be long."""
USUAL = 3
"""A stall is this many times the usual time between two steps."""
_OF_LOG = re.compile(rb'"src":"(?:journal|log|probe)\b')
_RID = re.compile(rb'"rid":"((?:[^"\\]|\\.)*)"')


class Verdict(NamedTuple):
    """ok, and in words why."""

    ok: bool
    words: str


class Pulse:
    """`saw` what came, ask `verdict`. Times are monotonic seconds of whoever calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[bytes, float] = {}
        self._last: tuple[float, str] | None = None
        self._gaps: deque[float] = deque(maxlen=64)
        self._last_step: float | None = None

    def saw(self, lines: bytes, now: float) -> None:
        """Whole encoded records, of any sources."""
        with self._lock:
            for line in lines.splitlines():
                self._line(line, now)

    def _line(self, line: bytes, now: float) -> None:
        if line.startswith(b'{"type":"step"'):
            if self._last_step is not None:
                self._gaps.append(now - self._last_step)
            self._last_step, self._last = now, (now, "a step")
            self._touch(line, now)
        elif line.startswith(b'{"type":"request"'):
            self._touch(line, now)
        elif line.startswith(b'{"type":"finish"') and (rid := _RID.search(line)):
            self._open.pop(rid[1], None)
        elif line.startswith(b'{"type":"header"') or (line.startswith(b'{"type":"gap"') and not _OF_LOG.search(line)):
            self._open.clear()  # another engine, or its `finish` may be what is missing; the next step opens it again
        elif line.startswith(b'{"type":"log"') and b"Decode batch" in line:
            self._last = (now, "a line of the decode loop")

    def _touch(self, line: bytes, now: float) -> None:
        rid = _RID.search(line)
        if rid is not None:
            self._open[rid[1]] = now

    def verdict(self, now: float) -> Verdict | None:
        """None while nothing is known of it."""
        with self._lock:
            return self._verdict(now)

    def _verdict(self, now: float) -> Verdict | None:
        if self._last is None and not self._open:
            return None
        if self._open:
            newest = max(self._open.values())
            patience = max(FLOOR_S, USUAL * median(self._gaps)) if self._gaps else FLOOR_S
            if now - newest > patience:
                many = f"{len(self._open)} requests are open" if len(self._open) > 1 else "a request is open"
                return Verdict(False, f"{many}, and no step has come for {now - newest:.0f} s")
        if self._last is None:
            return Verdict(True, "a request has just begun")
        age = now - self._last[0]
        said = f"{self._last[1]} came {age:.0f} s ago"
        return Verdict(True, said if self._open else f"{said}; no request is known to be open")
