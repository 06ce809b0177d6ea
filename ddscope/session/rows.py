"""Lazy sequences of rows: as long as they need to be, made one row at a time when somebody looks.

A row sequence is a moment: it does not grow while it is held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

R = TypeVar("R")


class Rows(Sequence[R], Generic[R]):
    """`count` rows; row i is made from the record `numbers[i]`.

    numbers: ascending record numbers; more than `count` may be there, and come while this is held.
    """

    __slots__ = ("_count", "_make", "_numbers")

    def __init__(self, numbers: Sequence[int], count: int, make: Callable[[int], R]) -> None:
        self._numbers = numbers
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> R: ...
    @overload
    def __getitem__(self, place: slice) -> list[R]: ...
    def __getitem__(self, place: int | slice) -> R | list[R]:
        if isinstance(place, slice):
            return [self._make(self._numbers[i]) for i in range(*place.indices(self._count))]
        if place < 0:
            place += self._count
        if not 0 <= place < self._count:
            raise IndexError(place)
        return self._make(self._numbers[place])

    def __iter__(self) -> Iterator[R]:
        for i in range(self._count):
            yield self._make(self._numbers[i])

    def record(self, place: int) -> int:
        """Record number of a row, without making it."""
        if place < 0:
            place += self._count
        if not 0 <= place < self._count:
            raise IndexError(place)
        return self._numbers[place]

    def place_of(self, record: int) -> int | None:
        """The last row at or before a record; None when all come later."""
        place = bisect_right(self._numbers, record, 0, self._count) - 1
        return place if place >= 0 else None
