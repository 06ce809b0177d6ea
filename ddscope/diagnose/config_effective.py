"""`config.requested_vs_effective`: the drafter's own configuration says one thing, another is in force.

Acceptance does not have to show it: layer ids off by one or two measured τ 3.24 with and without the fault. Where the
curve shows it too, `accept.curve` names the same cause and this finding is folded into it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose.base import Detector, Finding, RuledOut
from ddscope.diagnose.drafter_inputs import Cause, DrafterInputs
from ddscope.model import Fact, Record


class RequestedVsEffective(Detector):
    """Compares `drafter.checkpoint` with `drafter.in_force`, and counts the layers that differ."""

    id = "config.requested_vs_effective"
    wants = (Fact,)

    def __init__(self) -> None:
        self._inputs = DrafterInputs()

    def observe(self, record: Record, index: int | None = None) -> None:
        if isinstance(record, Fact):
            self._inputs.observe(record, index)

    def findings(self) -> Iterable[Finding]:
        for cause in self._inputs.causes():
            yield self._finding(cause)

    def _finding(self, cause: Cause) -> Finding:
        return Finding(
            id=self.id,
            kind=cause.kind,
            severity="warning",
            confidence=0.9,
            title=f"The drafter is not fed as it was trained: {cause.words}.",
            detail="Read from the configurations. Acceptance need not fall much, and the text stays right.",
            symptom="The drafter is not fed as it was trained.",
            evidence=cause.evidence,
            next=cause.next,
            ruled_out=(
                RuledOut("wrong text", "a drafter's inputs change what is proposed, not what the target accepts"),
            ),
        )
