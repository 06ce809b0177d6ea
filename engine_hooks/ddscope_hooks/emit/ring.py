"""The bounded ring between the threads that emit and the thread that writes.

`put` never waits: it tries the lock once, and when another thread (or this thread, interrupted by a signal handler) has
it, the entry goes to a side queue that needs no lock. What does not fit is counted where it happened.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Entry = tuple[str, dict[str, Any], int, int]
"""(type, fields, t in ns since the epoch, monotonic ns)."""


class Lost:
    """`count` entries that did not fit, at this place of the ring. Stamps are those of the first."""

    __slots__ = ("count", "mono", "t")

    def __init__(self, t: int, mono: int, count: int = 1) -> None:
        self.t = t
        self.mono = mono
        self.count = count


def _stamp(entry: Entry | Lost) -> int:
    return entry.mono if isinstance(entry, Lost) else entry[3]


class Ring:
    """Many producers, one consumer. Holds at most `capacity` entries, and as many again in the side queue."""

    def __init__(self, capacity: int, half_full: Callable[[], object] = lambda: None) -> None:
        if capacity < 2:
            raise ValueError(f"a ring needs room for at least 2 records, not {capacity}")
        self.capacity = capacity
        self._half = capacity // 2
        self._half_full = half_full
        self._lock = threading.Lock()
        self._items: list[Entry | Lost] = []
        self._side: deque[Entry] = deque()
        self._side_lost = itertools.count()  # next() is one C call, so it is an atomic increment
        self._side_reads = 0

    def put(self, entry: Entry) -> None:
        """Append, or count as lost. Never waits."""
        if self._lock.acquire(False):
            try:
                items = self._items
                size = len(items)
                if size < self.capacity:
                    items.append(entry)
                elif size == self.capacity:
                    # Full until the consumer takes everything, so one marker, at the end, holds all that is lost until then.
                    items.append(Lost(entry[2], entry[3]))
                else:
                    items[-1].count += 1  # type: ignore[union-attr]
            finally:
                self._lock.release()
            if size == self._half:
                self._half_full()
        else:
            self.put_aside(entry)

    def put_aside(self, entry: Entry) -> None:
        """Append to the side queue, which is its own room: for reports that must get through when the ring is full."""
        if len(self._side) < self.capacity:
            self._side.append(entry)
        else:
            next(self._side_lost)

    def take(self) -> list[Entry | Lost]:
        """Everything put so far, in order of time. Only the consumer calls this."""
        with self._lock:
            items, self._items = self._items, []
        # After the swap: whoever put A aside and then B into the ring finds A here too.
        side: list[Entry | Lost] = []
        while self._side:
            side.append(self._side.popleft())
        lost = self._take_side_lost()
        if side:
            items = sorted(items + side, key=_stamp)
        if lost:
            last = _stamp(items[-1]) if items else 0
            t = (items[-1].t if isinstance(items[-1], Lost) else items[-1][2]) if items else 0
            items.append(Lost(t, last, lost))
        return items

    def _take_side_lost(self) -> int:
        # Reading an itertools.count advances it, so what was read before is subtracted.
        total = next(self._side_lost) - self._side_reads
        self._side_reads += 1 + total
        return total

    def __len__(self) -> int:
        """Entries waiting, lost ones included."""
        items = self._items
        size = len(items) + len(self._side)
        if items:
            last = items[-1]
            if isinstance(last, Lost):
                size += last.count - 1
        return size
