"""Messages on a pipe between the two processes of a relay: a length, then a pickle. Both ends are ours.

From the sender: (kind, …) with the kinds start, entry, texts, call and close; to it: watched, control, untold, wrote,
answer. What each carries is in `sender` and `receiver`.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
from collections.abc import Sequence
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
        self.send_pickled([pickle.dumps(message, 5)])

    def send_pickled(self, messages: Sequence[bytes]) -> None:
        """Messages that are pickled already, in one piece."""
        whole = memoryview(b"".join(part for data in messages for part in (_SIZE.pack(len(data)), data)))
        with self._lock:
            while whole:
                whole = whole[os.write(self._fd, whole) :]


class Reader:
    """Whole messages, for one thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def receive(self) -> tuple[Any, ...] | None:
        """The next message; None when the other end is gone."""
        head = self._take(_SIZE.size)
        data = None if head is None else self._take(_SIZE.unpack(head)[0])
        return None if data is None else pickle.loads(data)

    def _take(self, size: int) -> bytes | None:
        parts = []
        while size:
            try:
                part = os.read(self._fd, min(size, READ))
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
