"""Log entries of one source to encoded `log` lines, numbered from 0, with a gap where something is known to be missing.

Where entries come from is `log_file` and `journal`.
"""

from __future__ import annotations

import base64
import time

from ddscope.model import Gap, Log, Raw64, Text
from ddscope.trace import encode


def text_of(data: bytes) -> Text:
    """Foreign bytes as a record holds them: a string where they are UTF-8, else base64. Nothing is lost."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return Raw64(base64.b64encode(data).decode("ascii"))


class Entries:
    """Numbers and encodes what one source says. Lines wait in here until `take`."""

    def __init__(self, src: str) -> None:
        self.src = src
        self.seq = 0
        self.dropped = 0
        self._out: list[bytes] = []

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
        """One entry. t, mono: µs, when the source has no time of its own the present."""
        record = Log(
            src=self.src,
            seq=self.seq,
            t=time.time_ns() // 1000 if t is None else t,
            mono=time.monotonic_ns() // 1000 if mono is None else mono,
            message=None if message is None else text_of(message),
            cursor=cursor,
            unit=unit,
            pid=pid,
            priority=priority,
            ident=ident,
            partial=True if partial else None,
        )
        self.seq += 1
        self._out.append(encode(record))

    def gap(self, reason: str, count: int | None = None) -> None:
        """Entries are missing here: `count` of them, or nobody knows how many."""
        if count is None:
            seq = self.seq
        else:
            seq = self.seq + count - 1
            self.dropped += count
        t, mono = time.time_ns() // 1000, time.monotonic_ns() // 1000
        self._out.append(encode(Gap(src=self.src, seq=seq, t=t, mono=mono, of=self.src, count=count, reason=reason)))
        self.seq = seq + 1

    def take(self) -> bytes:
        """The lines since the last call, as one batch."""
        batch = b"".join(self._out)
        self._out.clear()
        return batch
