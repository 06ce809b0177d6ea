"""How findings relate: which symptom is explained by which cause. Pure functions over findings.

A symptom is folded into a cause only when the cause makes it certain and is at least as grave; a finding with
evidence of its own (a configuration that differs, a mask that is wrong) is never folded into another fault, for two
faults at once are common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddscope.diagnose.base import SEVERITY_RANK, Finding
from ddscope.diagnose.ranking import FLOOD, precedes, ranked

Rule = Callable[[Finding, Finding], bool]
"""Whether the first finding explains the second."""

_OWN_EVIDENCE = ("mask_token", "layer_order", "layer_ids", "hidden_size", "num_target_layers")


def _is_low_acceptance(finding: Finding) -> bool:
    """Acceptance that is low for a reason the finding itself does not know."""
    if finding.id == "accept.low_from_start":
        return True
    return finding.id == "accept.curve" and not any(kind in _OWN_EVIDENCE for kind in finding.kind.split("+"))


def _nan(cause: Finding, symptom: Finding) -> bool:
    if cause.id != "nan.logits":
        return False
    target = cause.kind.startswith("target") and cause.kind != "target.masked"
    if symptom.id == "output.token_flood":
        return (target and symptom.kind.endswith(".nonfinite")) or (cause.kind, symptom.kind) == ("log.flood", "one_id")
    if symptom.id == "verify.replay_mismatch":
        return target and symptom.kind == "nonfinite"
    return cause.kind in (
        "target",
        "target.flat",
        "draft",
        "draft.flat",
        "log.flood",
        "log.both",
    ) and _is_low_acceptance(symptom)


def _shape(cause: Finding, symptom: Finding) -> bool:
    return cause.id == "shape.mismatch" and _is_low_acceptance(symptom)


def _verify(cause: Finding, symptom: Finding) -> bool:
    """Wrong logits of the target make it refuse good drafts, and say nothing about the drafter."""
    wrong = cause.id == "verify.replay_mismatch" or (cause.id == "tree.invalid" and cause.severity == "critical")
    return wrong and _is_low_acceptance(symptom)


def _curve(cause: Finding, symptom: Finding) -> bool:
    if cause.id != "accept.curve" or cause.severity == "info":
        return False
    if symptom.id == "accept.low_from_start":
        return symptom.kind == "steps"
    return symptom.id == "config.requested_vs_effective" and symptom.kind in cause.kind.split("+")


def _parted(cause: Finding, symptom: Finding) -> bool:
    """Ranks that took different decisions wait for each other for ever."""
    return cause.id == "hang.rank_divergence" and cause.kind != "ids" and symptom.id == "serve.alive_not_serving"


TELLING = 20  # characters of an exception that are no chance
_ENDS = ("startup.import_fatal", "env.abi", "shape.mismatch", "kv.allocator", "gpu.fault", "startup.crash_loop")


def _ended(cause: Finding, symptom: Finding) -> bool:
    """A crash, or a loop of crashes, whose evidence is the cause's own: the line it was read from, or the same exit."""
    if symptom.id == "startup.crash_loop":
        if cause.id not in _ENDS[:-1]:
            return False
    elif (symptom.id, symptom.kind) != ("serve.down", "crashed") or cause.id not in _ENDS:
        return False
    seen = {(e.src, e.seq) for e in cause.evidence}
    if any((e.src, e.seq) in seen for e in symptom.evidence):
        return True
    words = symptom.evidence[0].text if symptom.evidence else ""  # what was raised; a hook may have told it, too
    return len(words) > TELLING and any(words in e.text for e in cause.evidence)


def _simulated(cause: Finding, symptom: Finding) -> bool:
    """Acceptance that a setting makes up says nothing, however low and however grave it looks."""
    return cause.id == "config.requested_vs_effective" and cause.kind == "simulated" and _is_low_acceptance(symptom)


RULES: tuple[Rule, ...] = (_nan, _shape, _verify, _curve, _parted, _ended)


def relate(findings: Iterable[Finding]) -> list[Finding]:
    """Findings with explained symptoms folded into their causes as `consequences`; each symptom goes to one cause."""
    listed = ranked(findings)
    cause_of: dict[int, int] = {}
    for number, symptom in enumerate(listed):
        causes = (place for place, cause in enumerate(listed) if place != number and _explains(cause, symptom))
        place = next(causes, None)
        if place is not None:
            cause_of[number] = place
    consequences: dict[int, list[str]] = {}
    for number in cause_of:
        root = number
        while root in cause_of:  # ends: a cause is no symptom of what it explains (see the rules)
            root = cause_of[root]
        consequences.setdefault(root, []).append(_as_consequence(listed[number]))
    kept = [
        finding.with_(consequences=(*finding.consequences, *consequences.get(number, ())))
        for number, finding in enumerate(listed)
        if number not in cause_of
    ]
    return [_with_output(finding, kept) for finding in kept]


def _with_output(finding: Finding, findings: Iterable[Finding]) -> Finding:
    """A fault that a flood followed names it: it is not certain that it made it, so both stay."""
    flood = next((other for other in findings if other.id == FLOOD and precedes(finding, other)), None)
    if flood is None:
        return finding
    said = f"After it, on the same server: {flood.title[:1].lower()}{flood.title[1:]}"
    return finding.with_(detail=f"{finding.detail} {said}".lstrip())


def _as_consequence(finding: Finding) -> str:
    return f"{finding.id}: {finding.symptom or finding.title}"


def _explains(cause: Finding, symptom: Finding) -> bool:
    if _simulated(cause, symptom):
        return True
    grave = SEVERITY_RANK[cause.severity] >= max(SEVERITY_RANK["high"], SEVERITY_RANK[symptom.severity])
    return grave and any(rule(cause, symptom) for rule in RULES)
