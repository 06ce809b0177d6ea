"""Findings for the screen: asked from a diagnosis that the session feeds on its own thread.

Errors that the engine told as facts (a rejected command among them) become findings too, so that none is lost when its
notification has gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddscope.diagnose import Diagnosis, Evidence, Finding, ranked
from ddscope.model import Fact
from ddscope.session import Session
from ddscope.trace.ranks import rank_of

MOST_EVIDENCE = 8
ASK_S = 0.25  # findings are asked for at most this often: some detectors work when asked


@dataclass(frozen=True)
class EngineError:
    """What the engine could not do."""

    record: int
    where: str
    message: str
    rid: str | None


class Diagnosing:
    """`work` often; `findings` is ranked and complete when `caught_up`."""

    def __init__(self, session: Session, diagnosis: Diagnosis | None) -> None:
        self.findings: tuple[Finding, ...] = ()
        self.errors: list[EngineError] = []
        self._session = session
        self._diagnosis = diagnosis
        self._facts = 0  # facts looked at
        self._told = -1  # records behind `findings`
        self._asked = 0.0

    def begin(self) -> None:
        """Let the session feed the diagnosis, if it does not yet. It gets every record from the first on."""
        if self._diagnosis is None:
            self._diagnosis = Diagnosis()
            self._session.observe(self._diagnosis.observe)

    @property
    def seen(self) -> int:
        """How many records the detectors have looked at."""
        return self._session.observed

    @property
    def caught_up(self) -> bool:
        """Whether `findings` tells of every record taken in."""
        return self._told == self.seen >= self._session.store.n

    def work(self) -> bool:
        """Ask again when there may be news. True when `findings` changed."""
        seen = self.seen
        now = time.monotonic()
        if (
            self._diagnosis is None
            or seen == self._told
            or (now - self._asked < ASK_S and seen < self._session.store.n)
        ):
            return False
        self._asked, self._told = now, seen
        found = self._session.ask(self._diagnosis.findings)
        before = self.findings
        self.findings = tuple(ranked([*found, *self._unexplained(found)]))
        return self.findings != before

    def _unexplained(self, found: Iterable[Finding]) -> list[Finding]:
        """Findings of the errors that no detector has taken as evidence, equal ones together."""
        explained = {evidence.record for finding in found for evidence in finding.evidence}
        groups: dict[tuple[str, str], list[EngineError]] = {}
        for error in self.errors:
            if error.record not in explained:
                groups.setdefault((error.where, error.message), []).append(error)
        return [_finding(errors, self._session) for errors in groups.values()]

    def new_errors(self) -> list[EngineError]:
        """Errors the engine told since the last call."""
        store = self._session.store
        numbers = store.trace.index.by_kind["fact"]
        new: list[EngineError] = []
        while self._facts < len(numbers) and numbers[self._facts] < store.n:
            number = numbers[self._facts]
            self._facts += 1
            record = store.record(number)
            if isinstance(record, Fact) and record.name == "engine.error":
                new.append(_error(number, record.value))
            elif isinstance(record, Fact) and record.name == "control.refused" and not rank_of(record.src):
                new.append(_refusal(number, record.value))  # of several ranks that refuse, one is enough
        if new:
            self.errors += new
            self._told = -1
        return new


def _error(number: int, value: Any) -> EngineError:
    said = value if isinstance(value, dict) else {"message": value}
    rid = said.get("rid")
    where, message = said.get("where") or "engine", said.get("message") or "it did not say what"
    return EngineError(number, str(where), str(message), rid if isinstance(rid, str) else None)


def _refusal(record: int, value: Any) -> EngineError:
    said = value if isinstance(value, dict) else {}
    return EngineError(record, "control", f"{said.get('command')}: {said.get('why') or 'it did not say why'}", None)


def _finding(errors: Sequence[EngineError], session: Session) -> Finding:
    first = errors[0]
    refused = first.where == "control"
    index = session.store.trace.index
    rids = {error.rid for error in errors}
    evidence = tuple(
        Evidence(session.store.source(error.record), index.seq[error.record], error.record, error.message)
        for error in errors[:MOST_EVIDENCE]
    )
    return Finding(
        id="engine.rejected" if refused else "engine.error",
        severity="warning" if refused else "high",
        confidence=1.0,
        title=f"The engine refused a command: {first.message}" if refused else f"The engine failed: {first.message}",
        detail=f"Where: {first.where}; {len(errors):,} times.",
        evidence=evidence,
        rid=rids.pop() if len(rids) == 1 else None,
        kind=str(first.record),
    )
