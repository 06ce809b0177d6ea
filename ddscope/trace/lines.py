"""Whole lines out of a file that may be cut, growing or hostile: pread in blocks, no mapping, bounded memory.

A mapping is faster, but a file that is cut under one kills the reader with SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddscope.trace.errors import TraceError

BLOCK = 1 << 18  # fits a core's cache together with what is made of it: a quarter faster than 1 MiB
MAX_LINE = 64 << 20
"""Longer lines are damage, told and never decoded, so that one hostile line cannot fill the memory."""


class LongLine(NamedTuple):
    """A line above MAX_LINE: only its length in bytes is known, newline not counted."""

    length: int

    @property
    def reason(self) -> str:
        """What a report says of it."""
        return f"a line of {self.length:,} bytes, more than the {MAX_LINE:,} that a record may have"


def open_for_reading(path: Path) -> int:
    """A descriptor of a regular file. Raises TraceError, with the reason, for anything else."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TraceError(f"Cannot open the trace {path}: {error.strerror}.") from error
    except ValueError as error:
        raise TraceError(f"Cannot open a trace of this name: {error}.") from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file"
        raise TraceError(f"Cannot open the trace {path}: {what}.")
    return fd


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes. Raises TraceError when the disk or the network drive fails."""
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        raise TraceError(f"Reading the trace failed at byte {offset:,}: {error.strerror}.") from error


def next_lines(fd: int, start: int, size: int, want: int = BLOCK) -> list[bytes] | LongLine | None:
    """Whole lines (without newlines) from byte `start`, about `want` bytes of them; None when no line ends yet.

    size: bytes of the file, as far as the caller cares. The lines join, newlines between, to the bytes from `start` on.
    """
    while True:
        data = read_at(fd, want, start)
        end = data.rfind(b"\n")
        if end >= 0:
            return data[:end].split(b"\n")
        if len(data) < want or start + len(data) >= size:
            return None
        if want > MAX_LINE:
            return _measure(fd, start, start + len(data), size)
        want *= 4


def each_line(fd: int, size: int) -> Iterator[tuple[int, bytes | LongLine]]:
    """(offset, line) of every whole line below `size`. What follows the last newline is not given."""
    offset = 0
    while offset < size:
        lines = next_lines(fd, offset, size)
        if lines is None:
            return
        if isinstance(lines, LongLine):
            yield offset, lines
            offset += lines.length + 1
            continue
        for line in lines:
            if offset + len(line) >= size:
                return
            yield offset, line
            offset += len(line) + 1


def _measure(fd: int, start: int, offset: int, size: int) -> LongLine | None:
    """Length of a line that is known to reach from start to offset, without keeping it; None when it has no end yet."""
    while offset < size:
        data = read_at(fd, BLOCK, offset)
        if not data:
            return None
        end = data.find(b"\n")
        if end >= 0:
            return LongLine(offset + end - start)
        offset += len(data)
    return None
