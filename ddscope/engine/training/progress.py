"""Progress on standard error: a rich bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Protocol

EVERY = 10.0
"""Seconds between lines where there is no terminal."""


class Progress(Protocol):
    """What a command tells while it works."""

    def at(self, what: str, done: float, total: float, note: str = "") -> None:
        """`done` of `total` of something; note: figures worth a look."""

    def close(self) -> None:
        """Nothing more will be told."""


class Lines:
    """One line at the start of each stage, then one every EVERY seconds."""

    def __init__(self) -> None:
        self._what = ""
        self._last = 0.0

    def at(self, what: str, done: float, total: float, note: str = "") -> None:
        """Says it when it is time."""
        now = time.monotonic()
        if what == self._what and now - self._last < EVERY and done < total:
            return
        self._what, self._last = what, now
        print(f"{what}: {done:,.0f}/{total:,.0f}{'  ' + note if note else ''}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to take down."""


class Bar:
    """A bar that changes its name with the stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True),
        )
        self._what = ""
        self._task = self._bars.add_task("", total=None, note="")
        self._bars.start()

    def at(self, what: str, done: float, total: float, note: str = "") -> None:
        """Moves the bar; another stage starts its clock anew."""
        if what != self._what:
            self._what = what
            self._bars.reset(self._task)
        self._bars.update(self._task, description=what, completed=int(done), total=int(total), note=note)

    def close(self) -> None:
        """Take the bar down."""
        self._bars.stop()


def progress() -> Progress:
    """What fits standard error."""
    return Bar() if sys.stderr.isatty() else Lines()
