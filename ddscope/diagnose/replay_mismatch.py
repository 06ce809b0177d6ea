"""`verify.replay_mismatch`: the tree verify computed other logits than a plain causal pass over the same tokens.

The only rule that sees faults of verification by their effect: they keep a healthy τ and change the text. Sound runs
measured differences up to 7e-5, faults 1.5 to 14. What the first failing check of a request says: only rows of
drafted nodes are off, the root's is right: mask or positions. The root's row is off: the cache before this step is
damaged, since the root sees nothing else. Trap: wrong mask or positions damage the cache for later steps, so only the
first failing check of a request tells, and only when an earlier one passed or nothing was committed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.requests import MAX_OPEN
from ddscope.diagnose.tree_invalid import TreeAudit
from ddscope.diagnose.words import listed, plural, quantity
from ddscope.model import Fact, Finish, Record, Request, Step

NEAR = 2.0  # times the tolerance: below it, rounding is as likely as a fault
MOVES_KEPT = 4
MAX_FAILURES = 64


@dataclass(frozen=True, slots=True)
class _Check:
    """One `replay_check` fact. Differences are absolute, in logits; None where one is not finite or not told."""

    rid: str
    step: int
    root: float | None
    tree: float | None
    tolerance: float

    @property
    def wrong(self) -> bool:
        return self.root_wrong or self.tree_wrong

    @property
    def root_wrong(self) -> bool:
        return self.root is not None and self.root > self.tolerance

    @property
    def tree_wrong(self) -> bool:
        return self.tree is not None and self.tree > self.tolerance

    @property
    def largest(self) -> float:
        return max(self.root or 0.0, self.tree or 0.0)

    def text(self) -> str:
        """The check in one line."""
        sides = (("root", self.root), ("drafted nodes", self.tree))
        told = ", ".join(f"{name} off by {quantity(diff)}" for name, diff in sides if diff is not None)
        return f"step {self.step}: {told} (tolerance {quantity(self.tolerance)})"


@dataclass(slots=True)
class _Run:
    """What is known about one open request since its last good check."""

    good: int | None = None  # step of the last check that passed
    moves: list[tuple[int, str]] = field(
        default_factory=list
    )  # (step, path): commits that had to move rows of the cache
    failed: bool = False

    def step_seen(self, step: Step) -> None:
        path = step.path
        if path and len(self.moves) < MOVES_KEPT and path != list(range(len(path))):
            self.moves.append((step.step, listed(path)))


@dataclass(frozen=True, slots=True)
class _Failure:
    """The first failing check of a request, with what led to it."""

    check: _Check
    good: int | None
    moves: tuple[str, ...]
    evidence: Evidence


class ReplayMismatch(Detector):
    """Reads replay checks; keeps the first failing one of each request.

    totals: what the tree's own check found, to say whether mask and positions can be the cause.
    """

    id = "verify.replay_mismatch"
    wants = (Fact, Step, Request, Finish)

    def __init__(self, totals: TreeAudit | None = None) -> None:
        self._totals = TreeAudit() if totals is None else totals
        self._runs: dict[tuple[str, str], _Run] = {}
        self._passed = 0
        self._failed = 0
        self._largest: _Check | None = None
        self._failures: list[_Failure] = []
        self._rids: dict[str, None] = {}

    def observe(self, record: Record, index: int | None = None) -> None:
        if isinstance(record, Step):
            run = self._runs.get((record.src, record.rid))
            if run is None:
                run = self._run(record.src, record.rid)
            run.step_seen(record)
        elif isinstance(record, Fact):
            check = _read(record.value) if record.name == "replay_check" else None
            if check is not None:
                self._take(check, record, index)
        elif isinstance(record, Request | Finish):
            self._runs.pop((record.src, record.rid), None)

    def _run(self, src: str, rid: str) -> _Run:
        key = (src, rid)
        run = self._runs.get(key)
        if run is None:
            while len(self._runs) >= MAX_OPEN:
                del self._runs[next(iter(self._runs))]
            run = self._runs[key] = _Run()
        return run

    def _take(self, check: _Check, fact: Fact, index: int | None) -> None:
        run = self._run(fact.src, check.rid)
        if not check.wrong:
            self._passed += 1
            run.good = check.step
            run.moves = [(step, path) for step, path in run.moves if step >= check.step]
            return
        self._failed += 1
        if self._largest is None or check.largest > self._largest.largest:
            self._largest = check
        if len(self._rids) < 2:
            self._rids[check.rid] = None
        if not run.failed and len(self._failures) < MAX_FAILURES:
            moves = tuple(f"step {step} (path {path})" for step, path in run.moves if step < check.step)
            evidence = evidence_of(fact, index, check.text())
            self._failures.append(_Failure(check, run.good, moves, evidence))
        run.failed = True

    def findings(self) -> Iterable[Finding]:
        if self._failures and self._largest is not None:
            root = [failure for failure in self._failures if failure.check.root_wrong]
            tree = [failure for failure in self._failures if not failure.check.root_wrong]
            yield self._finding(root, self._largest) if len(root) > len(tree) else self._finding(tree, self._largest)

    def _finding(self, failures: list[_Failure], largest: _Check) -> Finding:
        first = failures[0]
        check = first.check
        finding = self._root_row(first) if check.root_wrong else self._tree_rows(first)
        nonfinite = check.largest == inf
        near = all(f.check.largest < NEAR * f.check.tolerance for f in failures)
        near = near and largest.largest < NEAR * largest.tolerance
        detail = [
            f"{self._failed:,} of {plural(self._failed + self._passed, 'replay check')} failed.",
            f"Largest difference {quantity(largest.largest)} in step {largest.step} of {largest.rid}, "
            f"tolerance {quantity(largest.tolerance)}.",
        ]
        if near:
            detail.append("That is near the tolerance: it may be rounding.")
        return finding.with_(
            kind="nonfinite" if nonfinite else finding.kind,
            severity="info" if near else finding.severity,
            confidence=0.4 if near else finding.confidence,
            detail=" ".join([*detail, finding.detail]).rstrip(),
            evidence=tuple(f.evidence for f in failures)[:MAX_EVIDENCE],
            ruled_out=(*finding.ruled_out, *self._ruled_out(first, near)),
            rid=next(iter(self._rids)) if len(self._rids) == 1 else None,
        )

    def _root_row(self, failure: _Failure) -> Finding:
        check = failure.check
        where = f"step {check.step} of {check.rid}"
        by = f"the root's logits are off by {quantity(check.root or 0.0)} (tolerance {quantity(check.tolerance)})"
        confidence, detail = 0.95, ""
        if self._tree_is_wrong():
            title = f"The verify computes wrong logits from {where} on, as its mask or positions are wrong: {by}."
            detail = "Steps under a wrong mask or wrong positions also leave wrong rows in the cache."
        elif check.step == 0:
            title = f"The verify computes wrong logits in {where}, before anything was committed: {by}."
            detail = "The cache holds the prompt only: either the root's position or mask row is wrong, or the prefill."
        else:
            title = f"The target's cache is damaged before {where}: {by}."
            if failure.good is None:
                confidence = 0.85
                detail = (
                    "No earlier check of this request: steps under a wrong mask or wrong positions would damage it too."
                )
            elif failure.moves:
                detail = f"The check at step {failure.good} passed; since then rows had to be moved at "
                detail += f"{'; '.join(failure.moves)}."
            else:
                detail = f"The check at step {failure.good} passed; no commit since then is known to have moved rows."
        todo = _NEXT_TREE_INVALID if self._tree_is_wrong() else _NEXT_ROOT
        return Finding(self.id, "critical", confidence, title, detail, next=todo, kind="root_row")

    def _tree_rows(self, failure: _Failure) -> Finding:
        check = failure.check
        title = (
            f"The verify computes wrong logits for drafted nodes in step {check.step} of {check.rid}, below a "
            "right root: "
            f"mask or positions. They are off by {quantity(check.tree or 0.0)} (tolerance {quantity(check.tolerance)})."
        )
        todo = _NEXT_TREE_INVALID if self._tree_is_wrong() else _NEXT_TREE
        return Finding(self.id, "critical", 0.95, title, next=todo, kind="tree_rows")

    def _tree_is_wrong(self) -> bool:
        """Mask or positions are wrong as recorded, so they are the cause, whatever else may be."""
        return self._totals.masks_wrong > 0 or self._totals.positions_wrong > 0

    def _ruled_out(self, failure: _Failure, near: bool) -> tuple[RuledOut, ...]:
        check, totals = failure.check, self._totals
        why = "the target's own logits differ for the same tokens; a drafter only chooses the tokens"
        out = [RuledOut("the drafter", why)]
        if not near and check.tolerance > 0 and check.largest < inf:
            out.append(
                RuledOut("rounding", f"the difference is {check.largest / check.tolerance:,.0f} × the tolerance")
            )
        out.append(RuledOut("the target's weights", "the plain pass of the check uses the same ones"))
        if totals.masks_checked and not totals.masks_wrong:
            why = f"as recorded, the ancestor closure in all {plural(totals.masks_checked, 'step')}"
            out.append(RuledOut("the mask", why))
        if totals.positions_checked and not totals.positions_wrong:
            why = f"as recorded, base + depth in all {plural(totals.positions_checked, 'step')}"
            out.append(RuledOut("the positions", why))
        if not check.root_wrong and check.root is not None:
            why = f"the root's row, which sees all of it, agrees within {quantity(check.root)}"
            out.append(RuledOut("the cache before this step", why))
        return tuple(out)


_NEXT_ROOT = (
    "Check the commit: the rows of the accepted path must be moved to base …, in order (read all, then "
    "write), and the rest "
    "cropped.",
    "Compare the path of the steps named above: a path 0, 1, 2 … needs no move, any other does.",
    "Check on every step (`--self-check 1`) to find the first one that is off.",
    "Do not trust the text from there on, whatever τ says.",
)
_NEXT_TREE_INVALID = (
    "Mend what `tree.invalid` names first, then run the check again: it may hide a second fault.",
    "Do not trust the text of this run, whatever τ says.",
)
_NEXT_TREE = (
    "Compare the mask that the attention kernel was given with the tree: every node sees the cache, its "
    "ancestors, itself.",
    "Compare the positions that it was given with base + depth.",
    "Check that the attention backend honours a custom mask; some ignore it silently.",
    "Do not trust the text of this run, whatever τ says.",
)


def _read(value: Any) -> _Check | None:
    """The fact's value as a check; None when it is not as described."""
    if not isinstance(value, Mapping):
        return None
    rid, step, tolerance = value.get("rid"), value.get("step"), _number(value.get("tolerance"))
    if not isinstance(rid, str) or not isinstance(step, int) or tolerance is None or tolerance < 0:
        return None
    failed = value.get("ok") is False
    root, tree = (_difference(value, key, failed) for key in ("root_diff", "tree_diff"))
    return _Check(rid, step, root, tree, tolerance)


def _difference(value: Mapping[str, Any], key: str, failed: bool) -> float | None:
    """A difference; infinite when it was written as null in a check that failed; None when it is not there."""
    if key not in value:
        return None
    number = _number(value[key])
    if number is None:
        return inf if failed and value[key] is None else None
    return abs(number)


def _number(value: Any) -> float | None:
    """A finite number. JSON integers can be too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None
