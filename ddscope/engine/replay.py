"""The replay check: one path of a verified tree once more, as a plain causal pass from its token ids in a fresh cache.

It shares neither the tree mask, nor the positions, nor the cache with the verify, so a sound engine agrees up to
rounding and a damaged one does not: a wrong root row means that the cache was damaged before this step, wrong rows
below a sound root mean mask or positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor

from ddscope.engine.step import StepResult
from ddscope.engine.target import Target

TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 1.5}
"""Largest logit difference that is rounding. Measured on SmolLM2-135M: sound 9e-5 and 0.54 at most; a wrong position,
mask or cache 0.7 to 36, median 5."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """diff: largest absolute logit difference at this node; inf where one side alone is NaN or infinite."""

    node: int
    depth: int
    diff: float


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """Rows of the checked path, root first."""

    rows: list[ReplayRow]
    tolerance: float

    @property
    def root_diff(self) -> float:
        """Difference at the root."""
        return self.rows[0].diff

    @property
    def tree_diff(self) -> float:
        """Largest difference below the root; 0 for a tree of no nodes."""
        return max((row.diff for row in self.rows[1:]), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether everything is rounding."""
        return max(self.root_diff, self.tree_diff) <= self.tolerance

    def as_fact(self) -> dict[str, Any]:
        """Value of the fact `replay_check`, without rid and step. Infinite differences become None."""

        def number(value: float) -> float | None:
            return value if value < float("inf") else None

        return {
            "rows": [{"node": row.node, "depth": row.depth, "diff": number(row.diff)} for row in self.rows],
            "root_diff": number(self.root_diff),
            "tree_diff": number(self.tree_diff),
            "tolerance": self.tolerance,
            "ok": self.ok,
        }


def deepest_path(result: StepResult) -> list[int]:
    """Nodes from the root to the deepest leaf; among equals the one whose path has most siblings, then the likeliest.

    Siblings decide first because a mask that lets siblings see each other is wrong only where there are some.
    """
    children = [0] * (len(result.tokens) + 1)
    for parent in result.parents:
        children[parent] += 1
    siblings = [0]
    for parent in result.parents:
        siblings.append(siblings[parent] + children[parent] - 1)
    leaf = max(range(len(siblings)), key=lambda node: (result.depths[node], siblings[node], result.scores[node], -node))
    path = [leaf]
    while path[-1]:
        path.append(result.parents[path[-1] - 1])
    return path[::-1]


def replay_check(target: Target, prefix: Sequence[int], result: StepResult) -> ReplayCheck:
    """Compare the verify of `result` with a plain causal pass.

    prefix: token ids of the text up to and including the root, result.base + 1 of them.
    Compared are all logits of a row; where they were not kept, the log-probability of the target's choice.
    """
    path = deepest_path(result)
    ids = [*prefix, *(result.tokens[node - 1] for node in path[1:])]
    cache = target.new_cache(len(ids))
    plain = target.read(ids, cache, keep=len(path)).logits.float()
    if result.logits is None:
        told = [result.target.logprobs[node] for node in path]
        tree = torch.tensor([[nan if value is None else value] for value in told])
        chosen = torch.tensor([[result.target.ids[node]] for node in path], device=plain.device)
        plain = plain.log_softmax(-1).gather(-1, chosen).cpu()
    else:
        tree = result.logits[torch.tensor(path, device=result.logits.device)].float()
    diffs = _differences(plain, tree)
    rows = [ReplayRow(node, result.depths[node], diff) for node, diff in zip(path, diffs, strict=True)]
    return ReplayCheck(rows, TOLERANCE[target.dtype])


def _differences(a: Tensor, b: Tensor) -> list[float]:
    """[m] largest absolute difference a row; equal non-finite values are no difference."""
    same = (a == b) | (a.isnan() & b.isnan())
    diff = torch.where(same, 0.0, (a - b).abs())
    worst: list[float] = diff.nan_to_num(nan=torch.inf).amax(-1).tolist()
    return worst
