"""How findings write numbers, lists and shares. Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from math import isfinite

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def number_word(n: int) -> str:
    """Small counts as words, the rest as digits with separators: `five`, `37`, `2,880`."""
    return _SMALL[n] if 0 <= n < len(_SMALL) else f"{n:,}"


def plural(n: int, noun: str, nouns: str | None = None) -> str:
    """`1 step`, `2 steps`, `1,024 steps`."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def listed(items: Iterable[object], limit: int = 8) -> str:
    """`3, 4, 5`; at most `limit` of them, then how many more."""
    rest = iter(items)
    shown = ", ".join(str(item) for item in islice(rest, limit))
    more = sum(1 for _ in rest)
    return f"{shown} and {more:,} more" if more else shown


def curve_text(curve: Sequence[float]) -> str:
    """A depth curve: `.88 .66 .45`; a depth that was never reached reads `0`."""
    return " ".join(f"{p:.2f}".removeprefix("0") if p > 0 else "0" for p in curve) or "nothing"


def quantity(value: float) -> str:
    """A difference, a tolerance: three significant digits (`9.8`, `7e-05`); infinite ones in words."""
    return f"{value:.3g}" if isfinite(value) else "an infinite amount"


def excerpt(text: str, limit: int = 240) -> str:
    """Foreign text cut to `limit` characters, with a mark where it was cut."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def slug(text: str) -> str:
    """Foreign text as a part of a finding's kind: letters, digits and a few signs, at most 60."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text[:60])


def sentence(text: str) -> str:
    """Words, some of them foreign, as one sentence on one line."""
    flat = " ".join(text.split())
    return flat if flat.endswith(".") else flat + "."


def seconds(us: float) -> str:
    """A time span given in µs: `0.4 s`, `31 s`, `12 min`, `3 h`."""
    value = max(0.0, us / 1e6)
    if value < 10:
        return f"{value:.1f} s"
    if value < 180:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 10_800 else f"{value / 3600:.0f} h"
