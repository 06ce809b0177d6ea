"""Times as the screen writes them. The only clock shown is the trace's; the machine's own is never printed."""

from __future__ import annotations

import time


def clock(t_us: int, *, millis: bool = True) -> str:
    """Local time of day of µs since the epoch: 14:02:11.418. Times no calendar has are shown as ⟨n µs⟩."""
    try:
        parts = time.localtime(t_us // 1_000_000)
    except (OverflowError, ValueError, OSError):
        return f"⟨{t_us} µs⟩"
    text = f"{parts.tm_hour:02}:{parts.tm_min:02}:{parts.tm_sec:02}"
    return f"{text}.{t_us // 1000 % 1000:03}" if millis else text


def duration(us: float) -> str:
    """µs in the unit that reads best: 820 µs, 12.4 ms, 256 ms, 1.25 s."""
    if us < 1000:
        return f"{us:.0f} µs"
    if us < 100_000:
        return f"{us / 1000:.1f} ms"
    if us < 1_000_000:
        return f"{us / 1000:.0f} ms"
    return f"{us / 1_000_000:.2f} s"
