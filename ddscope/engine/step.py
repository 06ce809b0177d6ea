"""The values of one step: what was drafted, verified and chosen, as plain Python lists, ready for a trace record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from ddscope.engine.budget import AUTO, Budget, Choice
from ddscope.engine.errors import EngineError

Algorithm = Literal["autoregressive", "dflash", "ddtree"]
ALGORITHMS: tuple[Algorithm, ...] = ("autoregressive", "dflash", "ddtree")

Numbers = list[float | None]
"""Floats as a trace holds them: None where one was NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Params:
    """How a request is decoded; may be replaced between steps.

    budget:      nodes of a ddtree step without the root; 0 decodes plainly; auto: what pays, step by step.
                 dflash always verifies its whole chain.
    topk:        candidates a depth; None: as many as the budget can use (ddtree), 8 (dflash).
    temperature: 0 is greedy. The drafter always proposes at temperature 1.
    seed:        equal seeds give equal draws at equal positions, whatever the algorithm.
    draft_rows:  rows of the drafter's block that are computed, the anchor included; None: all of them.
    draft_vocab: only ids below it are drafted (byte-pair ids are roughly in order of frequency). A cheaper head, and
                 marginals without log Z; the text stays the same. None: the whole vocabulary.
    cut:         nodes of a ddtree whose path is less likely than this are not verified; 0: the whole budget.
    """

    algorithm: Algorithm = "ddtree"
    budget: Budget = 15
    topk: int | None = None
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = 128
    draft_rows: int | None = None
    draft_vocab: int | None = None
    cut: float = 0.0

    def __post_init__(self) -> None:
        """Raises EngineError, in one sentence, for a value outside its range."""
        if self.algorithm not in ALGORITHMS:
            raise EngineError(f"No algorithm {self.algorithm!r}; there are {', '.join(ALGORITHMS)}.")
        for name, low in (("budget", 0), ("topk", 1), ("max_new_tokens", 1), ("draft_rows", 2), ("draft_vocab", 1)):
            value = getattr(self, name)
            if name == "budget" and isinstance(value, str):
                if value != AUTO:
                    raise EngineError(f"budget takes a whole number or {AUTO}, not {value!r}.")
            elif value is not None and value < low:
                raise EngineError(f"{name} must be at least {low}, not {value}.")
        if not 0 <= self.temperature < float("inf"):
            raise EngineError(f"temperature must be 0 or more, not {self.temperature}.")
        if not 0 <= self.cut < 1:
            raise EngineError(f"cut is a probability from 0 to below 1, not {self.cut}.")


@dataclass(frozen=True, slots=True)
class DraftStep:
    """The drafter's marginals: ids and logprobs [D][k] descending, logz and entropy [D] in nats.

    logz and entropy are None where only a part of the vocabulary was drafted; logprobs are then relative to that part.
    """

    ids: list[list[int]]
    logprobs: list[Numbers]
    logz: Numbers | None
    entropy: Numbers | None


@dataclass(slots=True)
class TargetStep:
    """The target's choice at every node (argmax, or the draw): [n + 1], root first. gap: top-1 minus top-2 logit.

    topk_ids, topk_logprobs: [len(path)][≤ 8], the target's likeliest tokens at each node of the path, descending.
    """

    ids: list[int]
    logprobs: Numbers
    gap: Numbers
    topk_ids: list[list[int]] = field(default_factory=list)
    topk_logprobs: list[Numbers] = field(default_factory=list)


@dataclass(slots=True)
class StepResult:
    """One step, verified and not yet committed. Nodes are numbered as in a trace: 0 is the root, i + 1 has tokens[i].

    base:      position of the root; root: its token id.
    budget:    nodes without the root that were allowed; choice: why so many, where the budget is auto.
    parents, depths, logprobs, scores: see ddscope_kernels.DraftTree.
    positions: [n + 1] as the target was given them; mask: [n + 1] rows of bits as the target was given them.
    path:      accepted nodes, root first; bonus: the target's token after them.
    emitted:   tokens that a commit appends: the path's tokens and the bonus, cut at the end of the text.
    reason:    why the text ends with this step (stop, length), else None; truncated: emitted was cut.
    times:     µs by stage: draft, build, mask, verify; commit is added by the commit.
    nonfinite: count of NaN and ±inf logits by place; both places are always there.
    tensors:   fields of `tensor` records for what entered the drafter and the target.
    logits:    [n + 1, V] of the verify, what a replay check compares with; None where they were not kept.
    hidden:    captured layers, [n + 1, hidden] each.
    graph:     whether the step was one CUDA graph; its times are then the device's.
    """

    algorithm: Algorithm
    base: int
    root: int
    budget: int
    draft: DraftStep | None
    tokens: list[int]
    parents: list[int]
    depths: list[int]
    logprobs: Numbers
    scores: list[float]
    positions: list[int]
    mask: list[int]
    target: TargetStep
    path: list[int]
    bonus: int
    emitted: list[int]
    reason: str | None
    truncated: bool
    times: dict[str, int]
    nonfinite: dict[str, int]
    tensors: list[dict[str, Any]]
    logits: Tensor | None
    hidden: list[Tensor]
    choice: Choice | None = None
    graph: bool = False

    @property
    def accepted(self) -> int:
        """Drafted tokens on the path."""
        return len(self.path) - 1


def tensor_fields(name: str, tensor: Tensor, expect: Sequence[int | None], owner: str) -> dict[str, Any]:
    """Fields of a `tensor` record. expect: None where any size fits."""
    shape = list(tensor.shape)
    ok = len(shape) == len(expect) and all(want in (None, size) for want, size in zip(expect, shape, strict=True))
    return {
        "name": name,
        "shape": shape,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "expect": list(expect),
        "ok": ok,
        "owner": owner,
    }
