"""`kv.allocator`: the books of the KV cache do not balance: slots were lost, or freed twice.

The check runs when the server is idle, long after the request that is to blame. What is printed around the end of the
process (semaphores of the resource tracker) is not the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import Journal, JournalRule
from ddscope.diagnose.words import excerpt, plural, seconds
from ddscope.model import Log, Record

MAX_POOLS = 8
_MARKS = ("leak detected", "Leak Detected", "double free", "use-after-free")
_NUMBER = re.compile(r"\b(?:self\.)?([a-z_]{3,40})=(-?\d{1,15})\b")
_POOL = re.compile(r"(\w{1,80}|Full Pool|SWA Pool) (?:memory leak detected|Mem Leak Detected)")
_DUPLICATE = re.compile(r"KV double free: sub-pool \d+ has (\d{1,12}) duplicate")
_STALE = re.compile(r"KV page use-after-free: (\d{1,12}) ")
_TOTAL = ("max_total_num_tokens", "total", "total_size", "size")
_PARTS = ("available", "evictable", "protected", "session_held", "uncached")


class _Failed(NamedTuple):
    """One check that failed. missing: tokens, negative where there are too many; idle: µs since the last batch."""

    missing: int
    detail: str
    evidence: Evidence
    idle: int
    t: int


class KvAllocator(JournalRule):
    """Reads the numbers of the check and does the sum."""

    id = "kv.allocator"

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._found: dict[tuple[str, str], list[_Failed]] = {}  # by service and kind

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if not isinstance(record, Log):
            return
        message = self.journal.message
        if not message or not ("etected" in message or " free" in message or "-free" in message):
            return
        if not any(mark in message for mark in _MARKS):
            return
        told = balance(message)
        if told is None:
            return
        kind, missing, detail = told
        key = (record.src, kind)
        if key in self._found or len(self._found) < MAX_POOLS:
            seen = self._found.setdefault(key, [])
            if len(seen) < MAX_EVIDENCE:
                evidence = evidence_of(record, index, excerpt(message))
                idle = 0
                run = self.journal.run
                if run is not None and run.batches.last is not None:
                    idle = max(0, record.t - run.batches.last[0])
                seen.append(_Failed(missing, detail, evidence, idle, record.t))

    def findings(self) -> Iterable[Finding]:
        for (src, kind), seen in self._found.items():
            yield self._finding(src, kind, seen)

    def _finding(self, src: str, kind: str, seen: list[_Failed]) -> Finding:
        missing, detail, _, idle, _ = seen[0]
        service = self.journal.services.get(src)
        name = service.name if service is not None else src
        ended = any(run.deaths or run.failed for run in service.runs) if service is not None else False
        past = service is not None and service.recovered(seen[-1].t)
        count = plural(abs(missing), "token") if missing else "tokens"
        words = {
            "leak": f"{count} of the KV cache of {name} belong to nobody any more: a leak",
            "double_free": f"{count} of the KV cache of {name} were given back twice: a double free",
            "in_use": f"{count} of the KV cache of {name} are in use and free at once",
        }[kind]
        later = f" It was found {seconds(idle)} after the last batch, when the server was idle." if idle else ""
        return Finding(
            id=self.id,
            kind=kind,
            severity="warning" if past else "critical" if ended else "high",
            confidence=0.95,
            title=words + ".",
            detail=detail
            + later
            + (" A later run serves." if past else " The check ended the server." if ended else ""),
            evidence=tuple(one.evidence for one in seen),
            next=(
                "Look at the requests that ended before: one that was aborted, retracted or ended inside a tree may "
                "have kept or given back the wrong number of slots.",
                "Check page size above 1 with speculation, and the rows that are freed after a rejected tree.",
                "With a hook attached, compare the path lengths of the last steps with what their commit kept.",
            ),
            ruled_out=(
                RuledOut("what the end of the process prints", "left-over semaphores follow every sudden end"),
                RuledOut("the request that was running", "the sum is done when nothing runs; it went wrong before"),
            ),
        )


def balance(message: str) -> tuple[str, int, str] | None:
    """(kind, tokens missing, the sum in words) of a failed check; None for what is none."""
    message = message[:4000]
    for pattern, kind in ((_DUPLICATE, "double_free"), (_STALE, "in_use")):
        found = pattern.search(message)
        if found:
            return kind, int(found[1]), excerpt(message, 160)
    pool = _POOL.search(message)
    if pool is None or pool[1] == "req_to_token_pool":
        return None
    numbers: dict[str, int] = {}
    for name, value in _NUMBER.findall(message, pool.end()):
        numbers.setdefault(name.removesuffix("_size"), int(value))
    total = next((numbers[n] for name in _TOTAL if (n := name.removesuffix("_size")) in numbers), None)
    if total is None or "available" not in numbers:
        return None
    parts = {part: numbers[part] for part in _PARTS if part in numbers}
    missing = total - sum(parts.values())
    if missing == 0:
        return None
    words = " + ".join(f"{value:,} {part}" for part, value in parts.items())
    detail = f"{total:,} in all, {words}: {abs(missing):,} {'missing' if missing > 0 else 'too many'}."
    return ("leak" if missing > 0 else "double_free"), missing, detail
