"""Reading a trace file that may be finished or still growing: opening, following, random access, first paint.

Bytes come through pread, never mmap: a file that is cut under a mapping kills the reader with SIGBUS.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from types import TracebackType

import msgspec

from ddscope.model import FORMAT, VERSION, Header, Record
from ddscope.trace.codec import Damaged, Unknown, decode
from ddscope.trace.errors import TraceError
from ddscope.trace.index import TraceIndex

CHUNK = 1 << 18
MAX_LINE = 64 << 20
"""Longer lines are indexed as damaged, unread, so that one hostile line cannot fill the memory."""


class TraceFile:
    """One trace: its index, which `poll` brings up to date, and its payloads, read when asked for.

    growing=True allows a file that does not hold its whole header yet (a spool just made); `header` raises until it does.
    Raises TraceError when the path cannot be read, is no trace, or needs a newer reader.
    """

    def __init__(self, path: str | os.PathLike[str], *, use_sidecar: bool = True, growing: bool = False) -> None:
        self.path = Path(path)
        self.index = TraceIndex()
        self.trouble: str | None = None
        self._fd = _open(self.path)
        self._seen_size = -1
        self._header: Header | None = None
        self._growing = growing
        self._use_sidecar = use_sidecar
        try:
            self._load_header()
        except TraceError:
            self.close()
            raise

    def header(self) -> Header:
        """The header of the trace."""
        if self._header is None:
            self._load_header()
        if self._header is None:
            raise TraceError(f"{self.path} holds no whole header yet.")
        return self._header

    @property
    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._fd).st_size

    @property
    def progress(self) -> tuple[int, int]:
        """(indexed bytes, bytes of the file)."""
        return self.index.end, self.size

    def poll(self, budget_s: float = 0.05) -> int:
        """Index what is new, for about budget_s seconds; returns the number of new records."""
        before = self.index.n
        size = self.size
        deadline = time.perf_counter() + budget_s
        while self.index.end < size and size != self._seen_size:
            lines = self._whole_lines(self.index.end, size)
            if not lines:
                self._seen_size = size
                break
            self.index.extend(lines)
            if time.perf_counter() >= deadline:
                break
        return self.index.n - before

    def _whole_lines(self, start: int, size: int) -> list[bytes]:
        want = CHUNK
        while True:
            data = os.pread(self._fd, want, start)
            end = data.rfind(b"\n")
            if end >= 0:
                return data[:end].split(b"\n")
            if start + len(data) >= size:
                return []
            want *= 4

    def raw(self, i: int) -> bytes:
        """The bytes of line i, without the newline."""
        return os.pread(self._fd, self.index.length[i], self.index.offset[i])

    def record(self, i: int) -> Record | Unknown:
        """The i-th record, decoded; a line that is none comes as `Damaged`."""
        return decode(self.raw(i))

    def tail(self, n: int) -> list[tuple[int, Record | Unknown]]:
        """The last n whole records with their offsets, oldest first, without the index: cost depends on n only."""
        end = self.size
        start, data = end, b""
        while start > 0 and data.count(b"\n") <= n:
            block = min(start, 1 << 16)
            start -= block
            data = os.pread(self._fd, block, start) + data
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        offset = start + len(whole)
        found: list[tuple[int, Record | Unknown]] = []
        for line in reversed(lines[-n:] if n > 0 else []):
            offset -= len(line) + 1
            found.append((offset, decode(line)))
        found.reverse()
        return found

    def find_step(self, step: int, rid: str | None = None) -> list[tuple[int, Record]]:
        """Step records with this number, and their offsets, by a search of the bytes."""
        needle = b'"step":%d,' % step
        found: list[tuple[int, Record]] = []
        start, size = 0, self.size
        while start < size:
            lines = self._whole_lines(start, size)
            if not lines:
                break
            for line in lines:
                if needle in line:
                    record = decode(line)
                    if record.type == "step" and record.step == step and rid in (None, record.rid):
                        found.append((start, record))
                start += len(line) + 1
        return found

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _load_header(self) -> None:
        line = self._first_line()
        if line is None:
            return
        self._header = read_header(line, str(self.path))

    def _first_line(self) -> bytes | None:
        data = os.pread(self._fd, CHUNK, 0)
        line, newline, _ = data.partition(b"\n")
        if newline:
            return line
        if not self._growing:
            if not data:
                raise TraceError(f"{self.path} is empty: a trace begins with a header line.")
            if not data.startswith(b'{"type":"header"'):
                raise TraceError(f"{self.path} is not a ddscope trace: its first line is no header.")
            raise TraceError(
                f"{self.path} ends inside its header (file cut at byte {len(data):,}): nothing can be read."
            )
        return None

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Opening(msgspec.Struct, frozen=True):
    """As much of a header as any version must have."""

    type: str
    format: str
    min_reader: str


_OPENING = msgspec.json.Decoder(_Opening)


def read_header(line: bytes, name: str) -> Header:
    """The header in the first line of the trace called `name`. Raises TraceError when this version may not read it."""
    try:
        opening = _OPENING.decode(line)
    except (ValueError, RecursionError):
        opening = None
    if opening is None or opening.type != "header" or opening.format != FORMAT:
        raise TraceError(f"{name} is not a ddscope trace: its first line is no header.")
    own = ".".join(map(str, VERSION))
    try:
        major, minor = map(int, opening.min_reader.split("."))
    except ValueError:
        raise TraceError(
            f"{name} does not say which reader it needs: min_reader is {opening.min_reader!r:.60}."
        ) from None
    if (major, minor) > VERSION:
        raise TraceError(
            f"{name} needs a reader of trace format {major}.{minor}; this ddscope reads {own}: upgrade it."
        )
    header = decode(line)
    if not isinstance(header, Header):
        reason = header.reason if isinstance(header, Damaged) else "unknown type"
        raise TraceError(f"The header of {name} cannot be read: {reason}.")
    return header


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TraceError(f"Cannot open the trace {path}: {error.strerror}.") from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise TraceError(f"Cannot open the trace {path}: it is {what}.")
    return fd
