"""Counting the records of a stream: how many of each type, and what each source says it sent.

Used by the writer for the footer and by verify and recover to check one; the index keeps its own, faster columns.
"""

from __future__ import annotations

from collections import Counter

from ddscope.trace.codec import NOT_TOLD, Unknown
from ddscope.trace.heads import KIND_OF_CLASS, AnyHead, GapHead, decode_head


class Tally:
    """Types and sequence numbers of all records so far. A line that tells no type is counted nowhere."""

    def __init__(self) -> None:
        self.types: Counter[str] = Counter()
        self.last_seq: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()
        self._earlier: Counter[str] = Counter()

    def add(self, lines: bytes) -> None:
        """Count whole lines."""
        for line in lines.split(b"\n")[:-1]:
            self.add_head(decode_head(line))

    def add_head(self, head: AnyHead) -> None:
        """Count one record."""
        kind = head.type if isinstance(head, Unknown) else KIND_OF_CLASS[type(head)]
        if kind:
            self.types[kind] += 1
        if head.seq == NOT_TOLD:
            return
        if kind == "header" and head.src in self.last_seq:
            self._earlier[head.src] += self.last_seq[head.src] + 1
        self.last_seq[head.src] = head.seq
        if isinstance(head, GapHead) and head.count is not None and head.of == head.src:
            self.dropped[head.src] += head.count

    def next_seq(self, src: str) -> int:
        """The first sequence number that the source has not used."""
        return self.last_seq.get(src, -1) + 1

    def totals(self) -> tuple[int, int]:
        """(emitted, dropped) over all sources: seqs used, and the sum of what gaps with a count stand for."""
        return sum(self.last_seq.values()) + len(self.last_seq) + self._earlier.total(), self.dropped.total()
