"""The two formulas of the accept rate that servers log, and which of them two logged numbers agree with. Pure."""

from __future__ import annotations

ROUNDING = 0.0052
"""Both numbers are printed with two digits: half a unit of the rate, and a little for a half of the length."""


def before(length: float, draft_tokens: int) -> float:
    """The accept rate until April 2026: emitted by all that was verified, (m + 1) / (k + 1), m = length − 1 accepted
    of k drafted, k + 1 = draft_tokens."""
    return length / draft_tokens


def now(length: float, draft_tokens: int) -> float:
    """The accept rate since then: accepted by drafted, m / k."""
    return (length - 1) / (draft_tokens - 1)


def formula(length: float, rate: float, draft_tokens: int) -> str:
    """`before`, `now`, or "" where both or neither fit the two numbers of a line."""
    if draft_tokens < 2:
        return ""
    slack = ROUNDING + 0.005 / (draft_tokens - 1)
    old = abs(before(length, draft_tokens) - rate) <= slack
    new = abs(now(length, draft_tokens) - rate) <= slack
    if old == new:
        return ""
    return "before" if old else "now"
