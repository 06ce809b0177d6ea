"""Follow a log file as `tail -F` does: over rotation, truncation and a file that is not there yet.

One thread looks at the file a few times a second; nothing in the standard library tells of changes in another way.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ddscope.sources.entries import Entries

State = Literal["waiting", "following", "failed"]
LOOK_S = 0.1
MAX_LINE = 48 << 10  # where journald cuts, too
UNFINISHED_S = 1.0  # a line without its end is shown after so long, as partial: it may be somebody's last words
LINGER_S = 5.0  # a rotated file is still read for so long: its writer may not have noticed
READ = 1 << 20
MARK = 64  # bytes before our place that must still be the same, else the file was written anew


class _Open:
    """One opened file: its place, the line that has begun."""

    def __init__(self, fd: int) -> None:
        info = os.fstat(fd)
        self.fd = fd
        self.id = (info.st_dev, info.st_ino)
        self.at = 0
        self.rest = b""
        self.rest_since = 0.0
        self.mark = b""
        self.until = float("inf")

    def begin_at(self, offset: int) -> None:
        """Leave out what is before."""
        self.at = offset
        self.mark = os.pread(self.fd, min(MARK, offset), max(0, offset - MARK))

    def read(self, size: int) -> bytes:
        """The next bytes, b"" when there are none now."""
        data = os.pread(self.fd, size, self.at)
        if data:
            self.at += len(data)
            self.mark = (self.mark + data)[-MARK:]
        return data

    def was_rewritten(self) -> bool:
        """Whether what we read last is no longer there: the file was cut, or cut and filled again."""
        return os.pread(self.fd, len(self.mark), self.at - len(self.mark)) != self.mark


class LogFileSource:
    """`log` records of one file, src `log/<name>`. `state`: waiting (for the file), following, failed; `reason`: why.

    path: may not exist yet. sink: gets batches of whole encoded lines, on this source's thread. lines: how many of the
    file's last lines to begin with, None for all of them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sink: Callable[[bytes], object],
        *,
        lines: int | None = 1000,
        name: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.state: State = "waiting"
        self.reason = f"{self.path} has not been looked at yet."
        self._sink = sink
        self._lines = lines
        self._entries = Entries(f"log/{name or self.path.name}")
        self._file: _Open | None = None
        self._old: _Open | None = None
        self._begun = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def received(self) -> int:
        """Records handed on."""
        return self._entries.seq

    def start(self) -> None:
        """Follow in the background."""
        self._thread = threading.Thread(target=self._run, name=f"source {self._entries.src}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End. A line without its end is handed on as partial."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                more = self.look()
                self._stopped.wait(0 if more else LOOK_S)
            for file in (self._old, self._file):
                if file is not None:
                    self._drain(file)
                    self._close(file)
            self._flush()
        except Exception as error:  # the sink could not take it
            self.state, self.reason = "failed", f"Lines of {self.path} cannot be kept: {error}"

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
            self.state, self.reason = "failed", f"{self.path} cannot be read: {error.strerror or error}."
        self._flush()
        return more

    def _follow_name(self) -> None:
        """Open what the name stands for now, when that is not what is open."""
        try:
            info = os.stat(self.path)
        except FileNotFoundError:
            if self._file is None:
                self.state, self.reason = "waiting", f"{self.path} does not exist yet."
            return  # rotated, the new one is not there yet: go on with the old
        if self._file is not None and (info.st_dev, info.st_ino) == self._file.id:
            return
        if not stat.S_ISREG(info.st_mode):
            self.state, self.reason = "failed", f"{self.path} is not a regular file."
            return
        new = _Open(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if self._file is not None:
            self._drain(self._file)
            if self._old is not None:
                self._close(self._old)
            self._old = self._file
            self._old.until = time.monotonic() + LINGER_S
        elif not self._begun and self._lines is not None:
            new.begin_at(start_of_last_lines(new.fd, self._lines))
        self._begun = True
        self._file = new
        self.state, self.reason = "following", ""

    def _read(self, file: _Open) -> bool:
        if file.mark and file.was_rewritten():
            self._unfinished(file)
            self._entries.gap(
                "cursor_lost"
            )  # what was between our place and the cut is gone, and may have been something
            file.at, file.mark = 0, b""
        data = file.read(READ)
        if data:
            self._cut(file, data)
        elif file.rest and time.monotonic() - file.rest_since > UNFINISHED_S:
            self._unfinished(file)
        return len(data) == READ

    def _cut(self, file: _Open, data: bytes) -> None:
        *lines, rest = (file.rest + data).split(b"\n")
        for line in lines:
            while len(line) > MAX_LINE:
                self._entries.log(line[:MAX_LINE], partial=True)
                line = line[MAX_LINE:]
            self._entries.log(line)
        while len(rest) > MAX_LINE:
            self._entries.log(rest[:MAX_LINE], partial=True)
            rest = rest[MAX_LINE:]
        file.rest, file.rest_since = rest, time.monotonic()

    def _drain(self, file: _Open) -> None:
        while self._read(file):
            self._flush()

    def _unfinished(self, file: _Open) -> None:
        if file.rest:
            self._entries.log(file.rest, partial=True)
            file.rest = b""

    def _close(self, file: _Open) -> None:
        self._unfinished(file)
        os.close(file.fd)

    def _flush(self) -> None:
        batch = self._entries.take()
        if batch:
            self._sink(batch)


def start_of_last_lines(fd: int, lines: int, block: int = 64 << 10) -> int:
    """Offset at which the last `lines` lines of the file begin; a line without its end counts as one."""
    at = os.fstat(fd).st_size
    if lines <= 0:
        return at
    found = 0
    end = at
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
