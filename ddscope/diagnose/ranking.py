"""The order of findings: the gravest first, then the surest; and what made the output stands before what stopped it.

The one exception to severity: a server that writes one token over and over and then answers nobody has two faults. The
second is felt first, but restarting it brings the first one back, so what made the output is read before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddscope.diagnose.base import SEVERITY_RANK, Finding

FLOOD = "output.token_flood"
STOPPED = "serve.alive_not_serving"
SURE = 0.5  # of a flood; one that the prompt asked for is below
_MAKERS = ("nan.logits", "shape.mismatch", "tree.invalid", "verify.replay_mismatch")


def rank_key(finding: Finding) -> tuple[Any, ...]:
    """Sort key of the ranking: severity, confidence, then texts, so that only equal findings compare equal."""
    return (
        -SEVERITY_RANK.get(finding.severity, -1),
        -finding.confidence,
        finding.id,
        finding.kind,
        finding.rid is not None,
        finding.rid or "",
        finding.title,
        finding.detail,
        tuple((e.src, e.seq, -1 if e.record is None else e.record, e.text, e.file) for e in finding.evidence),
        finding.next,
        tuple((r.what, r.why) for r in finding.ruled_out),
        finding.consequences,
        finding.symptom,
    )


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, the most pressing first. The order is total: it does not depend on the order they came in.

    What made a flood of one token stands right before the first finding that the server no longer serves, if it would
    come after it.
    """
    listed = sorted(findings, key=rank_key)
    stopped = next((place for place, finding in enumerate(listed) if finding.id == STOPPED), None)
    if stopped is None:
        return listed
    floods = [finding for finding in listed if finding.id == FLOOD]
    late = [finding for finding in listed[stopped:] if makes_output(finding, floods)]
    if not late:
        return listed
    moved = {id(finding) for finding in late}
    return [*listed[:stopped], *late, *(finding for finding in listed[stopped:] if id(finding) not in moved)]


def makes_output(finding: Finding, floods: Iterable[Finding]) -> bool:
    """Whether a finding says what made a flood: one is folded into it, or one that stands by itself comes after it."""
    if any(told.startswith(FLOOD + ":") for told in finding.consequences):
        return True
    return any(precedes(finding, flood) for flood in floods)


def precedes(cause: Finding, flood: Finding) -> bool:
    """Whether a grave fault of target, verify or shapes was seen in the flooded stream, no later than the flood was.

    Drafts do not change the text of a sound verify, so what is wrong with acceptance alone is no such fault.
    """
    if cause.id not in _MAKERS or cause.kind.startswith("draft") or flood.confidence < SURE:
        return False
    if SEVERITY_RANK[cause.severity] < SEVERITY_RANK["high"]:
        return False
    first: dict[str, int] = {}
    for shown in flood.evidence:
        first[shown.src] = min(first.get(shown.src, shown.seq), shown.seq)
    return any(shown.seq <= first[shown.src] for shown in cause.evidence if shown.src in first)
