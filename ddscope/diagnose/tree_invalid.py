"""`tree.invalid`: the tree that the target was given, or the path taken through it, is not what it should be.

Faults of verification keep a healthy τ: siblings that see each other measured 3.24 against 3.24 without the fault,
and the text was wrong in every run. So the rule looks at the tree itself. Trap: a chain-shaped tree passes
everything, so the finding says in how many of the checked steps it shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, Severity, evidence_of
from ddscope.diagnose.requests import Requests
from ddscope.diagnose.tree_check import Problem, audit
from ddscope.diagnose.words import plural
from ddscope.model import Control, Finish, Record, Request, Step

Words = tuple[Severity, str, tuple[str, ...]]  # severity, title, what to do

_ATTENTION = (
    "Compare the mask the attention kernel was given with `tree.mask` of the step: packed masks are cut by row."
)
_CHECK = "Turn on the replay check (`--self-check 1`): it says how far the logits are off, and from which step on."
_TEXT = "Do not trust the text of this run, whatever τ says: compare it with plain decoding of the same prompt."

WORDS: dict[str, Words] = {
    "positions.shifted": (
        "critical",
        "Every position the target was given is off by the same amount ({by}), the root's included.",
        (
            "Check where positions are computed: base is the position of the root, not of the token after it.",
            _CHECK,
            _TEXT,
        ),
    ),
    "positions.shifted_drafted": (
        "critical",
        "The drafted nodes were given positions off by the same amount ({by}); the root's is right.",
        ("Depth counts from 1 for the root's children: position = base + depth.", _CHECK, _TEXT),
    ),
    "positions.flat": (
        "critical",
        "The target was given flat positions: they count the nodes, as if the tree were a chain, instead of the depth.",
        ("Give the target base + depth of each node; siblings share a position.", _CHECK, _TEXT),
    ),
    "positions.same": (
        "critical",
        "All drafted nodes were given the same position, whatever their depth.",
        ("Give the target base + depth of each node.", _CHECK, _TEXT),
    ),
    "positions.wrong": (
        "critical",
        "The positions the target was given are not base + depth.",
        ("Recompute positions from `tree.parents` and compare them with what the verify forward got.", _CHECK, _TEXT),
    ),
    "positions.lengths": (
        "high",
        "The number of positions does not fit the number of nodes.",
        ("Check whether the root is counted on one side only.", _CHECK),
    ),
    "mask.lower_triangular": (
        "critical",
        "The tree mask is plain lower-triangular: each node sees every node before it, not only its ancestors.",
        (
            "The causal mask was used where the tree mask belongs: check that the verify forward passes the "
            "tree mask on, "
            "and that the attention backend honours custom masks.",
            _ATTENTION,
            _TEXT,
        ),
    ),
    "mask.siblings": (
        "critical",
        "In the tree mask siblings see each other: alternatives leak into each other's attention.",
        ("Build each row from the parent's row plus the node's own bit, and nothing else.", _ATTENTION, _TEXT),
    ),
    "mask.full": (
        "critical",
        "In the tree mask every node sees every node, those after it included.",
        ("Check that the mask is passed as additive or boolean as the backend expects it.", _ATTENTION, _TEXT),
    ),
    "mask.missing": (
        "critical",
        "The tree mask hides ancestors from their descendants.",
        ("Build each row from the parent's row plus the node's own bit.", _ATTENTION, _TEXT),
    ),
    "mask.wrong": (
        "critical",
        "The tree mask is not the ancestor closure of the tree.",
        ("Build each row from the parent's row plus the node's own bit.", _ATTENTION, _TEXT),
    ),
    "mask.lengths": (
        "high",
        "The number of mask rows does not fit the number of nodes.",
        ("Check whether the root is counted on one side only.", _CHECK),
    ),
    "mask.unreadable": (
        "warning",
        "The recorded tree mask cannot be read.",
        ("Check the hook that writes `tree.mask`: rows are hexadecimal, bit j is node j.",),
    ),
    "structure.parents": (
        "high",
        "A node of the draft tree comes before its parent.",
        ("Check the order of the tree builder: parents first; `parents[i]` is at most i.", _TEXT),
    ),
    "structure.lengths": (
        "high",
        "The draft tree has another number of tokens than of parents.",
        ("Check the tree builder, and the hook that copies its arrays.",),
    ),
    "structure.duplicates": (
        "warning",
        "Siblings of the draft tree are the same token twice: verified twice, accepted once.",
        ("Check the top-k of the drafter for repeated ids, and the vocabulary map of a reduced draft head.",),
    ),
    "structure.budget": (
        "warning",
        "The draft tree has more nodes than its budget.",
        ("Check whether the budget counts the root: here it does not.",),
    ),
    "path.broken": (
        "high",
        "The accepted path is not a path of the draft tree.",
        ("Check the walk: it starts at node 0 and goes from a node to one of its children.", _TEXT),
    ),
    "path.taken": (
        "critical",
        "A drafted token was accepted although the target chose another one.",
        (
            "Look for settings that accept on purpose: acceptance thresholds below 1, simulated acceptance.",
            "Check the walk: it compares the child's token with the target's choice at its parent, not at itself.",
            _TEXT,
        ),
    ),
    "path.not_taken": (
        "warning",
        "The target's choice was in the tree below the path and was not accepted: a token was given away.",
        (
            "Look for a cap on the accepted length that is in force.",
            "Check the walk: it goes on as long as a child matches the target's choice.",
        ),
    ),
    "path.bonus": (
        "critical",
        "The bonus token is not the target's choice at the end of the path.",
        ("Check which row the bonus is read from: the last node of the path, not the last row of the batch.", _TEXT),
    ),
    "path.emitted": (
        "critical",
        "The tokens that were committed are not those of the accepted path and the bonus.",
        ("Check the commit: path[1:] in order, then the bonus.", _TEXT),
    ),
}
# Where the steps of a run leave several kinds, the first of them: the one that says most.
PREFERENCE = {kind: rank for rank, kind in enumerate(WORDS)}


@dataclass(slots=True)
class TreeAudit:
    """How many steps carried positions, masks and greedy choices to check, and how many of them were wrong."""

    positions_checked: int = 0
    positions_wrong: int = 0
    masks_checked: int = 0
    masks_wrong: int = 0
    paths_checked: int = 0
    paths_wrong: int = 0


@dataclass(slots=True)
class _Tally:
    """The bad steps of one kind (structure, path) or one area (positions, mask)."""

    kinds: frozenset[str]
    steps: int = 0
    rids: dict[str, None] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    first: str = ""
    shift: int = 0


class TreeInvalid(Detector):
    """Checks every step's tree; one finding a kind of fault."""

    id = "tree.invalid"
    wants = (Step, Request, Finish, Control)

    def __init__(self, totals: TreeAudit | None = None) -> None:
        self.totals = TreeAudit() if totals is None else totals
        self._requests = Requests()
        self._tallies: dict[str, _Tally] = {}

    def observe(self, record: Record, index: int | None = None) -> None:
        if not isinstance(record, Step):
            self._requests.observe(record)
            return
        result = audit(record, self._requests.greedy(record) is True)
        if result is None:
            return
        totals = self.totals
        totals.positions_checked += result.positions
        totals.masks_checked += result.mask
        totals.paths_checked += result.greedy_path
        if result.problems:
            areas = {p.area for p in result.problems}
            totals.positions_wrong += "positions" in areas
            totals.masks_wrong += "mask" in areas
            totals.paths_wrong += "path" in areas
            for found in result.problems:
                self._count(found, record, index)

    def _count(self, found: Problem, step: Step, index: int | None) -> None:
        whole_area = found.area in ("positions", "mask")
        key = found.area if whole_area else min(found.kinds)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally(found.kinds, first=found.text, shift=found.shift)
        if whole_area and found.kinds != tally.kinds:
            tally.kinds = (tally.kinds & found.kinds) or frozenset((f"{found.area}.wrong",))
        tally.steps += 1
        if len(tally.rids) < 2:
            tally.rids[step.rid] = None
        if len(tally.evidence) < MAX_EVIDENCE:
            tally.evidence.append(evidence_of(step, index, f"step {step.step}: {found.text}"))

    def findings(self) -> Iterable[Finding]:
        for key, tally in self._tallies.items():
            yield self._finding(key, tally)

    def _finding(self, key: str, tally: _Tally) -> Finding:
        kind = min(tally.kinds, key=lambda k: PREFERENCE.get(k, len(PREFERENCE)))
        severity, title, todo = WORDS[kind]
        checked = {"positions": self.totals.positions_checked, "mask": self.totals.masks_checked}.get(key)
        steps = plural(tally.steps, "step")
        if checked is not None:
            steps = f"{tally.steps:,} of {plural(checked, 'step')} that recorded {'it' if key == 'mask' else 'them'}"
        return Finding(
            id=self.id,
            kind=kind,
            severity=severity,
            confidence=0.9 if key.startswith("path") else 0.98,
            title=title.format(by=f"{tally.shift:+,d}"),
            detail=f"Wrong in {steps}, first: {tally.first}.",
            evidence=tuple(tally.evidence),
            next=todo,
            ruled_out=self._ruled_out(key),
            rid=next(iter(tally.rids)) if len(tally.rids) == 1 else None,
        )

    def _ruled_out(self, key: str) -> tuple[RuledOut, ...]:
        totals = self.totals
        out = []
        if key in ("positions", "mask"):
            why = "positions and mask are made after drafting; a bad draft costs speed, not the text"
            out.append(RuledOut("the drafter", why))
        if key == "positions" and totals.masks_checked and not totals.masks_wrong:
            why = f"equal to the ancestor closure in all {plural(totals.masks_checked, 'step')} that recorded it"
            out.append(RuledOut("the mask", why))
        if key == "mask" and totals.positions_checked and not totals.positions_wrong:
            why = f"equal to base + depth in all {plural(totals.positions_checked, 'step')} that recorded them"
            out.append(RuledOut("the positions", why))
        return tuple(out)
