"""Counting the records of a stream in order: types, and whether each source's sequence numbers leave no hole.

The writer's footer, `verify` and `recover` go by it. The index keeps its own, faster columns.
"""

from __future__ import annotations

from collections import Counter

from ddscope.model import Footer, Gap, Record
from ddscope.trace.codec import Unknown
from ddscope.trace.heads import decode_head, decode_heads


class Sequences:
    """What has been seen so far. A line that tells no source is counted nowhere but as damage.

    types:    how many records of each type.    last: source → its highest seq in its present run.
    dropped:  source → sum of its gaps with a count.    A header starts a new run of its source, from seq 0.
    """

    def __init__(self) -> None:
        self.types: Counter[str] = Counter()
        self.last: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()
        self._earlier: Counter[str] = Counter()
        self._uncertain: set[str] = set()
        self._damage = 0  # lines so far that told no source
        self._damage_at: dict[str, int] = {}  # source → that number at its last record

    def add(self, lines: bytes) -> None:
        """Count whole lines."""
        each = lines.split(b"\n")[:-1]
        for head, line in zip(decode_heads(each), each, strict=True):
            if head.type == "gap":
                head = decode_head(line)
            gap = (head.of, head.count) if head.type == "gap" else None
            self.take(head.type, head.src, head.seq, gap)

    def observe(self, record: Record | Unknown) -> str | None:
        """Count one record; a sentence when its seq does not follow."""
        gap = (record.of, record.count) if isinstance(record, Gap) else None
        return self.take(record.type, record.src, record.seq, gap)

    def take(self, kind: str, src: str, seq: int, gap: tuple[str | None, int | None] | None = None) -> str | None:
        """Count one record of a type, given source and seq; gap: its `of` and `count`. As `observe`."""
        if kind:
            self.types[kind] += 1
        if not src:
            self._damage += 1
            return None
        if kind == "header" and src in self.last:
            self._earlier[src] += self.last.pop(src) + 1
        last = self.last.get(src, -1)
        first = seq
        if gap is not None:
            of, count = gap
            if count is None:
                self._uncertain.add(of or src)
            elif of == src:
                first = seq - count + 1
                self.dropped[src] += count
        problem = self._problem(src, last, first, seq, gap is not None and first != seq)
        self.last[src] = max(last, seq)
        self._damage_at[src] = self._damage
        return problem

    def damage_since(self, src: str) -> bool:
        """Whether lines that told no source lie behind the source's last record."""
        return self._damage > self._damage_at.get(src, 0)

    def next_seq(self, src: str) -> int:
        """The first sequence number that the source has not used."""
        return self.last.get(src, -1) + 1

    def lost(self, src: str) -> bool:
        """Whether the trace itself says that records of the source are missing."""
        return self.dropped[src] > 0 or src in self._uncertain

    def totals(self) -> tuple[int, int]:
        """(emitted, dropped) over all sources: seqs used, and the sum of what gaps with a count stand for."""
        return sum(self.last.values()) + len(self.last) + self._earlier.total(), self.dropped.total()

    def _problem(self, src: str, last: int, first: int, seq: int, covers: bool) -> str | None:
        if first > seq:
            return f"a gap of {src} at seq {seq} stands for no record"
        if first == last + 1:
            return None
        if first <= last:
            if covers:
                return f"a gap of {src} covers seq {first} to {seq}, but seq {last} was already there"
            return f"seq {seq} of {src} comes after its seq {last}"
        hole = f"seq {last + 1}" if first == last + 2 else f"seq {last + 1} to {first - 1}"
        verb = "is" if first == last + 2 else "are"
        why = " (damaged lines lie between)" if self.damage_since(src) else ""
        return f"{hole} of {src} {verb} missing and no gap covers it{why}"


def footer_problems(footer: Footer, sha256: str, seen: Sequences) -> list[str]:
    """What a footer says wrongly of the records and bytes before it; sha256 is theirs."""
    problems = []
    if footer.sha256 != sha256:
        problems.append("the footer's sha256 is not that of the bytes before it")
    for kind in sorted(footer.records.keys() | seen.types.keys()):
        said, found = footer.records.get(kind, 0), seen.types[kind]
        if said != found:
            problems.append(f"the footer counts {said:,} `{kind}` records, {found:,} are here")
    emitted, dropped = seen.totals()
    if (footer.emitted, footer.dropped) != (emitted, dropped):
        problems.append(
            f"the footer says emitted {footer.emitted:,} and dropped {footer.dropped:,}; "
            f"the records say {emitted:,} and {dropped:,}"
        )
    return problems
