"""Whether a setting makes acceptance up, which benchmarks of SGLang do. Pure functions over text."""

from __future__ import annotations

import re

MARK = "SIMULATE_ACC"
_LENGTH = re.compile(r"SIMULATE_ACC_LEN['\"]?\s{0,4}[=:]\s{0,4}['\"]?(-?\d{1,6}(?:\.\d{1,6})?)", re.I)


def simulated(text: str) -> float | None:
    """The accept length that a setting in `text` asks for; None where there is none, or it is off (0 or below)."""
    found = _LENGTH.search(text[:20_000])
    length = float(found[1]) if found else 0.0
    return length if length > 0 else None
