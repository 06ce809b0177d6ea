"""Playing a trace at a speed: which step is due at a moment of the player's clock. Pure; the screen asks and moves.

Long silences (a pause of the engine, the time between two prompts) are shortened, so that a recording stays watchable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

SILENCE_US = 2_000_000  # recorded µs after which the next step comes anyway
SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Timed(Protocol):
    """A step row: its record and its recorded time in µs."""

    @property
    def record(self) -> int:
        """Record number."""

    @property
    def t(self) -> int:
        """µs since the epoch."""


class Playback:
    """A clock over recorded steps. `start` it, ask `due` often, `stop` it."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self.playing = False
        self._since = 0.0  # player's clock, s, when the step at hand was shown

    def start(self, now: float) -> None:
        """Play from the step at hand."""
        self.playing = True
        self._since = now

    def stop(self) -> None:
        """Stay at the step at hand."""
        self.playing = False

    def change_speed(self, by: int) -> float:
        """The next faster or slower speed."""
        near = min(range(len(SPEEDS)), key=lambda place: abs(SPEEDS[place] - self.speed))
        self.speed = SPEEDS[min(max(near + by, 0), len(SPEEDS) - 1)]
        return self.speed

    def due(self, rows: Sequence[Timed], place: int, now: float) -> int:
        """The place in `rows` that should be shown now, when `place` is shown; the same when nothing is due yet."""
        while self.playing and place + 1 < len(rows):
            silence = min(max(rows[place + 1].t - rows[place].t, 0), SILENCE_US) / 1e6 / self.speed
            if now - self._since < silence:
                break
            self._since += silence
            place += 1
        return place

    def jumped(self, now: float) -> None:
        """Another step is at hand (a person moved, the next request began): its time starts now."""
        self._since = now
