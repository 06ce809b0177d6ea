"""One thing that the doctor says: how bad, what, shown by what, and what to do. And foreign text made safe to show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["critical", "high", "warning", "info", "fine"]
SEVERITIES: tuple[Severity, ...] = ("critical", "high", "warning", "info", "fine")
"""Worst first. `fine`: looked at, and as it should be."""


@dataclass(frozen=True)
class Item:
    """area: the rule that says the same of a trace (`skew.files`). title: one sentence; evidence, next: lines."""

    area: str
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    next: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "area": self.area,
            "severity": self.severity,
            "title": self.title,
            "evidence": list(self.evidence),
            "next": list(self.next),
        }


def worst_first(items: Iterable[Item]) -> list[Item]:
    """By severity; items of one severity stay in their order."""
    return sorted(items, key=lambda item: SEVERITIES.index(item.severity))


def shown(text: Any, limit: int = 400) -> str:
    """Foreign text on one line: control characters as escapes, cut where it is too long."""
    plain = str(text)
    cut = plain if len(plain) <= limit else plain[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def several(words: Iterable[Any], most: int = 6) -> str:
    """Names in a row: `a, b and 3 more`."""
    names = [shown(word) for word in words]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def count(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
