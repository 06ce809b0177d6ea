"""`--budget auto`: how many nodes of a draft tree are worth their verify, decided anew at every step.

Pure arithmetic, no clock and no model: equal costs and equal marginals give equal budgets. What a verify costs is
measured in `ddscope.engine.calibrate`. Any budget writes the same text, so the policy decides about speed alone.
Source of the idea: CaDDTree, arXiv 2606.01813.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any, Final, Literal

from ddscope_kernels import DraftTree

AUTO: Final = "auto"
"""The budget that stands for this policy."""
Budget = int | Literal["auto"]

RATE = 0.1
"""Share of a new measurement in a running mean: the last ten steps or so decide."""
SHAPE_RATE = 0.03
SHAPE_LIMIT = log(2)
"""The curve of costs by size may bend by a factor of two from what was calibrated; its height follows freely."""
JUMP = log(4)
"""One step counts as at most four times slower or faster than predicted: a hiccup of the machine is no news."""
MEMORY = 0.98
"""Weight of a step's acceptances after each later step: half after 34 steps."""
PRIOR = 2.0
"""Promised tokens of a depth that the drafter is believed without evidence."""
TRUST = (0.25, 1.25)
"""The marginals may be corrected by no more than this. They ignore what stands before them at other depths, so they
promise too much, more so the deeper; the odd token that they promise too little is worth less."""


@dataclass(frozen=True, slots=True)
class Choice:
    """budget: nodes to verify, of `most` at most; emitted: tokens, and us: µs, that are expected of the step."""

    budget: int
    most: int
    emitted: float
    us: float


class VerifyCost:
    """µs of a verify by its rows (nodes and the root): calibrated at a few sizes, lines in between, then refined.

    Whatever else a machine does only adds to what a size took, so the measured times are lowered to the largest convex
    curve below them: a row more costs no less than the row before it. A running factor holds for all sizes (load, a
    longer context); each calibrated size has one of its own besides, which moves slower and within bounds.
    """

    def __init__(self, rows: Sequence[int], us: Sequence[float], *, convex: bool = True) -> None:
        """rows: ascending from 1; us: measured at each, > 0. Raises ValueError when there is nothing to go by.

        convex: False where rows are paid for in tiles, as on a GPU: no size is then believed to take less than it
        did, unless a larger one took less.
        """
        if not rows or len(rows) != len(us) or rows[0] != 1 or list(rows) != sorted(set(rows)) or min(us) <= 0:
            raise ValueError(f"costs need ascending rows from 1 and a time > 0 for each, got {rows} and {us}")
        self.rows = list(rows)
        self.calibrated = list(us)
        self._base = _convex(self.rows, us) if convex else _rising(us)
        self._pace = 0.0
        self._shape = [0.0] * len(self.rows)
        self.curve = self._curve()

    def observe(self, rows: int, us: float) -> None:
        """A verify of `rows` rows took `us` µs. Sizes beyond the calibrated ones teach nothing."""
        if not 1 <= rows <= self.rows[-1] or us <= 0:
            return
        off = max(-JUMP, min(JUMP, log(us / self.curve[rows - 1])))
        self._pace += RATE * off
        for knot, weight in self._weights(rows):
            bent = self._shape[knot] + SHAPE_RATE * weight * off
            self._shape[knot] = max(-SHAPE_LIMIT, min(SHAPE_LIMIT, bent))
        self.curve = self._curve()

    def sizes(self) -> list[float]:
        """µs in force at the calibrated sizes."""
        return [self.curve[rows - 1] for rows in self.rows]

    def _weights(self, rows: int) -> list[tuple[int, float]]:
        """The calibrated sizes on both sides and how much each counts for `rows`."""
        right = bisect_right(self.rows, rows)
        if right == len(self.rows):
            return [(right - 1, 1.0)]
        low, high = self.rows[right - 1], self.rows[right]
        share = (rows - low) / (high - low)
        return [(right - 1, 1 - share), (right, share)]

    def _curve(self) -> list[float]:
        """µs of 1 … most rows."""
        at = [us * exp(self._pace + bend) for us, bend in zip(self._base, self._shape, strict=True)]
        curve = [at[0]]
        for place in range(1, len(at)):
            low, high = self.rows[place - 1], self.rows[place]
            step = (at[place] - at[place - 1]) / (high - low)
            curve += [at[place - 1] + step * (row - low) for row in range(low + 1, high + 1)]
        for row in range(len(curve) - 2, -1, -1):  # what more rows took bounds what fewer would have taken
            curve[row] = min(curve[row], curve[row + 1])
        return curve


def _rising(us: Sequence[float]) -> list[float]:
    """The largest nowhere falling values below these."""
    least = list(us)
    for place in range(len(least) - 2, -1, -1):
        least[place] = min(least[place], least[place + 1])
    return least


def _convex(rows: Sequence[int], us: Sequence[float]) -> list[float]:
    """The largest convex, nowhere falling curve below the points, at the same rows."""
    least = _rising(us)
    hull: list[int] = []
    for place in range(len(rows)):
        while len(hull) > 1:
            first, last = hull[-2], hull[-1]
            rise = (least[place] - least[first]) * (rows[last] - rows[first])
            if rise > (least[last] - least[first]) * (rows[place] - rows[first]):
                break
            hull.pop()
        hull.append(place)
    for first, last in pairwise(hull):
        step = (least[last] - least[first]) / (rows[last] - rows[first])
        for place in range(first + 1, last):
            least[place] = least[first] + step * (rows[place] - rows[first])
    return least


class Trust:
    """How far a depth's marginals can be believed: tokens accepted there over tokens promised there, lately."""

    def __init__(self) -> None:
        self._promised: list[float] = []
        self._accepted: list[float] = []

    def factor(self, depth: int) -> float:
        """What to multiply a path's probability with when it ends at `depth` ≥ 1; 1 without evidence."""
        if depth > len(self._promised):
            return 1.0
        ratio = (self._accepted[depth - 1] + PRIOR) / (self._promised[depth - 1] + PRIOR)
        return max(TRUST[0], min(TRUST[1], ratio))

    def observe(self, depths: Sequence[int], scores: Sequence[float], accepted: int) -> None:
        """A tree was verified. depths, scores: [n + 1] as in a DraftTree; accepted: tokens of its path."""
        deepest = max(depths)
        new = [0.0] * max(0, deepest - len(self._promised))
        self._promised += new
        self._accepted += new
        for depth in range(deepest):
            self._promised[depth] *= MEMORY
            self._accepted[depth] = self._accepted[depth] * MEMORY + (depth < accepted)
        for depth, score in zip(depths[1:], scores[1:], strict=True):
            self._promised[depth - 1] += exp(score)

    def factors(self) -> list[float]:
        """By depth from 1, as far as there is evidence."""
        return [self.factor(depth) for depth in range(1, len(self._promised) + 1)]


class AutoBudget:
    """The policy and what it has learned; one for a pair, shared by its requests, used by one thread."""

    def __init__(self, cost: VerifyCost, fixed_us: float) -> None:
        """fixed_us: µs of a step besides the verify: draft, build, mask, commit."""
        self.cost = cost
        self.most = cost.rows[-1] - 1
        self.fixed_us = fixed_us
        self.trust = Trust()

    def choose(self, tree: DraftTree, room: int) -> Choice:
        """The number of first nodes of `tree` with the most expected tokens a µs; the fewest among equals.

        tree: of at most `most` nodes, best first, so that its first nodes are the tree of any smaller budget.
        room: tokens that may still be emitted; more are worth nothing.
        Expected tokens of B nodes: 1 (the bonus) + Σ over nodes of the probability of its path × trust in its depth.
        """
        factors = [1.0, *(self.trust.factor(depth) for depth in range(1, max(tree.depths) + 1))]
        curve, expected = self.cost.curve, 1.0
        best = Choice(0, self.most, min(expected, room), self.fixed_us + curve[0])
        for nodes in range(1, min(len(tree), self.most) + 1):
            expected += min(1.0, exp(tree.scores[nodes]) * factors[tree.depths[nodes]])
            emitted, us = min(expected, room), self.fixed_us + curve[nodes]
            if emitted * best.us > best.emitted * us:
                best = Choice(nodes, self.most, emitted, us)
        return best

    def observe(self, depths: Sequence[int], scores: Sequence[float], accepted: int, times: dict[str, int]) -> None:
        """A step was committed: see Trust.observe; times: its stages in µs."""
        self.trust.observe(depths, scores, accepted)
        verify = times.get("verify", 0)
        self.cost.observe(len(depths), verify)
        fixed = sum(times.values()) - verify
        if fixed > 0:
            off = max(-JUMP, min(JUMP, log(fixed / self.fixed_us)))
            self.fixed_us *= exp(RATE * off)

    def as_fact(self) -> dict[str, Any]:
        """Value of the fact `budget.auto`."""
        return {
            "most": self.most,
            "nodes": [rows - 1 for rows in self.cost.rows],
            "calibrated_us": [round(us) for us in self.cost.calibrated],
            "verify_us": [round(us) for us in self.cost.sizes()],
            "fixed_us": round(self.fixed_us),
            "trust": [round(factor, 3) for factor in self.trust.factors()],
        }
