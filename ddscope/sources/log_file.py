"""A log file as it grows: `tail -F`, with rotation, truncation and lines that are not there yet. One thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

from ddscope.model import Log
from ddscope.sources.lines import LONGEST, LogLines, as_text, clocks, priority_of, stamp_of

POLL_S = 0.1
READ = 1 << 18


class LogFileSource:
    """Records of one log file. `state` is connecting (not there yet), connected or lost; `reason` says why.

    path: the file; it may come later, be rotated or truncated. sink: gets batches of whole encoded lines, on this
    source's thread. last: how many lines that are there already are told (None: all).
    A line is told when its newline has come; what is left without one is told, as partial, when the source stops.
    """

    def __init__(
        self, path: str | os.PathLike[str], sink: Callable[[bytes], object], *, last: int | None = None
    ) -> None:
        self.path = Path(path)
        self.state: Literal["connecting", "connected", "lost"] = "connecting"
        self.reason = f"{self.path} is not there yet."
        self._lines = LogLines(f"log/{self.path.name}", sink)
        self._last = last
        self._rest = b""
        self._stamp: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the file in the background."""
        self._thread = threading.Thread(target=self._run, name=f"log {self.path.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read to the end, tell what is left, and end the thread."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        file: BinaryIO | None = None
        try:
            while True:
                stopping = (
                    self._stop.is_set()
                )  # looked at before reading, so that nothing written before stop is missed
                if file is None:
                    file = self._open()
                if file is not None:
                    file = self._follow(file)
                self._lines.flush()
                if stopping:
                    break
                self._stop.wait(POLL_S)
            self._tell_rest()
            self._lines.flush()
        finally:
            if file is not None:
                file.close()

    def _open(self) -> BinaryIO | None:
        try:
            file = self.path.open("rb")
            if self._last is not None:
                _skip_to_last(file, self._last)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.state, self.reason = "lost", f"{self.path} cannot be read: {error.strerror}."
            return None
        self.state, self.reason = "connected", f"Following {self.path}."
        self._last = None  # after a rotation, everything in the new file is new
        return file

    def _follow(self, file: BinaryIO) -> BinaryIO | None:
        """Read what is new; None when another file is at the path now."""
        try:
            self._read(file)
            if os.fstat(file.fileno()).st_size < file.tell():
                self._tell_rest()
                self._lines.gap("cursor_lost")
                file.seek(0)
                self._read(file)
            if not self._stop.is_set() and self._replaced(file):
                self._read(file)  # what came between the last read and the rotation
                self._tell_rest()
                file.close()
                return None
        except OSError as error:
            self.state, self.reason = "lost", f"{self.path} cannot be read any more: {error.strerror}."
            with contextlib.suppress(OSError):
                file.close()
            return None
        return file

    def _replaced(self, file: BinaryIO) -> bool:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # removed and not there again yet: the open file may still grow
        here = os.fstat(file.fileno())
        return (now.st_dev, now.st_ino) != (here.st_dev, here.st_ino)

    def _read(self, file: BinaryIO) -> None:
        while data := file.read(READ):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                self._tell(line, ended=True)
            while len(self._rest) > LONGEST:
                piece, self._rest = self._rest[:LONGEST], self._rest[LONGEST:]
                self._tell(piece, ended=False)
            self._lines.flush()

    def _tell_rest(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._tell(rest, ended=False)

    def _tell(self, line: bytes, *, ended: bool) -> None:
        line = line.removesuffix(b"\r") if ended else line
        pieces = [line[i : i + LONGEST] for i in range(0, len(line), LONGEST)] or [b""]
        now, mono = clocks()
        # Lines without a time (a traceback) belong to the one before them.
        self._stamp = stamp_of(line) or self._stamp
        t = self._stamp or now
        for number, piece in enumerate(pieces, 1):
            partial = True if number < len(pieces) or not ended else None
            priority = priority_of(line) if number == 1 else None
            self._lines.add(
                lambda seq, piece=piece, partial=partial, priority=priority: Log(  # type: ignore[misc]
                    src=self._lines.src,
                    seq=seq,
                    t=t,
                    mono=mono,
                    message=as_text(piece),
                    unit=self.path.name,
                    priority=priority,
                    partial=partial,
                )
            )


def _skip_to_last(file: BinaryIO, count: int) -> None:
    """Put the file's position before its last `count` whole lines, reading from the end."""
    end = file.seek(0, os.SEEK_END)
    found, at, tail = 0, end, b""
    while at > 0 and found <= count:
        step = min(READ, at)
        at -= step
        file.seek(at)
        tail = file.read(step) + tail
        found = tail.count(b"\n")
    lines = tail.split(b"\n")
    keep = b"\n".join(lines[-count - 1 :]) if count else lines[-1]
    file.seek(end - len(keep))
