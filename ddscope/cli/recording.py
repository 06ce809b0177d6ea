"""What a recording without a screen says: progress while it runs, and the summary it ends with."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddscope.cli.text import printable
from ddscope.diagnose import Finding, render_text, to_json
from ddscope.diagnose.words import plural
from ddscope.session import Counters, Session, Totals

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 10.0
"""A pipe gets a line of counts at most this often."""

SHOWN = 20
"""Requests in the table; the rest is counted."""


# while it runs ------------------------------------------------------------------------------------------------


class RecordProgress(Protocol):
    """What is told on standard error."""

    def waiting(self, why: str) -> None:
        """There is no server yet."""

    def tell(self, session: Session) -> None:
        """How it stands; called often."""

    def done(self) -> None:
        """Nothing more will be told."""


def counts(session: Session) -> str:
    """Records, requests, τ and drops in one line."""
    totals = session.store.totals()
    parts = [plural(session.store.n, "record"), plural(totals.requests, "request"), plural(totals.steps, "step")]
    if totals.tau is not None:
        parts.append(f"τ {totals.tau:.2f}")
    dropped = sum(books.lost for books in session.store.counters.values())
    return ", ".join([*parts, f"{dropped:,} dropped"])


class PlainProgress:
    """Lines in a pipe: when a server comes or goes, and the counts now and then while they grow."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._counts = ""
        self._next = 0.0

    def waiting(self, why: str) -> None:
        """Once."""
        self._say(f"Waiting. {why}")

    def tell(self, session: Session) -> None:
        """What is new."""
        for status in session.sources:
            if self._states.get(status.name) != status.state:
                self._states[status.name] = status.state
                self._say(f"{status.name}: {status.state}" + (f". {status.reason}" if status.reason else ""))
        now = time.monotonic()
        if now >= self._next:
            said = counts(session)
            self._next = now + EVERY_S
            if said != self._counts and session.store.n:
                self._counts = said
                self._say(said)

    def done(self) -> None:
        """Nothing to take down."""

    def _say(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)


class LineProgress:
    """One line on a terminal that is written again and again."""

    def __init__(self, out: Path) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._out = out
        self._begun = time.monotonic()
        self._live = Live(Text("Connecting"), console=Console(stderr=True), transient=True, refresh_per_second=4)
        self._live.start()

    def waiting(self, why: str) -> None:
        """Why, until there is something better to say."""
        self._live.update(self._text(printable(f"Waiting (Ctrl-C ends it). {why}")))

    def tell(self, session: Session) -> None:
        """Counts, and who is connected."""
        engines = session.engines
        connected = sum(status.state == "connected" for status in engines)
        minutes, rest = divmod(int(time.monotonic() - self._begun), 60)
        line = f"● {minutes}:{rest:02} {self._out.name}: {counts(session)}, {connected} of {len(engines)} connected"
        why = next((status.reason for status in session.sources if status.state == "lost" and status.reason), "")
        self._live.update(self._text(printable(f"{line}. {why}" if why else f"{line} (Ctrl-C ends it)")))

    def done(self) -> None:
        """Take the line down."""
        self._live.stop()


def progress_for(out: Path) -> RecordProgress:
    """What fits standard error."""
    return LineProgress(out) if sys.stderr.isatty() else PlainProgress()


# at the end ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """A recording as it ended. requests: rid, tokens, steps, τ, tokens/s, how it ended; newest last."""

    trace: Path
    ended: str
    records: int
    sources: dict[str, Counters]
    gaps: dict[str, int]
    totals: Totals
    requests: list[tuple[str, int, int, float | None, float | None, str]]
    curve: tuple[float, ...]
    findings: list[Finding]

    @property
    def dropped(self) -> int:
        """Records that are missing, as far as they are counted; not those that nobody wanted."""
        return sum(books.lost for books in self.sources.values())

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "trace": str(self.trace),
            "ended": self.ended,
            "records": self.records,
            "dropped": self.dropped,
            "gaps": self.gaps,
            "sources": {
                name: {
                    "emitted": books.emitted,
                    "received": books.received,
                    "dropped": books.dropped,
                    "before_it_began": books.late,
                    "left_out_by_sampling": books.asked - books.late,
                    "uncounted_gaps": books.unknown,
                }
                for name, books in self.sources.items()
            },
            "steps": self.totals.steps,
            "tokens": self.totals.emitted,
            "tau": self.totals.tau,
            "depth_curve": list(self.curve),
            "requests": [
                {"rid": rid, "tokens": tokens, "steps": steps, "tau": tau, "tokens_per_s": rate, "state": state}
                for rid, tokens, steps, tau, rate, state in self.requests
            ],
            "findings": [to_json(finding) for finding in self.findings],
        }


def summarise(session: Session, findings: list[Finding], ended: str) -> Recording:
    """The summary of a session that is finished."""
    store = session.store
    return Recording(
        trace=session.path,
        ended=ended,
        records=store.n,
        sources=store.counters,
        gaps=dict(Counter(gap.reason for gap in store.gaps())),
        totals=store.totals(),
        requests=[
            (row.rid, row.emitted, row.steps, row.tau, row.rate, row.reason or row.state) for row in store.requests()
        ],
        curve=store.curve(None).p,
        findings=findings,
    )


def show(console: Console, recording: Recording) -> None:
    """The summary and the findings on a terminal or in a pipe."""
    from ddscope.cli.tables import books, depth_curve, number, requests_table

    rows = recording.requests[-SHOWN:]
    if rows:
        requests_table(console, rows, None)
    if len(recording.requests) > SHOWN:
        print(f"and {plural(len(recording.requests) - SHOWN, 'request')} before these.")
    depth_curve(console, recording.curve)
    books(console, {name: (c.emitted, c.received, c.dropped) for name, c in recording.sources.items()})
    totals = recording.totals
    print(
        f"{plural(recording.records, 'record')}, {recording.dropped:,} dropped; {plural(totals.requests, 'request')}, "
        f"{plural(totals.steps, 'step')}, {plural(totals.emitted, 'token')}, τ {number(totals.tau)}."
    )
    late = sum(c.late for c in recording.sources.values())
    if late:
        print(f"From before the recording began: {plural(late, 'record')}.")
    left_out = sum(c.asked - c.late for c in recording.sources.values())
    if left_out:
        print(f"Left out by the server (sampling, or nobody was there): {plural(left_out, 'record')}.")
    if recording.gaps:
        said = ", ".join(f"{reason} {count:,}" for reason, count in sorted(recording.gaps.items()))
        print(f"Gaps: {printable(said)}. Their places are marked in the trace.")
    print(render_text(recording.findings), end="")
    print(f"Recorded ({recording.ended}): {printable(str(recording.trace))}")
