"""`metric.redefined`: the logged accept rate and accept length agree only under an older formula of the rate.

SGLang divided what was emitted by what was verified until April 2026, and divides what was accepted by what was drafted
since: after an upgrade the rate falls and nothing else. Only the length can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddscope.diagnose import accept_rate
from ddscope.diagnose.base import Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import Journal, JournalRule
from ddscope.diagnose.log_events import Decode
from ddscope.diagnose.runs import Run
from ddscope.diagnose.words import plural
from ddscope.model import Log, Record

LEAST = 3  # reports that fit one formula alone
MAX_RUNS = 128


@dataclass(slots=True)
class _Told:
    """Reports of one run, by the formula they agree with."""

    run: Run
    name: str
    draft_tokens: int
    before: int = 0
    now: int = 0
    other: int = 0  # both or neither
    length: float = 0.0  # sums over those that fit one formula
    rate: float = 0.0
    evidence: Evidence | None = None

    @property
    def formula(self) -> str:
        """The one that the run uses: reports speak for it, and none against it."""
        if self.before >= LEAST and not self.now:
            return "before"
        return "now" if self.now >= LEAST and not self.before else ""

    def means(self) -> tuple[float, float]:
        count = max(1, self.before + self.now)
        return self.length / count, self.rate / count


class MetricRedefined(JournalRule):
    """Does the sum for every report of runs whose number of draft tokens is known."""

    id = "metric.redefined"

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._told: dict[tuple[str, int], _Told] = {}

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        run, line = self.journal.run, self.journal.line
        if run is None or line is None or not isinstance(record, Log) or not isinstance(line.event, Decode):
            return
        length, rate = line.event.accept_len, line.event.accept_rate
        if length is None or rate is None:
            return
        told = self._told.get((record.src, run.number))
        if told is None:
            tokens = draft_tokens(run)
            if tokens is None or len(self._told) >= MAX_RUNS:
                return
            name = self.journal.services[record.src].name
            told = self._told[record.src, run.number] = _Told(run, name, tokens)
        formula = accept_rate.formula(length, rate, told.draft_tokens)
        if not formula:
            told.other += 1
            return
        told.before += formula == "before"
        told.now += formula == "now"
        told.length += length
        told.rate += rate
        if told.evidence is None:
            told.evidence = evidence_of(record, index, f"accept len {length:g}, accept rate {rate:g}")

    def findings(self) -> Iterable[Finding]:
        by_service: dict[str, list[_Told]] = {}
        for (src, _), told in self._told.items():
            if told.formula:
                by_service.setdefault(src, []).append(told)
        for runs in by_service.values():
            old = [told for told in runs if told.formula == "before"]
            new = [told for told in runs if told.formula == "now"]
            if old:
                yield self._finding(old[-1], new[0] if new else None)

    def _finding(self, old: _Told, new: _Told | None) -> Finding:
        length, rate = old.means()
        would = accept_rate.now(length, old.draft_tokens)
        evidence = [told.evidence for told in (old, new) if told is not None and told.evidence is not None]
        title = f"{old.name} logs the accept rate by the old formula: {rate:.2f} would be {would:.2f} by today's."
        detail = f"Accept length {length:.2f} of {old.draft_tokens} gives this rate only as emitted by verified, "
        detail += f"(m + 1) / (k + 1); today it is accepted by drafted, m / k. {plural(old.before, 'report')} agree."
        if new is not None:
            new_length, new_rate = new.means()
            title = (
                f"The accept rate of {old.name} has another formula since a restart: {rate:.2f} and {new_rate:.2f} "
                f"stand for accept lengths of {length:.2f} and {new_length:.2f}."
            )
            versions = [told.run.version for told in (old, new)]
            if all(versions):
                detail += f" Version {versions[0]} counts the old way, {versions[1]} the new one."
        return Finding(
            id=self.id,
            kind="between_runs" if new is not None else "old",
            severity="info",
            confidence=0.95,
            title=title,
            detail=detail,
            evidence=tuple(evidence),
            next=("Compare the accept length only, or compute the rate from it: (length − 1) / (draft tokens − 1).",),
            ruled_out=(
                RuledOut("another acceptance", "the accept length is as it was")
                if new is not None and abs(new.means()[0] - length) < 0.1 * length
                else RuledOut("a mistake of the counters", "all reports fit the old formula exactly"),
            ),
        )


def draft_tokens(run: Run) -> int | None:
    """Tokens that a verify of this run looks at, the root included, by its arguments."""
    tokens = run.args.get("speculative_num_draft_tokens", "")
    return int(tokens) if tokens.isdecimal() and len(tokens) < 6 and int(tokens) >= 2 else None
