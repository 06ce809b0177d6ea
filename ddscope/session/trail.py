"""An append-only history that is a value: appending returns a new trail, older ones still read as they were.

Versions share one log and differ in how far they see it: an append costs O(1), "as of record N" two bisections.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class Entry(NamedTuple, Generic[V]):
    """What a record said under a key. number: the record's, in its file."""

    number: int
    key: str
    value: V


class _Log(Generic[V]):
    def __init__(self) -> None:
        self.numbers = array("Q")
        self.entries: list[Entry[V]] = []
        self.by_key: dict[str, list[int]] = {}


class Trail(Generic[V]):
    """Entries in record order. `limit` is exclusive everywhere: entries of records below it are seen, None sees all."""

    __slots__ = ("_log", "_n")

    def __init__(self) -> None:
        self._log: _Log[V] = _Log()
        self._n = 0

    def append(self, number: int, key: str, value: V) -> Trail[V]:
        """This trail and one entry more. number may not be below the last one's."""
        log = self._log
        if len(log.entries) != self._n:  # somebody else went on from here: part ways
            log = _Log()
            for entry in self._log.entries[: self._n]:
                _put(log, entry)
        _put(log, Entry(number, key, value))
        longer: Trail[V] = Trail()
        longer._log, longer._n = log, self._n + 1
        return longer

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, place: int) -> Entry[V]:
        if not 0 <= place < self._n:
            raise IndexError(place)
        return self._log.entries[place]

    def count(self, limit: int | None = None) -> int:
        """How many entries are seen."""
        return self._n if limit is None else bisect_left(self._log.numbers, limit, 0, self._n)

    def count_of(self, key: str, limit: int | None = None) -> int:
        """How many entries of one key are seen."""
        return bisect_left(self._log.by_key.get(key, ()), self.count(limit))

    def last(self, key: str, limit: int | None = None) -> Entry[V] | None:
        """The newest entry of one key."""
        places = self._log.by_key.get(key, ())
        place = bisect_left(places, self.count(limit)) - 1
        return self._log.entries[places[place]] if place >= 0 else None

    def first(self, key: str, limit: int | None = None) -> Entry[V] | None:
        """The oldest entry of one key."""
        places = self._log.by_key.get(key, ())
        return self._log.entries[places[0]] if places and places[0] < self.count(limit) else None

    def latest(self, limit: int | None = None) -> Entry[V] | None:
        """The newest entry of all."""
        seen = self.count(limit)
        return self._log.entries[seen - 1] if seen else None

    def keys(self, limit: int | None = None) -> list[str]:
        """Keys in the order they were first used."""
        seen = self.count(limit)
        keys = []
        for key, places in self._log.by_key.items():
            if places[0] >= seen:
                break  # keys stand in the order of their first places
            keys.append(key)
        return keys


def _put(log: _Log[V], entry: Entry[V]) -> None:
    log.by_key.setdefault(entry.key, []).append(len(log.entries))
    log.numbers.append(entry.number)
    log.entries.append(entry)
