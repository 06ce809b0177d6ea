"""Follows a log file on the host by inode and offset: frames of `inode offset length word`, a newline, then the bytes.

word: `data`; `cut` where what was read last is no longer there; `new` where another file has the name; `missing`.
"""

from __future__ import annotations

import os
import select
from typing import Any

LOOK_S = 0.2
CHUNK = 1 << 18


def frame(inode: int, offset: int, word: str, data: bytes = b"") -> None:
    """Write one; the end of everything when nobody reads."""
    out = f"{inode} {offset} {len(data)} {word}\n".encode() + data
    try:
        while out:
            out = out[os.write(1, out) :]
    except OSError:
        os._exit(0)


class Follower:
    """options: path; inode and offset to go on at, or `last` lines to begin with (None: all)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._path = options["path"]
        self._file: Any = None
        self._inode = int(options.get("inode") or 0)
        self._at = int(options.get("offset") or 0)
        self._last = options.get("last")
        self._missing = False

    def look(self) -> bool:
        """Tell what is new; True when there may be more at once."""
        try:
            info = os.stat(self._path)
        except OSError as error:
            if self._file is None and not self._missing:
                self._missing = True
                frame(0, 0, "missing", (error.strerror or str(error)).encode())
            return self._read()
        self._missing = False
        if self._file is None:
            self._open(info)
        elif info.st_ino != self._inode:
            while self._read():
                pass
            self._file.close()
            self._file = None
            self._at = 0
            frame(info.st_ino, 0, "new")
            self._inode = info.st_ino
            self._open(info)
        elif info.st_size < self._at:
            frame(self._inode, 0, "cut")
            self._at = 0
        return self._read()

    def _open(self, info: os.stat_result) -> None:
        try:
            self._file = open(self._path, "rb")  # noqa: SIM115 - it stays open
        except OSError as error:
            frame(0, 0, "missing", (error.strerror or str(error)).encode())
            return
        rotated = info.st_ino != self._inode  # while nobody was connected
        if self._inode and (rotated or info.st_size < self._at):
            frame(info.st_ino, 0, "cut")
            self._at = 0
        elif not self._inode and self._last is not None:
            self._at = tail(self._file, int(self._last))
        self._inode = info.st_ino
        frame(self._inode, self._at, "data")  # there is nothing yet, perhaps, but it is being followed

    def _read(self) -> bool:
        if self._file is None:
            return False
        data = os.pread(self._file.fileno(), CHUNK, self._at)
        if data:
            self._at += len(data)
            frame(self._inode, self._at, "data", data)
        return len(data) == CHUNK


def tail(file: Any, lines: int, block: int = 1 << 16) -> int:
    """Offset at which the last `lines` lines begin."""
    end = at = os.fstat(file.fileno()).st_size
    found = -1  # the newline at the very end ends the last line
    while at > 0:
        size = min(block, at)
        at -= size
        data = os.pread(file.fileno(), size, at)
        if at + size == end and not data.endswith(b"\n"):
            found = 0
        place = data.rfind(b"\n")
        while place >= 0:
            found += 1
            if found >= lines:
                return at + place + 1
            place = data.rfind(b"\n", 0, place)
    return 0


def main(options: dict[str, Any]) -> None:
    """Until standard input ends."""
    follower = Follower(options)
    while True:
        while follower.look():
            pass
        if select.select([0], [], [], LOOK_S)[0] and not os.read(0, 1 << 16):
            return
