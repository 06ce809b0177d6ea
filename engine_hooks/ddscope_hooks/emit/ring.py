"""The bounded ring between the threads that emit and the thread that writes.

`put` never waits: it tries the lock once, and when another thread (or this thread, interrupted by a signal handler) has
it, the entry goes to a side queue that needs no lock. What does not fit is counted where it happened.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Later:
    """`count` records that are made only on the writer thread, so that the hot thread need not.

    records: called once there; gives (type, fields) pairs, at most `count`. wrote: called there with the bytes that
    they made as lines. ids: called before `records`; the token ids that all of them use, so that nobody has to look.
    plain: called instead of both, where another process makes the records: something that can be pickled and has both.
    """

    __slots__ = ("count", "ids", "plain", "records", "wrote")

    def __init__(
        self,
        count: int,
        records: Callable[[], Iterable[tuple[str, Mapping[str, Any]]]],
        wrote: Callable[[int], object] | None = None,
        ids: Callable[[], Iterable[int]] | None = None,
        plain: Callable[[], object] | None = None,
    ) -> None:
        self.count = count
        self.records = records
        self.wrote = wrote
        self.ids = ids
        self.plain = plain


Entry = tuple[str, "dict[str, Any] | Later", int]
"""(type, fields, monotonic ns). The type of a `Later` is never looked at."""


def size_of(entry: Entry) -> int:
    """How many records an entry stands for. One that tells of others that are missing stands for them."""
    fields = entry[1]
    if isinstance(fields, Later):
        return fields.count
    count = fields.get("count") if entry[0] == "gap" else None
    return count if isinstance(count, int) and count > 0 else 1


class Lost:
    """`count` entries that did not fit, at this place of the ring. mono (ns): when the first was lost."""

    __slots__ = ("count", "mono")

    def __init__(self, mono: int, count: int = 1) -> None:
        self.mono = mono
        self.count = count


class Ring:
    """Many producers, one consumer. Holds at most `capacity` entries, and as many again in the side queue."""

    def __init__(self, capacity: int, half_full: Callable[[], object] = lambda: None) -> None:
        """half_full: called by the thread whose entry fills half of the ring; it must not wait."""
        if capacity < 2:
            raise ValueError(f"a ring needs room for at least 2 records, not {capacity}")
        self.capacity = capacity
        self._half = capacity // 2
        self._half_full = half_full
        self._lock = threading.Lock()
        self._items: list[Entry] = []
        self._lost: Lost | None = None
        self._side: deque[Entry] = deque()
        self._side_lost = itertools.count()  # next() is one C call, so it is an atomic increment
        self._side_lost_read = 0

    def put(self, entry: Entry) -> None:
        """Append, or count as lost. Never waits."""
        if not self._lock.acquire(False):
            self.put_aside(entry)
            return
        try:
            items = self._items
            size = len(items)
            if size < self.capacity:
                items.append(entry)
            elif self._lost is None:
                # Full until the consumer takes everything: all that is lost until then is lost at the end of the ring.
                self._lost = Lost(entry[2], size_of(entry))
            else:
                self._lost.count += size_of(entry)
        finally:
            self._lock.release()
        if size == self._half:
            self._half_full()

    def put_aside(self, entry: Entry) -> None:
        """Append to the side queue, which has room of its own: also for reports that a full ring must not swallow."""
        if len(self._side) < self.capacity:
            self._side.append(entry)
        else:
            for _ in range(size_of(entry)):
                next(self._side_lost)

    def take(self) -> list[Entry | Lost]:
        """Everything put so far, in order of time. For the consumer only."""
        taken: list[Entry | Lost] = []
        with self._lock:
            items, self._items = self._items, []
            lost, self._lost = self._lost, None
            # Counted under the lock, when nothing can enter the ring: so of two entries of one thread, one here and one
            # aside, the later is never taken before the earlier.
            aside = len(self._side)
        if aside:
            side = [self._side.popleft() for _ in range(aside)]
            items = sorted(items + side, key=lambda entry: entry[2])
        taken.extend(items)
        if lost is not None:
            taken.append(lost)
        missed = self._take_side_lost() if items else 0  # it was full, so the next take has items at the latest
        if missed:
            taken.append(Lost(items[-1][2], missed))
        return taken

    def _take_side_lost(self) -> int:
        # Reading an itertools.count advances it, so what was read before is subtracted.
        new = next(self._side_lost) - self._side_lost_read
        self._side_lost_read += new + 1
        return new

    def __len__(self) -> int:
        """Entries that wait, the lost ones not yet taken included."""
        lost = self._lost
        return len(self._items) + len(self._side) + (lost.count if lost is not None else 0)
