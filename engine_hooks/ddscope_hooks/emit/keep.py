"""What somebody who comes late needs, as the lines that were written: header, tokens, facts, tensors, open requests.

The writer notes every record here; a feed asks for the lines of a range of seqs. Bounded by count and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMED = ("fact", "tensor")
KEPT = frozenset(("header", "tokens", "request", "finish", *NAMED))
MAX_BYTES = 64 << 20
MAX_FINISHED = 4096


class Keep:
    """Lines by seq, ascending. Facts and tensors: the latest of each name. Requests: until they finish."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._lines: dict[int, bytes] = {}
        self._named: dict[tuple[str, str], int] = {}
        self._open: dict[str, int] = {}
        self._finished: dict[int, tuple[int, bytes]] = {}

    def note(self, type: str, fields: dict[str, Any], seq: int, line: bytes) -> None:
        """Remember what a late viewer needs of this record, forget what it replaces."""
        if type in NAMED:
            name = (type, str(fields.get("name")))
            self._forget(self._named.pop(name, None))
            self._named[name] = seq
            self._remember(seq, line)
        elif type == "request":
            rid = str(fields.get("rid"))
            self._forget(self._open.pop(rid, None))
            self._open[rid] = seq
            self._remember(seq, line)
        elif type == "finish":
            began = self._open.pop(str(fields.get("rid")), None)
            self._forget(began)
            if began is not None:
                self._finished[seq] = (began, line)
                if len(self._finished) > MAX_FINISHED:
                    del self._finished[next(iter(self._finished))]
        elif type in ("header", "tokens"):
            self._remember(seq, line)

    def between(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Kept (seq, line) with first ≤ seq ≤ last, ascending. The end of a request comes back only to those who were
        there when it began (its `request` is before `first`)."""
        found: list[tuple[int, bytes]] = []
        for seq in reversed(self._lines):
            if seq < first:
                break
            if seq <= last:
                found.append((seq, self._lines[seq]))
        for seq in reversed(self._finished):
            if seq < first:
                break
            began, line = self._finished[seq]
            if seq <= last and began < first:
                found.append((seq, line))
        found.sort()
        return iter(found)

    def _remember(self, seq: int, line: bytes) -> None:
        self._lines[seq] = line
        self.bytes += len(line)
        if self.bytes > self.max_bytes:
            self._shrink(seq)

    def _forget(self, seq: int | None) -> None:
        if seq is not None:
            self.bytes -= len(self._lines.pop(seq, b""))

    def _shrink(self, newest: int) -> None:
        # Over the bound the oldest open requests go first (prompts are the large lines), then named facts; tokens stay:
        # each id is told once, so the vocabulary bounds them. What goes is covered by the gap a late viewer gets anyway.
        for table in (self._open, self._named):
            for key in [k for k, s in table.items() if s != newest]:  # type: ignore[attr-defined]
                if self.bytes <= self.max_bytes:
                    return
                self._forget(table.pop(key))  # type: ignore[attr-defined]
