"""Reading a trace file that may be finished or still growing: opening, following, random access, first paint."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

from ddscope.model import Header, Record
from ddscope.trace import search, sidecar
from ddscope.trace.codec import Damaged, Unknown, decode
from ddscope.trace.errors import TraceError
from ddscope.trace.index import TraceIndex
from ddscope.trace.lines import BLOCK, MAX_LINE, LongLine, next_lines, open_for_reading, read_at
from ddscope.trace.opening import read_header

SIDECAR_FROM = 1 << 20
"""Bytes from which on an index is worth keeping beside its file; below, it is rebuilt in milliseconds."""


class TraceFile:
    """One trace: its index, which `poll` brings up to date, and its payloads, read when asked for.

    growing=True allows a file that does not hold its whole header yet (a spool just made); `header` raises until then.
    Raises TraceError when the path cannot be read, is no trace, or needs a newer reader. One thread may poll while
    others read. `trouble` is a sentence when the file was cut, replaced or removed under the reader, else None; what
    was read stays, and nothing raises.
    """

    def __init__(self, path: str | os.PathLike[str], *, use_sidecar: bool = True, growing: bool = False) -> None:
        self.path = Path(path)
        self.trouble: str | None = None
        self._fd = open_for_reading(self.path)
        self._broken = False  # cut or rewritten: the bytes behind the index are not those that were indexed
        self._cut_to = sys.maxsize  # what is there behind this byte came after a cut
        self._looked_at = -1  # size at which the last line had no end
        self._sidecar = sidecar.path_of(self.path) if use_sidecar else None
        self._kept = 0  # bytes of the file that the sidecar covers
        try:
            self._header = read_header(self._fd, str(self.path), growing=growing)
            self.index = self._load_index()
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def header(self) -> Header:
        """The first header of the trace. Raises TraceError while a growing file does not hold it."""
        if self._header is None:
            self._header = read_header(self._fd, str(self.path), growing=True)
        if self._header is None:
            raise TraceError(f"{self.path} does not hold a whole header yet.")
        return self._header

    @property
    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._fd).st_size

    @property
    def progress(self) -> tuple[int, int]:
        """(indexed bytes, bytes of the file). They differ by the last line while it has no end."""
        return self.index.end, self.size

    @property
    def done(self) -> bool:
        """Whether every whole line that the file had at the last poll is indexed, or nothing more can be."""
        return self._broken or self._looked_at == self.size or self.index.end >= self.size

    def poll(self, budget_s: float = 0.05) -> int:
        """Index what is new, for about budget_s seconds; returns the number of new records. Never raises.

        A last line without its end is not there yet.
        """
        before = self.index.n
        if self._header is None and not self._has_header():
            return 0
        deadline = time.perf_counter() + budget_s
        try:
            size = self._watched_size()
            while not self._broken and self.index.end < size != self._looked_at:
                self._index_some(size)
                if time.perf_counter() >= deadline:
                    break
        except TraceError as error:
            self.trouble = str(error)
        if self.done:
            self._keep_index()
        return self.index.n - before

    def raw(self, i: int) -> bytes:
        """The bytes of line i, without the newline; fewer when the file was cut. Raises IndexError for no record."""
        return read_at(self._fd, self.index.length[i], self.index.offset[i])

    def record(self, i: int) -> Record | Unknown:
        """Record i, decoded; a line that is no record, or is no longer there, comes as `Damaged`."""
        length = self.index.length[i]
        if length > MAX_LINE:
            return _no_record(b"", LongLine(length).reason)
        try:
            line = self.raw(i)
        except TraceError as error:
            return _no_record(b"", str(error))
        if len(line) < length or self.index.offset[i] + length > self._cut_to:
            return _no_record(line, "the file was cut and no longer holds this line")
        return decode(line)

    def tail(self, n: int) -> list[tuple[int, Record | Unknown]]:
        """(offset, record) of the last n whole records, oldest first, without the index: cost depends on n alone."""
        return search.tail(self._fd, self.size, n)

    def find_step(
        self, step: int, rid: str | None = None, *, every: bool = False, budget_s: float = 0.1
    ) -> list[tuple[int, Record]]:
        """(offset, record) of steps with this number, without the index, for about budget_s seconds.

        The newest one (of a request, or of the newest request that came so far) is found by bisection and returned
        alone; where that fails, or with every=True, the file is read from the front, and all that were found in time
        are returned. An empty list is no proof: `index.find_step` knows, once the index is complete.
        """
        deadline = time.perf_counter() + budget_s
        if not every:
            newest = search.newest_step(self._fd, self.size, step, rid, deadline)
            if newest is not None:
                return [newest]
        return search.scan_steps(self._fd, self.size, step, rid, deadline)

    def close(self) -> None:
        """Give the file back, keeping the index beside it where that pays; a second call does nothing."""
        if self._fd >= 0:
            self._keep_index(last=True)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _has_header(self) -> bool:
        """Whether the header is there by now; says in `trouble` when what is there instead is none."""
        try:
            self._header = read_header(self._fd, str(self.path), growing=True)
        except TraceError as error:
            self.trouble = str(error)
        return self._header is not None

    def _watched_size(self) -> int:
        """Bytes of the file now; says in `trouble` what happened to it."""
        here = os.fstat(self._fd)
        end = self.index.end
        if here.st_size < end:
            self._broken = True
            self._cut_to = min(self._cut_to, here.st_size)
            self.trouble = (
                f"{self.path} was cut from {end:,} to {here.st_size:,} bytes while it was read: "
                f"nothing new is shown until it is opened again."
            )
        elif not self._broken:
            self.trouble = self._moved(here)
        return here.st_size

    def _moved(self, here: os.stat_result) -> str | None:
        try:
            named = os.stat(self.path)
        except OSError:
            return f"{self.path} was removed or renamed while it was read: it is still shown, to its end."
        if (named.st_dev, named.st_ino) != (here.st_dev, here.st_ino):
            return f"{self.path} was replaced by another file while it was read: open it again to see that one."
        return None

    def _index_some(self, size: int) -> None:
        """Index one block."""
        end = self.index.end
        if end and read_at(self._fd, 1, end - 1) != b"\n":
            self._broken = True
            self.trouble = (
                f"{self.path} was rewritten while it was read (byte {end - 1:,} changed): "
                f"nothing new is shown until it is opened again."
            )
            return
        lines = next_lines(self._fd, end, size, BLOCK)
        if lines is None:
            self._looked_at = size
        elif isinstance(lines, LongLine):
            self.index.skip(lines.length, lines.reason)
        else:
            self.index.extend(lines)

    def _load_index(self) -> TraceIndex:
        if self._sidecar is not None:
            index = sidecar.load(self._sidecar, self._fd)
            if index is not None:
                self._kept = index.end
                return index
        return TraceIndex()

    def _keep_index(self, *, last: bool = False) -> None:
        """Write the sidecar when it lacks something; before the last chance only when it lacks a third, because a
        growing file must not pay for it at every poll."""
        end = self.index.end
        due = end > self._kept if last else end > self._kept + self._kept // 2
        if self._sidecar is None or self._broken or end < SIDECAR_FROM or not due:
            return
        self._kept = end
        if not sidecar.save(self._sidecar, self.index, self._fd):
            self._sidecar = None


def _no_record(raw: bytes, reason: str) -> Damaged:
    return Damaged(type="", raw=raw, src="", seq=-1, t=-1, mono=-1, reason=reason)
