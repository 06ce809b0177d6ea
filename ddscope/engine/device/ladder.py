"""A budget of auto where every size is a graph of its own: a few sizes, chosen one step ahead from what is known.

The tree of the next step does not exist yet when its graph is launched, so the marginals of the last step that was read
stand for it; costs are of whole steps, measured at the start and refined while running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf

from ddscope.engine.budget import TRUST, AutoBudget, Choice, VerifyCost
from ddscope.engine.convert import Progress
from ddscope.engine.device.decoder import Decoder
from ddscope.engine.device.plan import Plan
from ddscope.engine.step import Params
from ddscope_kernels import DraftTree

SIZES = (7, 15, 31, 63, 127, 255)
"""Budgets that have a graph: a step between two of them costs little less than one of the larger."""
MEASURING = "Measuring what a step costs"
_REPEATS = 6


class LadderBudget(AutoBudget):
    """The policy of `AutoBudget` over a few sizes and the costs of whole steps."""

    def __init__(self, sizes: Sequence[int], us: Sequence[float]) -> None:
        """sizes: ascending, ≥ 1; us: of a step of plain decoding, then of one of each size."""
        super().__init__(VerifyCost([1, *(size + 1 for size in sizes)], us, convex=False), 0.0)
        self.step_sizes = tuple(sizes)

    def start(self) -> Choice:
        """Before anything is known of a text."""
        size = self.step_sizes[len(self.step_sizes) // 2]
        return Choice(size, self.most, 1.0, self.cost.curve[size])

    def choose(self, tree: DraftTree, room: int) -> Choice:
        """As of AutoBudget, for one of the sizes; a tree that ends before a size says what all beyond it yield."""
        return self._best(tree, room, self.step_sizes)[0]

    def choose_grown(self, grow: Callable[[int], DraftTree], room: int) -> Choice:
        """What `choose` says of grow(largest size), growing that much only where a size above the middle may win.

        grow: the best-first tree of so many nodes. No node of a larger tree is likelier than the last one of a smaller,
        which bounds what is left out.
        """
        few = self.step_sizes[: len(self.step_sizes) // 2 + 1]
        tree = grow(few[-1])
        best, expected = self._best(tree, room, few)
        likeliest = 0.0 if len(tree) < few[-1] else min(1.0, exp(tree.scores[-1]) * TRUST[1])
        for size in self.step_sizes[len(few) :]:
            most = min(expected + (size - few[-1]) * likeliest, room)
            if most * best.us > best.emitted * self.cost.curve[size]:
                return self.choose(grow(self.step_sizes[-1]), room)
        return best

    def _best(self, tree: DraftTree, room: int, sizes: Sequence[int]) -> tuple[Choice, float]:
        """The best of these sizes, and the tokens that are expected of the largest."""
        factors = [1.0, *(self.trust.factor(depth) for depth in range(1, max(tree.depths, default=0) + 1))]
        best = Choice(sizes[0], self.most, 0.0, inf)
        expected, nodes = 1.0, 0
        for size in sizes:
            while nodes < min(size, len(tree)):
                nodes += 1
                expected += min(1.0, exp(tree.scores[nodes]) * factors[tree.depths[nodes]])
            emitted, us = min(expected, room), self.cost.curve[size]
            if emitted * best.us > best.emitted * us or best.us == inf:
                best = Choice(size, self.most, emitted, us)
        return best, expected

    def observe_step(self, depths: Sequence[int], scores: Sequence[float], accepted: int, us: int) -> None:
        """A step was read: see Trust.observe; us: what it took, 0 where nothing measured."""
        self.trust.observe(depths, scores, accepted)
        self.cost.observe(len(depths), us)


def measure_ladder(decoder: Decoder, params: Params, progress: Progress | None = None) -> LadderBudget:
    """Make the graph of every size and time it. No step may be waiting."""
    sizes = [size for size in SIZES if size <= decoder.most]
    us = []
    for number, size in enumerate([0, *sizes]):
        if progress is not None:
            progress(MEASURING, number, len(sizes) + 1)
        us.append(float(min(standing_us(decoder, plan_of_size(decoder, params)(size), _REPEATS), default=1)))
    if progress is not None:
        progress(MEASURING, len(sizes) + 1, len(sizes) + 1)
    return LadderBudget(sizes, us)


def plan_of_size(decoder: Decoder, params: Params) -> Callable[[int], Plan]:
    """The plan of a budget under these parameters."""
    return lambda size: Plan.of(params, decoder.pair.drafter.config, budget=size)


def standing_us(decoder: Decoder, plan: Plan, steps: int) -> list[int]:
    """µs of so many steps while requests stand still, launched one ahead as in decoding; none where nothing measures.

    No step may be waiting.
    """
    decoder.prepare(plan)
    decoder.forget_time()
    with decoder.standing():
        decoder.launch(plan)
        times = []
        for _ in range(steps):
            decoder.launch(plan)
            times.append(decoder.collect().us)
        decoder.collect()
    decoder.forget_time()
    return [us for us in times if us]
