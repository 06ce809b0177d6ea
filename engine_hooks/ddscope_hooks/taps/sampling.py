"""Which forward passes and which requests are recorded on a busy server, and how many records were left out.

Only decides and counts; the records of what was left out are gaps that `core` puts in their place.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ddscope_hooks.config import Sample


class Sampling:
    """The controls in force. `admit` and `match` run on the hot thread, `wrote` on the writer thread.

    The bound on bytes is a bucket of one second: the writer says what steps made, the hot thread admits none while the
    bucket is empty. It lags by what is in the ring, so a burst may go over the bound once.
    """

    def __init__(self, sample: Sample, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.left_out = 0  # records since `take_left_out`
        self.set(sample)

    def set(self, sample: Sample) -> None:
        """Take other controls, from any thread. whole: every pass is admitted, so nobody has to ask."""
        self.rid = sample.rid
        self._rate = sample.max_bytes_per_s
        self._filled = self._clock()
        self._bucket = float(self._rate)
        self._spent = 0
        self._count = 0
        self.sample = sample
        self.every = sample.every
        self.whole = sample.every == 1 and not sample.max_bytes_per_s

    def admit(self) -> bool:
        """Whether the next forward pass is recorded."""
        every = self.every
        if every != 1:
            if every == 0:
                return False
            self._count += 1
            if self._count % every:
                return False
        return not self._rate or self._level() > 0

    def match(self, rid: str) -> bool:
        """Whether a request is recorded."""
        return not self.rid or rid.startswith(self.rid)

    def wrote(self, size: int) -> None:
        """Bytes of lines that steps made."""
        self._spent += size

    def leave_out(self, count: int) -> None:
        """Records that there would have been."""
        self.left_out += count

    def take_left_out(self) -> int:
        """Those not yet told."""
        count, self.left_out = self.left_out, 0
        return count

    def _level(self) -> float:
        now = self._clock()
        spent, self._spent = self._spent, 0  # a `wrote` in between may be lost: the bound is no account
        level = self._bucket + (now - self._filled) * self._rate - spent
        self._bucket = min(level, float(self._rate))
        self._filled = now
        return self._bucket
