"""Writing a trace: append-only, whole lines only, each on its way to the disk before `write` returns.

A process killed at any moment leaves a readable file that lacks at most the record it was writing.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from ddscope.model import Footer, Record
from ddscope.trace.codec import encode
from ddscope.trace.errors import TraceError
from ddscope.trace.sequence import Sequences

FOOTER_SOURCE = "viewer"
_BLOCK = 1 << 20


class TraceWriter:
    """Appends records to a file. Safe to share between threads.

    Every call does one `write` of whole lines, unbuffered, so what it wrote survives a SIGKILL of this process. With
    append=True an existing trace is continued; if it ends in a torn line, that line is closed first and stays as
    damage, because a writer never takes bytes away. Raises TraceError, with the reason, when it cannot write.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self.path = Path(path)
        self.offset = 0
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._seen = Sequences()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if append else os.O_TRUNC)
        try:
            if append and self.path.exists():
                self._read_existing()
            self._fd = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise TraceError(f"Cannot write the trace {self.path}: {error.strerror}.") from error
        if self._torn:
            self._put(b"\n")

    _torn = False

    @property
    def records(self) -> Counter[str]:
        """How many records of each type the file holds so far."""
        return self._seen.types

    @property
    def sha256(self) -> str:
        """Hash of all bytes of the file so far."""
        return self._hash.hexdigest()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._fd < 0

    def write(self, record: Record) -> int:
        """Append one record; returns the byte offset of its line."""
        return self.write_lines(encode(record))

    def write_lines(self, lines: bytes) -> int:
        """Append whole encoded lines as they are, unknown types and all; returns the byte offset of the first.

        Raises TraceError when the last line has no newline or the file cannot grow; in both cases nothing was written.
        """
        if not lines:
            return self.offset
        if not lines.endswith(b"\n"):
            raise TraceError("Only whole lines, each ended by a newline, can be appended to a trace.")
        with self._lock:
            if self._fd < 0:
                raise TraceError(f"The trace {self.path} is already closed.")
            start = self.offset
            self._put(lines)
            self._seen.add(lines)
            return start

    def close(self, footer: bool = True, emitted: int | None = None, dropped: int | None = None) -> None:
        """Write the footer and close; a second call does nothing.

        emitted, dropped: for the footer; by default what the records of all sources say (seqs used, sum of the gaps).
        """
        if self._fd < 0:
            return
        try:
            if footer:
                self.write(self._footer(emitted, dropped))
        finally:
            with self._lock:
                os.close(self._fd)
                self._fd = -1

    def _footer(self, emitted: int | None, dropped: int | None) -> Footer:
        said, lost = self._seen.totals()
        return Footer(
            src=FOOTER_SOURCE,
            seq=self._seen.next_seq(FOOTER_SOURCE),
            t=time.time_ns() // 1000,
            mono=time.monotonic_ns() // 1000,
            records=dict(sorted(self._seen.types.items())),
            emitted=said if emitted is None else emitted,
            dropped=lost if dropped is None else dropped,
            sha256=self._hash.hexdigest(),
        )

    def _put(self, data: bytes) -> None:
        """All of data or, when the disk does not take it, none of it."""
        view = memoryview(data)
        done = 0
        try:
            while done < len(view):
                done += os.write(self._fd, view[done:])
        except OSError as error:
            if done:
                os.ftruncate(self._fd, self.offset)
            raise TraceError(f"Cannot write the trace {self.path}: {error.strerror}.") from error
        self._hash.update(data)
        self.offset += len(data)

    def _read_existing(self) -> None:
        """Hash and count what is there, as if this writer had written it."""
        rest = b""
        with open(self.path, "rb") as file:
            while block := file.read(_BLOCK):
                self._hash.update(block)
                self.offset += len(block)
                whole, newline, tail = block.rpartition(b"\n")
                if newline:
                    self._seen.add(rest + whole + newline)
                    rest = tail
                else:
                    rest += block
        self._torn = bool(rest)
        if rest:
            self._seen.add(rest + b"\n")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(footer=kind is None)
