"""`hang.rank_divergence`: ranks that run one model together do not emit the same tokens in the same step.

All ranks of a tensor-parallel group must take the same decisions, or their next collectives wait for each other for
ever. Reads the counts that other ranks tell beside the tree of the first one. Traps: ranks whose records come in any
order, by different sockets; a step that is missing on one side; two servers that were given the same request.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import WANTS, Journal
from ddscope.diagnose.log_events import Decode
from ddscope.diagnose.words import excerpt, listed, plural
from ddscope.model import Log, Record, Step
from ddscope.trace.ranks import rank_of

WAITING = 16384
"""Steps that wait for the other ranks: one that nobody else tells (a single rank, a sampled stream) must not stay."""

WAITING_LINES = 256

NEXT = (
    "Look at the first differing step, not at where it hung.",
    "What each rank decides by itself must be equal on all: random numbers and their seeds, sampling done on a rank's "
    "own logits, top-k with ties, a drafter that is not the same on all ranks.",
    "The logits that decide are gathered before the choice, or the choice is broadcast by the first rank.",
    "Versions and weights: compare the fact `versions` of the ranks.",
)


class RankDivergence(Detector):
    """Compares every rank's step with the first one told of the same request and number."""

    id = "hang.rank_divergence"
    wants = (*WANTS, Step)
    ranks = True

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
        self._batches: dict[tuple[str, int, str, int], tuple[str, Decode, Evidence]] = {}
        self._parted: tuple[str, int, list[Evidence], str] | None = None  # service, iteration, lines, words
        self._waiting: dict[tuple[str, int], tuple[Step, int | None]] = {}
        self._seen: set[int] = set()  # ranks
        self._compared = 0
        self._differ = 0
        self._counts_differ = 0
        self._first: tuple[Step, Step] | None = None
        self._pairs: set[tuple[int, int]] = set()
        self._rids: dict[str, None] = {}
        self._evidence: list[Evidence] = []

    def observe(self, record: Record, index: int | None = None) -> None:
        self._journal.observe(record, index)
        if isinstance(record, Log):
            if self._parted is None:
                self._observe_log(record, index)
            return
        if not isinstance(record, Step) or (record.emitted is None and record.path is None):
            return
        rank = rank_of(record.src)
        if rank is None:
            return
        self._seen.add(rank)
        key = (record.rid, record.step)
        held = self._waiting.get(key)
        if held is None or rank_of(held[0].src) == rank:
            self._hold(key, record, index)
            return
        self._compare(held, record, index)

    def _observe_log(self, record: Log, index: int | None) -> None:
        """A batch line that tells its iteration and its tensor-parallel rank, against that of another rank."""
        line, run = self._journal.line, self._journal.run
        if line is None or run is None or line.prefix is None or not isinstance(line.event, Decode):
            return
        rank = line.prefix.ranks.get("TP")
        if rank is None or line.event.iteration is None:
            return
        group = " ".join(f"{name}{number}" for name, number in sorted(line.prefix.ranks.items()) if name != "TP")
        key = (record.src, run.number, group, line.event.iteration)
        told = (f"TP{rank}", line.event, evidence_of(record, index, excerpt(line.text)))
        held = self._batches.get(key)
        if held is None:
            while len(self._batches) >= WAITING_LINES:
                del self._batches[next(iter(self._batches))]
            self._batches[key] = told
        elif held[0] != told[0]:
            words = _batches_differ(held[1], told[1])
            if words:
                words = f"{held[0]} and {told[0]} tell {words}"
                name = self._journal.services[record.src].name
                self._parted = (name, line.event.iteration, [held[2], told[2]], words)

    def _from_log(self, name: str, iteration: int, lines: list[Evidence], words: str) -> Finding:
        return Finding(
            id=self.id,
            kind="log",
            severity="critical",
            confidence=0.85,
            title=f"Ranks of {name} work on different batches from iteration {iteration:,} on at the latest.",
            detail=f"In the same iteration {words}. The next collective may wait for ever.",
            evidence=tuple(lines),
            next=NEXT,
        )

    def _hold(self, key: tuple[str, int], step: Step, index: int | None) -> None:
        while len(self._waiting) >= WAITING:
            del self._waiting[next(iter(self._waiting))]
        # Only what is compared: a tree has no place here.
        lean = Step(
            src=step.src,
            seq=step.seq,
            t=step.t,
            mono=step.mono,
            rid=step.rid,
            step=step.step,
            emitted=step.emitted,
            path=step.path,
        )
        self._waiting[key] = (lean, index)

    def _compare(self, held: tuple[Step, int | None], step: Step, index: int | None) -> None:
        other, where = held
        counts = _counts(other, step)
        if counts is None:
            return
        self._compared += 1
        if counts[0] == counts[1] and (other.emitted is None or step.emitted is None or other.emitted == step.emitted):
            return
        self._differ += 1
        self._counts_differ += counts[0] != counts[1]
        self._pairs.add((rank_of(other.src) or 0, rank_of(step.src) or 0))
        if len(self._rids) < 2:
            self._rids[step.rid] = None
        if self._first is None:
            self._first = (other, step)
        if len(self._evidence) + 2 <= MAX_EVIDENCE:
            self._evidence.append(evidence_of(other, where, _emitted(other)))
            self._evidence.append(evidence_of(step, index, _emitted(step)))

    def findings(self) -> Iterable[Finding]:
        if self._first is None:
            if self._parted is not None:
                yield self._from_log(*self._parted)
            return
        one, two = sorted(self._first, key=lambda step: rank_of(step.src) or 0)
        counts = self._counts_differ > 0
        ranks = sorted({rank for pair in self._pairs for rank in pair})
        alike = self._compared - self._differ
        ruled_out = []
        if counts:
            ruled_out.append(RuledOut("the communication library", "the ranks had parted before anything could wait"))
        if alike:
            why = f"{plural(alike, 'other step')} told by several ranks agree, so the numbers of steps fit together"
            ruled_out.append(RuledOut("records of different steps compared", why))
        yield Finding(
            id=self.id,
            kind="counts" if counts else "ids",
            severity="critical",
            confidence=0.95 if alike else 0.8,
            title=f"Ranks {listed(ranks)} emit different tokens, first at step {one.step:,} of request {one.rid}.",
            detail=f"{_difference(one, two)} Of {plural(self._compared, 'step')} told by several ranks "
            f"{self._differ:,} differ, {self._counts_differ:,} of them in how many tokens were emitted. "
            + (
                "From then on the ranks work on different batches: the next collective may wait for ever, long after "
                "this step, and a time-out of the communication library is its consequence."
                if counts
                else "The lengths agree, so nothing waits yet; the caches of the ranks hold different tokens."
            ),
            evidence=tuple(self._evidence),
            next=NEXT,
            ruled_out=tuple(ruled_out),
            rid=next(iter(self._rids)) if len(self._rids) == 1 else None,
        )


def _counts(one: Step, two: Step) -> tuple[int, int] | None:
    """What can be compared: tokens emitted, or, where ids are left out, the lengths of the paths."""
    if one.emitted is not None and two.emitted is not None:
        return len(one.emitted), len(two.emitted)
    return None if one.path is None or two.path is None else (len(one.path), len(two.path))


def _batches_differ(one: Decode, two: Decode) -> str:
    """What two ranks tell differently of one iteration, in words; "" where it agrees."""
    for name, a, b in (
        ("running requests", one.running, two.running),
        ("tokens in the cache", one.tokens, two.tokens),
        ("as accept length", one.accept_len, two.accept_len),
    ):
        if a is not None and b is not None and a != b:
            return f"{a:g} and {b:g} {name}"
    return ""


def _emitted(step: Step) -> str:
    if step.emitted is None:
        return f"step {step.step}: a path of {len(step.path or ())}"
    return f"step {step.step}: {plural(len(step.emitted), 'token')} emitted: {listed(step.emitted)}"


def _difference(one: Step, two: Step) -> str:
    """Where the ids of two ranks part."""
    if one.emitted is None or two.emitted is None:
        lengths = _counts(one, two) or (0, 0)
        return f"Rank {rank_of(one.src)} took a path of {lengths[0]:,}, rank {rank_of(two.src)} one of {lengths[1]:,}."
    first, second = one.emitted, two.emitted
    names = f"Rank {rank_of(one.src)} emitted {plural(len(first), 'token')}, rank {rank_of(two.src)} {len(second):,}"
    for place, (a, b) in enumerate(zip_longest(first, second), 1):
        if a is not None and b is not None and a != b:
            return f"{names}; token {place} of the step is {a} against {b}."
    return f"{names}."
