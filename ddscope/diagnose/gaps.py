"""Missing records: what a `gap` on an engine's stream means for the other findings.

No rule of this package concludes from silence, but a rate over a stream with holes is a rate over what arrived, and
that is said.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose.base import Detector, Finding, RuledOut
from ddscope.model import Gap, Record

GAP_CONFIDENCE = 0.9
"""Factor on the confidence of findings that read an engine stream with holes."""


class Gaps(Detector):
    """Counts what engine sources lost. Yields no findings of its own."""

    id = "engine.gaps"
    wants = (Gap,)

    def __init__(self) -> None:
        self._lost: dict[str, tuple[int, bool, str]] = {}  # source → records lost, some uncounted, first reason

    def observe(self, record: Record, index: int | None = None) -> None:
        if not isinstance(record, Gap) or not record.of.startswith("engine"):
            return
        count, unknown, reason = self._lost.get(record.of, (0, False, record.reason))
        self._lost[record.of] = (count + max(0, record.count or 0), unknown or record.count is None, reason)

    def findings(self) -> Iterable[Finding]:
        return ()

    def qualify(self, findings: Iterable[Finding]) -> list[Finding]:
        """Findings whose evidence comes from a source with holes, less confident and saying so."""
        return [self._qualified(finding) for finding in findings]

    def _qualified(self, finding: Finding) -> Finding:
        sources = sorted({e.src for e in finding.evidence} & self._lost.keys())
        if not sources:
            return finding
        notes = tuple(RuledOut("lost records as the cause", self._note(source)) for source in sources)
        return finding.with_(confidence=finding.confidence * GAP_CONFIDENCE, ruled_out=finding.ruled_out + notes)

    def _note(self, source: str) -> str:
        count, unknown, reason = self._lost[source]
        more = " or more" if unknown else ""
        return (
            f"{count:,}{more} records of {source} are missing ({reason}); the numbers here are of what arrived, "
            "and nothing was concluded from what did not"
        )
