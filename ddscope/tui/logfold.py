"""Journal lines as entries: filtered, tracebacks folded to one entry each. Pure bookkeeping over a sequence of LogRow.

The newest rows are read first and older ones in front of them, a time budget at a time, so that a journal of any size
shows its end at once. An entry costs two machine words; only folds and the rows on the screen are held as objects.
"""

from __future__ import annotations

import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from ddscope.session.views import LogRow

CHUNK = 128  # rows read between two looks at the clock
LOOK_BACK = 256  # rows: a chunk may begin this much earlier so that it does not cut a traceback in two

ERROR, WARNING, INFO, DEBUG = 3, 4, 6, 7
LEVELS: Final = {None: "all", INFO: "info and above", WARNING: "warning and above", ERROR: "error and above"}

_LEVEL = re.compile(
    r"\b(?:(?P<error>CRITICAL|FATAL|ERROR|CRIT|EMERG|ALERT)|(?P<warn>WARNING|WARN)|(?P<info>INFO|NOTICE)|(?P<debug>DEBUG|TRACE))\b"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAINED = re.compile(
    r"\s*(?:During handling of the above exception|The above exception was the direct cause|Traceback \()"
)
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Stop\w*)\b(?::|\s*$)")


@dataclass(frozen=True)
class Filter:
    """What is shown. priority: rows this severe or worse (a syslog number); source: a `src`; text in any case."""

    priority: int | None = None
    source: str | None = None
    text: str = ""

    @property
    def active(self) -> bool:
        """Whether anything is left out."""
        return self != Filter()

    def words(self) -> str:
        """The filter as a person reads it; empty when everything is shown."""
        parts = []
        if self.priority is not None:
            parts.append(LEVELS.get(self.priority, f"priority ≤ {self.priority}"))
        if self.source is not None:
            parts.append(self.source)
        if self.text:
            parts.append(f'"{self.text}"')
        return " · ".join(parts)

    def with_priority_after(self) -> Filter:
        """The next priority in the round all, info, warning, error."""
        rounds = list(LEVELS)
        return replace(self, priority=rounds[(rounds.index(self.priority) + 1) % len(rounds)])

    def keeps(self, row: LogRow) -> bool:
        """Whether a row is shown. A gap is shown whatever the priority and text: it says what is missing."""
        if self.source is not None and row.src != self.source:
            return False
        if row.kind == "gap":
            return True
        if self.priority is not None and level_of(row) > self.priority:
            return False
        return not self.text or self.text.lower() in row.text.lower()


def level_of(row: LogRow) -> int:
    """Severity as a syslog number, the worse of the journal's own and the word in the line's head. 6 when nothing says.

    A service that logs to stdout has priority 6 on every line, so the word in the text is what tells.
    """
    found = _LEVEL.search(row.text, 0, 80)
    words = {"error": ERROR, "warn": WARNING, "info": INFO, "debug": DEBUG}
    said = words[found.lastgroup] if found and found.lastgroup else INFO
    if _TRACEBACK.search(row.text):
        said = min(said, ERROR)
    return said if row.priority is None or (row.priority == INFO and said == DEBUG) else min(said, row.priority)


@dataclass(frozen=True)
class Entry:
    """One entry: its rows by number, more than one for a folded traceback."""

    rows: tuple[int, ...]

    @property
    def folded(self) -> bool:
        """Whether several rows stand behind it."""
        return len(self.rows) > 1


Going = dict[tuple[str, int | None], tuple[int, bool]]
"""Tracebacks that may go on, by source and pid: head row, and whether its exception was already named."""


@dataclass(frozen=True)
class Grown:
    """What a `feed` added in front and behind."""

    front: int = 0
    back: int = 0

    def __bool__(self) -> bool:
        return bool(self.front or self.back)


class JournalEntries:
    """Entries over rows [low, high) of the journal; grows at both ends until it has them all."""

    def __init__(self) -> None:
        self.rows: Sequence[LogRow] = ()
        self.filter = Filter()
        self.sources: list[str] = []
        self._seen: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self._heads = array("q")
        self._records = array("q")
        self._folds: dict[int, list[int]] = {}
        self._open: Going = {}
        self.low = self.high = 0
        self._started = False
        self._row = lru_cache(maxsize=1024)(self._read)

    def _read(self, number: int) -> LogRow:
        return self.rows[number]

    def row(self, number: int) -> LogRow:
        """A row of the journal by its number."""
        return self._row(number)

    def set_filter(self, new: Filter) -> None:
        """Show something else: everything is read again, the end first."""
        self.filter = new
        self._reset()

    def set_rows(self, rows: Sequence[LogRow]) -> None:
        """Another journal (or the same, longer). A shorter one starts anew."""
        if len(rows) < self.high:
            self._reset()
        self.rows = rows

    def __len__(self) -> int:
        return len(self._heads)

    @property
    def complete(self) -> bool:
        """Whether every row has been looked at."""
        return self.low == 0 and self.high == len(self.rows)

    @property
    def looked_at(self) -> int:
        """How many rows have been looked at."""
        return self.high - self.low

    def entry(self, number: int) -> Entry:
        """The entry at a place."""
        head = self._heads[number]
        return Entry(tuple(self._folds.get(head, (head,))))

    def place_of(self, head: int) -> int | None:
        """The place of the entry that begins with a row, None when there is none now."""
        place = bisect_right(self._heads, head) - 1
        return place if place >= 0 and self._heads[place] == head else None

    def place_after(self, record: int) -> int:
        """How many entries begin at or before a record: where the time cursor stands."""
        return bisect_right(self._records, record)

    def record_of(self, number: int) -> int:
        """The record of an entry's first row."""
        return self._records[number]

    def feed(self, budget_s: float = 0.008, *, older: bool = True) -> Grown:
        """Read new rows behind, then older ones in front where wanted, for at most about `budget_s`."""
        deadline = time.perf_counter() + budget_s
        total = len(self.rows)
        if not self._started:
            self.low = self.high = self._clean_start(total - CHUNK) if total > CHUNK else 0
            self._started = total > 0
        front = 0
        before = len(self._heads)
        while self.high < total:
            stop = min(self.high + CHUNK, total)
            heads, records = self._scan(self.high, stop, self._open)
            self._heads.extend(heads)
            self._records.extend(records)
            self.high = stop
            if time.perf_counter() > deadline:
                return Grown(0, len(self._heads) - before)
        back = len(self._heads) - before
        while older and self.low > 0:
            start = self._clean_start(self.low - CHUNK) if self.low > CHUNK else 0
            heads, records = self._scan(start, self.low, {})
            self._heads[:0] = heads
            self._records[:0] = records
            self.low = start
            front += len(heads)
            if time.perf_counter() > deadline:
                break
        return Grown(front, back)

    def _clean_start(self, start: int) -> int:
        """A row at or before `start` that continues no traceback, so that chunks do not cut one in two."""
        for number in range(start, max(start - LOOK_BACK, 0), -1):
            if not goes_on(self.rows[number].text):
                return number
        return max(start - LOOK_BACK, 0)

    def _scan(self, start: int, stop: int, going: Going) -> tuple[array[int], array[int]]:
        """Heads and records of the entries that begin in [start, stop). Folds go into `_folds`."""
        heads, records = array("q"), array("q")
        for number in range(start, stop):
            row = self.rows[number]
            if row.src not in self._seen:
                self._seen.add(row.src)
                self.sources.append(row.src)
            if row.kind == "log" and self._joins(row, number, going):
                continue
            if not self.filter.keeps(row):
                continue
            if row.kind == "log" and _TRACEBACK.search(row.text) and "\n" not in row.text.strip():
                going[row.src, row.pid] = (number, False)
                self._folds[number] = [number]
            heads.append(number)
            records.append(row.record)
        return heads, records

    def _joins(self, row: LogRow, number: int, going: Going) -> bool:
        """Whether the row continues a traceback; if so it is taken in."""
        key = (row.src, row.pid)
        if key not in going:
            return False
        head, raised = going[key]
        if not (chains_on(row.text) if raised else goes_on(row.text)):
            del going[key]
            return False
        self._folds[head].append(number)
        going[key] = (head, bool(_RAISED.match(row.text)))
        return True


def chains_on(text: str) -> bool:
    """Whether a line after the exception leads to another traceback of the same chain."""
    return not text.strip() or bool(_CHAINED.match(text))


def goes_on(text: str) -> bool:
    """Whether a line continues a traceback: indented code and file lines, the exception itself, a chained traceback."""
    return not text.strip() or text[:1] in (" ", "\t", "⇥", "|") or bool(_RAISED.match(text) or _CHAINED.match(text))


def innermost(texts: Sequence[str]) -> str:
    """The line of a traceback that says what was raised: the last exception line, or the last line."""
    lines = [line.strip() for text in texts for line in text.split("\n") if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1]
