"""The spool: every live session is a trace file from its first record on, wherever the records come from.

Sessions without a file of their own are kept in `$XDG_STATE_HOME/ddscope/sessions`, named by date; old ones go.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from pathlib import Path
from typing import IO

from ddscope.model import Mark, Position
from ddscope.session.marks import SOURCE, marks_path, now, viewer_header
from ddscope.trace import TraceError, TraceWriter, encode

HOLD_S = 2.0
HOLD_BYTES = 1 << 20
KEEP_FILES = 20
KEEP_BYTES = 2 << 30

_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(?:-\d+)?\.jsonl")
_HEADER = b'{"type":"header"'


def sessions_folder() -> Path:
    """Where sessions are kept."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return root / "ddscope" / "sessions"


def new_session_path(folder: Path | None = None) -> Path:
    """A path for a new session; makes its folder and removes old sessions. Raises TraceError when it cannot."""
    folder = sessions_folder() if folder is None else folder
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts are in there
        keep_recent(folder, KEEP_FILES - 1, KEEP_BYTES)
    except OSError as error:
        raise TraceError(f"Sessions cannot be kept in {folder}: {error.strerror}.") from None
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    path = folder / f"{stamp}.jsonl"
    number = 2
    while path.exists():
        path = folder / f"{stamp}-{number}.jsonl"
        number += 1
    return path


def keep_recent(folder: Path, files: int, total: int) -> list[Path]:
    """Remove the oldest sessions until at most `files` and `total` bytes are left; returns what was removed.

    Only files named as this module names them count, and one that is being written stays whatever its age.
    """
    found = sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_age, reverse=True)
    removed = []
    kept = size = 0
    for path in found:
        kept += 1
        size += path.stat().st_size
        if (kept > files or size > total) and _remove(path):
            removed.append(path)
            kept -= 1
    return removed


def _age(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name


def _remove(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        for extra in (path.with_name(path.name + ".ddx"), marks_path(path)):
            with contextlib.suppress(FileNotFoundError):
                extra.unlink()
        path.unlink()
    return True


class Spool:
    """Takes whole lines from any thread and appends them to one trace.

    The first line of a trace is a header, and the engine's says most. So records that come before it are held back, for
    HOLD_S seconds or HOLD_BYTES at most; then the viewer's own header opens the file and the engine's follows later.

    out: the file to make; None keeps it among the recent sessions. Raises TraceError when it exists already or
    cannot be written.
    """

    def __init__(self, out: Path | None = None) -> None:
        if out is not None and out.exists() and out.stat().st_size:
            raise TraceError(f"{out} exists already: choose another name, or remove it.")
        self.path = new_session_path() if out is None else out
        self._writer = TraceWriter(self.path)
        self._guard: IO[bytes] | None = self.path.open("rb")
        fcntl.flock(self._guard, fcntl.LOCK_SH)  # tells other sessions that this one is alive
        self._lock = threading.Lock()
        self._held: list[bytes] = []
        self._held_since: float | None = None
        self._headed = False
        self._next_seq = 0  # of the viewer's own records

    def sink(self, lines: bytes) -> None:
        """Append whole lines. Raises TraceError when the disk does not take them."""
        if not lines:
            return
        with self._lock:
            if self._headed:
                self._writer.write_lines(lines)
            elif lines.startswith(_HEADER):
                self._begin(lines)
            else:
                self._held.append(lines)
                if self._held_since is None:
                    self._held_since = time.monotonic()
                if sum(map(len, self._held)) > HOLD_BYTES:
                    self._begin(self._own_header())

    def tick(self) -> None:
        """Begin the file without the engine's header when it is late."""
        with self._lock:
            if self._held_since is not None and not self._headed and time.monotonic() - self._held_since > HOLD_S:
                self._begin(self._own_header())

    def mark(self, text: str, at: Position) -> None:
        """Append a person's mark."""
        with self._lock:
            if not self._headed:
                self._begin(self._own_header())
            t, mono = now()
            self._writer.write(Mark(src=SOURCE, seq=self._next_seq, t=t, mono=mono, text=text, at=at))
            self._next_seq += 1

    def close(self) -> None:
        """Write what is held back and the footer; a second call does nothing."""
        with self._lock:
            if self._writer.closed:
                return
            try:
                if not self._headed:
                    self._begin(self._own_header())
                self._writer.close()
            finally:
                if self._guard is not None:
                    self._guard.close()

    def _begin(self, first: bytes) -> None:
        self._writer.write_lines(first + b"".join(self._held))
        self._headed, self._held = True, []

    def _own_header(self) -> bytes:
        header = encode(viewer_header(self._next_seq))
        self._next_seq += 1
        return header
