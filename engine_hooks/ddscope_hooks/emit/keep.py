"""What somebody who comes late needs, as the lines that were written: header, tokens, facts, tensors, open requests.

The stream notes every record here; a feed asks for the lines of a range of seqs. Bounded by count and bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

KEPT = frozenset(("header", "tokens", "request", "finish", "fact", "tensor"))
MAX_BYTES = 64 << 20
MAX_FINISHED = 4096


class Keep:
    """Lines by seq, ascending. Facts and tensors: the latest of each name. Requests: until they finish."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._lines: dict[int, bytes] = {}
        self._named: dict[Hashable, int] = {}
        self._open: dict[Hashable, int] = {}
        self._finished: dict[int, tuple[int, bytes]] = {}

    def note(self, type: str, fields: dict[str, Any], seq: int, line: bytes) -> None:
        """Remember what a late viewer needs of this record, forget what it replaces."""
        if type in ("fact", "tensor"):
            self._replace(self._named, (type, _name(fields)), seq, line)
        elif type == "request":
            self._replace(self._open, str(fields.get("rid")), seq, line)
        elif type == "finish":
            self._finish(str(fields.get("rid")), seq, line)
        elif type in ("header", "tokens"):
            self._remember(seq, line)
        if self.bytes > self.max_bytes:
            self._shrink(seq)

    def between(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Kept (seq, line) with first ≤ seq ≤ last, ascending.

        The end of a request is among them only for those who know of its beginning (its `request` is before `first`).
        """
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

    def _replace(self, table: dict[Hashable, int], name: Hashable, seq: int, line: bytes) -> None:
        self._forget(table.pop(name, None))
        table[name] = seq
        self._remember(seq, line)

    def _finish(self, rid: str, seq: int, line: bytes) -> None:
        began = self._open.pop(rid, None)
        if began is None:
            return
        self._forget(began)
        self._finished[seq] = (began, line)
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]

    def _remember(self, seq: int, line: bytes) -> None:
        self._lines[seq] = line
        self.bytes += len(line)

    def _forget(self, seq: int | None) -> None:
        if seq is not None:
            self.bytes -= len(self._lines.pop(seq, b""))

    def _shrink(self, newest: int) -> None:
        # The oldest open requests go first (prompts are the large lines), then facts. Tokens stay: each id is told
        # once, so the vocabulary bounds them. What goes is covered by the gap that a late viewer gets anyway.
        for table in (self._open, self._named):
            for name in [name for name, seq in table.items() if seq != newest]:
                if self.bytes <= self.max_bytes:
                    return
                self._forget(table.pop(name))


def _name(fields: dict[str, Any]) -> tuple[str, str]:
    """What a later fact of the same name replaces; faults of different taps stay side by side."""
    value = fields.get("value")
    tap = str(value.get("tap", "")) if isinstance(value, dict) else ""
    return str(fields.get("name")), tap
