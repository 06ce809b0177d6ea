"""Counting the records of a stream: how many of each type, and what each source says it sent.

Used by the writer for the footer and by verify and recover to check one; the index keeps its own, faster columns.
"""

from __future__ import annotations

from collections import Counter

from ddscope.trace.heads import DamagedHead, Head, decode_heads


class Tally:
    """Types and sequence numbers of all records so far. A line that tells no type is counted nowhere."""

    def __init__(self) -> None:
        self.types: Counter[str] = Counter()
        self.last_seq: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()
        self._earlier: Counter[str] = Counter()

    def add(self, lines: bytes) -> None:
        """Count whole lines."""
        for head in decode_heads(lines.split(b"\n")[:-1]):
            self.add_head(head)

    def add_head(self, head: Head) -> None:
        """Count one record."""
        if head.type:
            self.types[head.type] += 1
        if type(head) is DamagedHead and not head.src:
            return
        src = head.src
        if head.type == "header" and src in self.last_seq:
            self._earlier[src] += self.last_seq[src] + 1
        self.last_seq[src] = head.seq
        if head.count is not None and head.type == "gap" and head.of == src:
            self.dropped[src] += head.count

    def next_seq(self, src: str) -> int:
        """The first sequence number that the source has not used."""
        return self.last_seq.get(src, -1) + 1

    def totals(self) -> tuple[int, int]:
        """(emitted, dropped) over all sources: seqs used, and the sum of what gaps with a count stand for."""
        return sum(self.last_seq.values()) + len(self.last_seq) + self._earlier.total(), self.dropped.total()
