"""Progress of a headless run on standard error: a bar on a terminal, plain lines in a pipe, nothing twice."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """What a run tells about itself while it goes on."""

    def loading(self, what: str, done: int, total: int) -> None:
        """The engine is being made ready: `done` of `total` (0: unknown)."""

    def loaded(self) -> None:
        """The engine is ready, or failed."""

    def requests(self, states: Mapping[str, tuple[str, int]], limit: int) -> None:
        """State and emitted tokens of every request; limit: tokens a request may emit."""

    def done(self) -> None:
        """Nothing more will be told."""


class PlainProgress:
    """Lines in a pipe: one when a stage of loading begins, one when a request ends."""

    def __init__(self) -> None:
        self._stages: set[str] = set()
        self._ended: set[str] = set()

    def loading(self, what: str, done: int, total: int) -> None:
        """Told once a stage."""
        if what not in self._stages:
            self._stages.add(what)
            self._say(f"{what} …")

    def loaded(self) -> None:
        """Nothing to take down."""

    def requests(self, states: Mapping[str, tuple[str, int]], limit: int) -> None:
        """Told once a request, at its end."""
        for rid, (state, emitted) in states.items():
            if state in ("finished", "error") and rid not in self._ended:
                self._ended.add(rid)
                self._say(f"{rid}: {state}, {emitted:,} tokens ({len(self._ended)}/{len(states)})")

    def done(self) -> None:
        """Nothing to take down."""

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class BarProgress:
    """A bar on a terminal: first loading, then tokens of all requests."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bars.start()
        self._task = self._bars.add_task("Starting the engine", total=None)

    def loading(self, what: str, done: int, total: int) -> None:
        """One bar that changes its name with the stage."""
        self._bars.update(self._task, description=what, completed=done, total=total or None)

    def loaded(self) -> None:
        """The bar waits for the first tokens."""
        self._bars.update(self._task, description="Reading the prompt", completed=0, total=None)

    def requests(self, states: Mapping[str, tuple[str, int]], limit: int) -> None:
        """Tokens of all requests; one that ended early counts as full."""
        ended = sum(state in ("finished", "error") for state, _ in states.values())
        tokens = sum(limit if state in ("finished", "error") else emitted for state, emitted in states.values())
        name = f"Tokens, {ended}/{len(states)} requests done"
        self._bars.update(self._task, description=name, completed=tokens, total=limit * len(states))

    def done(self) -> None:
        """Take the bar down."""
        self._bars.stop()


class LoadingBar(BarProgress):
    """A bar that goes away when the engine is ready: the workbench takes the screen then."""

    def loaded(self) -> None:
        """Take the bar down."""
        self.done()


def progress_for(*, screen: bool) -> Progress:
    """What fits standard error; with `screen`, loading only."""
    if not sys.stderr.isatty():
        return PlainProgress()
    return LoadingBar() if screen else BarProgress()
