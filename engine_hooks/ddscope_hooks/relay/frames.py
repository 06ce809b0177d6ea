"""Messages on a pipe between the two processes of a relay: a length, then a pickle. Both ends are ours.

From the sender: (kind, …) with the kinds start, entries, texts, call and close; to it: watched, control, untold, wrote,
answer. What each carries is in `sender` and `receiver`.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
from typing import Any

_SIZE = struct.Struct("<Q")
READ = 1 << 20


class Writer:
    """Whole messages, from any thread. Raises OSError when the other end is gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, message: tuple[Any, ...]) -> None:
        """Wait until the pipe has taken it. Raises what `pickle` raises, too."""
        data = pickle.dumps(message, 5)
        whole = memoryview(_SIZE.pack(len(data)) + data)
        with self._lock:
            while whole:
                whole = whole[os.write(self._fd, whole) :]


class Reader:
    """Whole messages, for one thread. As few reads as can be: each offers the interpreter's lock to other threads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left = bytearray()

    def receive(self) -> tuple[Any, ...] | None:
        """The next message; None when the other end is gone."""
        head = self._take(_SIZE.size)
        data = None if head is None else self._take(_SIZE.unpack(head)[0])
        return None if data is None else pickle.loads(data)

    def _take(self, size: int) -> bytes | None:
        left = self._left
        while len(left) < size:
            try:
                part = os.read(self._fd, READ)
            except OSError:
                return None
            if not part:
                return None
            left += part
        taken = bytes(left[:size])
        del left[:size]
        return taken
