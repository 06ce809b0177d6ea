"""A log file as it grows: `tail -F`, with rotation, truncation and lines that are not there yet. One thread.

It looks at the file a few times a second; nothing in the standard library tells of changes in another way.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ddscope.sources.lines import LineCutter, LogLines, LogSource

LOOK_S = 0.1
UNFINISHED_S = 1.0  # a line without its end is told after so long, as partial: it may be somebody's last words
LINGER_S = 5.0  # a rotated file is still read for so long: its writer may not have noticed
READ = 1 << 20
MARK = 64  # bytes before our place that must still be the same, else the file was written anew


class _Open:
    """One opened file: its place, the line that has begun, when to let go of it."""

    def __init__(self, fd: int, cutter: LineCutter) -> None:
        info = os.fstat(fd)
        self.fd = fd
        self.id = (info.st_dev, info.st_ino)
        self.at = 0
        self.cutter = cutter
        self.rest_since = 0.0
        self.until = float("inf")
        self._mark = b""

    def begin_at(self, offset: int) -> None:
        """Leave out what is before."""
        self.at = offset
        self._mark = os.pread(self.fd, min(MARK, offset), max(0, offset - MARK))

    def read(self) -> bytes:
        """The next bytes, b"" when there are none now."""
        data = os.pread(self.fd, READ, self.at)
        if data:
            self.at += len(data)
            self._mark = (self._mark + data)[-MARK:]
        return data

    def was_rewritten(self) -> bool:
        """Whether what we read last is no longer there: the file was cut, or cut and filled again."""
        return os.pread(self.fd, len(self._mark), self.at - len(self._mark)) != self._mark


class LogFileSource(LogSource):
    """Records of one log file.

    path: the file; it may come later, be rotated or truncated. sink: gets batches of whole encoded lines, on this
    source's thread. last: how many lines that are there already are told (None: all). name: instead of the file's own,
    in the source id `log/<name>`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sink: Callable[[bytes], object],
        *,
        last: int | None = None,
        name: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._lines = LogLines(f"log/{name or self.path.name}", sink)
        super().__init__(self._lines.src, f"Lines of {self.path}", f"{self.path} is not there yet.")
        self._last = last
        self._file: _Open | None = None
        self._old: _Open | None = None

    def _work(self) -> None:
        """Until it is stopped, and then to the end of the file; what is left without a newline is told as partial."""
        stopping = False
        while not stopping:
            stopping = self._stopped.is_set()  # before looking: what was written before `stop` is still told
            while self.look():
                pass
            self._stopped.wait(LOOK_S)
        for file in (self._old, self._file):
            if file is not None:
                self._close(file)
        self._lines.flush()

    def look(self) -> bool:
        """One look at the file: hand on what is new. True when there may be more at once."""
        more = False
        try:
            if self._old is not None:
                self._read(self._old)
                if time.monotonic() > self._old.until:
                    self._close(self._old)
                    self._old = None
            self._follow_name()
            if self._file is not None:
                more = self._read(self._file)
        except OSError as error:
            self._lose(f"{self.path} cannot be read: {error.strerror or error}.")
        self._lines.flush()
        return more

    def _follow_name(self) -> None:
        """Open what the name stands for now, when that is not what is open."""
        try:
            info = os.stat(self.path)
        except FileNotFoundError:
            if self._file is None:
                self.state, self.reason = "connecting", f"{self.path} is not there yet."
            return  # rotated, and the new one is not there yet: go on with the old
        if self._file is not None and (info.st_dev, info.st_ino) == self._file.id:
            return
        if not stat.S_ISREG(info.st_mode):
            self._lose(f"{self.path} cannot be read: it is not a regular file.")
            return
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        new = _Open(fd, LineCutter(self._lines, self.path.name))
        if self._file is not None:
            while self._read(self._file):
                self._lines.flush()
            if self._old is not None:
                self._close(self._old)
            self._old = self._file
            self._old.until = time.monotonic() + LINGER_S
        elif self._last is not None:
            new.begin_at(start_of_last_lines(new.fd, self._last))
        self._last = None  # after a rotation, everything in the new file is new
        self._file = new
        self.state, self.reason = "connected", ""

    def _read(self, file: _Open) -> bool:
        if file.was_rewritten():
            file.cutter.finish()
            self._lines.gap("cursor_lost")  # what came between our last look and the cut is gone
            file.begin_at(0)
        data = file.read()
        if data:
            file.cutter.take(data)
            file.rest_since = time.monotonic()
        elif file.cutter.rest and time.monotonic() - file.rest_since > UNFINISHED_S:
            file.cutter.finish()
        return len(data) == READ

    def _close(self, file: _Open) -> None:
        file.cutter.finish()
        os.close(file.fd)


def start_of_last_lines(fd: int, lines: int, block: int = 64 << 10) -> int:
    """Offset at which the last `lines` lines of the file begin; a line without its end counts as one."""
    end = at = os.fstat(fd).st_size
    if lines <= 0:
        return end
    found = 0
    while at > 0:
        size = min(block, at)
        at -= size
        data = os.pread(fd, size, at)
        if at + size == end and data.endswith(b"\n"):
            data = data[:-1]  # the end of the last line, not the beginning of another
        newline = data.rfind(b"\n")
        while newline >= 0:
            found += 1
            if found == lines:
                return at + newline + 1
            newline = data.rfind(b"\n", 0, newline)
    return 0
