"""The feed that writes a file: whole lines, at most so many bytes, a footer at the end; a full disk is a counted loss.

Reading, indexing and checking such a file is ddscope.trace's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import Counter

from ddscope_hooks.emit.encoder import Encoder
from ddscope_hooks.emit.errors import EmitError
from ddscope_hooks.emit.feed import Feed
from ddscope_hooks.emit.folders import private_folder
from ddscope_hooks.emit.keep import Keep

MAX_BYTES = 4 << 30
RESERVE = 2048  # bytes kept free below the bound for the last gap and the footer
RETRY_S = 0.5


class FileFeed(Feed):
    """Appends to a new file. What could not be written is owed, and told by a gap when there is room again."""

    def __init__(self, path: str, encoder: Encoder, keep: Keep, *, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._fd = _create(path)
        super().__init__(f"file:{self.path}", encoder, keep)
        self.max_bytes = max_bytes
        self.size = 0
        self.error: str | None = None
        self._said: str | None = None
        self._retry = 0.0
        self._full = False
        self._types: Counter[str] = Counter()
        self._hash = hashlib.sha256()

    def new_error(self) -> dict[str, str] | None:
        """{file, error} when writing has begun to fail, or fails for another reason; told once."""
        if self.error is None or self.error == self._said:
            return None
        self._said = self.error
        return {"file": os.path.basename(self.path), "error": self.error}

    def close(self) -> None:
        if not self.dead:
            self.dead = True
            os.close(self._fd)

    def finish(self, emitted: int, t: int, mono: int) -> None:
        """Say, in the reserved room, what the file lacks at its end; write the footer; close."""
        if self.dead:
            return
        self._full, self._retry, self.max_bytes = False, 0.0, self.max_bytes + RESERVE
        if self._gap_to(emitted - 1, t, mono):
            footer = {
                "records": dict(self._types),
                "emitted": emitted,
                "dropped": self.dropped,
                "sha256": self._hash.hexdigest(),
            }
            self._put(self._encoder.line("footer", emitted, t, mono, footer), 0)
        self.close()

    def _accepts(self, size: int) -> bool:
        return not self._full and (self.error is None or time.monotonic() >= self._retry)

    def _put(self, line: bytes, records: int) -> bool:
        if self.size + len(line) > self.max_bytes - RESERVE:
            self._full = True  # for good: later, shorter lines would only make a file of holes
            self.error = f"the file reached its bound of {self.max_bytes} bytes"
            return False
        try:
            written = os.write(self._fd, line)
            if written < len(line):  # the disk ran full inside the line
                written += os.write(self._fd, line[written:])
        except OSError as e:
            self._fail(e.strerror or str(e))
            return False
        if written < len(line):
            self._fail("the disk is full")
            return False
        self.size += written
        self._hash.update(line)
        self._types[line[9 : line.index(b'"', 9)].decode()] += 1  # the encoder begins every line with {"type":"
        self.sent += records
        self.error = None
        return True

    def _fail(self, why: str) -> None:
        self.error = why
        self._retry = time.monotonic() + RETRY_S
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.size)  # no half line stays


def _create(path: str) -> tuple[str, int]:
    """A file that did not exist: `path`, or with .1, .2 … before its ending. An earlier recording is never touched."""
    root, ext = os.path.splitext(os.path.abspath(path))
    private_folder(os.path.dirname(root))
    try:
        for n in range(10_000):
            name = f"{root}.{n}{ext}" if n else root + ext
            with contextlib.suppress(FileExistsError):
                return name, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise EmitError(f"Cannot write {path}: {e.strerror or e}.") from None
    raise EmitError(f"Cannot write {path}: 10,000 recordings of that name exist already.")
