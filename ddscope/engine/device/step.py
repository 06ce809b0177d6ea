"""One step of R requests: draft, top-k, build, verify, choose, walk, compact, advance.

All shapes are fixed by the plan and nothing waits for the host, so that a step can be one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.device.models import DeviceDrafter, DeviceTarget, Rows
from ddscope.engine.device.plan import TARGET_TOPK, Plan
from ddscope_kernels.batched import (
    JudgementBatch,
    MarginalsBatch,
    TreeBatch,
    WalkBatch,
    advance,
    build_tree,
    choose,
    compact_kv,
    empty_trees,
    judge,
    topk_logprobs,
    walk,
)


@dataclass(frozen=True, slots=True)
class State:
    """Where R requests stand, on the device; steps change it in place.

    block:        [R, block] int64 ids that enter the drafter: the root, then masks.
    base:         [R] int32 position of the root, and its row in the caches.
    room:         [R] int32 tokens that may still be emitted; 0: the request has ended.
    temperatures: [R] float32; seeds: [R] int64; eos: [E] int64.
    """

    block: Tensor
    base: Tensor
    room: Tensor
    temperatures: Tensor
    seeds: Tensor
    eos: Tensor

    @property
    def root(self) -> Tensor:
        """[R] int64 last token of each text; a view."""
        return self.block[:, 0]


@dataclass(frozen=True, slots=True)
class Verified:
    """The target's side of a step.

    logits:  [R, N, V]; choices: [R, N] its token after every node.
    judged:  where traced.
    logprobs: [R, N] of the choices, where they are draws and traced.
    """

    logits: Tensor
    choices: Tensor
    judged: JudgementBatch | None
    logprobs: Tensor | None


class Step:
    """The work of one plan, and its static buffers. `run` may be captured in a CUDA graph."""

    def __init__(self, plan: Plan, target: DeviceTarget, drafter: DeviceDrafter, state: State) -> None:
        self.plan, self.target, self.drafter, self.state = plan, target, drafter, state
        requests, block = state.block.shape
        device = state.base.device

        def full(*shape: int, value: int, dtype: torch.dtype) -> Tensor:
            return torch.full((requests, *shape), value, dtype=dtype, device=device)

        depths = plan.depths
        self._offsets = torch.arange(block, device=device)
        self._block_bits = _all_bits(depths + 1, device).expand(requests, -1, -1).contiguous()
        self._block_counts = full(value=depths, dtype=torch.int32)
        self._least = None
        if plan.least > -torch.inf:
            self._least = torch.full((requests,), plan.least, dtype=torch.float64, device=device)
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda" and plan.traced:
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._trees = empty_trees(requests, plan.budget, device)
        if plan.chain or not plan.budget:
            self._fixed(self._trees)
        self._head = target.head if plan.draft_vocab is None else target.head[: plan.draft_vocab].contiguous()

    def _fixed(self, trees: TreeBatch) -> None:
        """What of a chain, or of a root alone, is the same in every step."""
        budget, device = self.plan.budget, trees.parents.device
        steps = torch.arange(budget + 1, device=device)
        trees.parents.copy_(steps[:-1])
        trees.ranks.zero_()
        trees.depths.copy_(steps)
        trees.counts.fill_(budget)
        trees.dropped.zero_()
        trees.scores.zero_()
        trees.bits.copy_(_causal_bits(budget + 1, device))

    def run(self, tell: Callable[[dict[str, Tensor]], None]) -> None:
        """One step. tell: takes what a host wants to know of it, by name, before the requests move on."""
        plan, state = self.plan, self.state
        marginals = self._draft() if plan.depths else None
        trees = self._build(marginals)
        captured, verified = self._verify(trees)
        walks = walk(
            trees.tokens,
            trees.parents,
            trees.counts,
            verified.choices,
            plan.depths,
            eos=state.eos,
            room=state.room,
        )
        with self._beside():
            tell(self._told(marginals, trees, verified, walks))
        if plan.budget and not plan.chain:
            compact_kv(self.target.stack.cache, walks.path, walks.lengths, base=state.base)
        self.drafter.read(captured, walks.path, state.base)
        self._join()
        advance(walks, state.base, state.root, state.room)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On CUDA, a stream of its own: what is told is computed while the step goes on. `_join` waits for it."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)

    def _draft(self) -> MarginalsBatch:
        plan, state = self.plan, self.state
        ids = state.block[:, : plan.depths + 1]
        positions = state.base[:, None] + self._offsets[: plan.depths + 1]
        hidden = self.drafter.draft(ids, Rows(positions, state.base, self._block_bits, self._block_counts))
        return topk_logprobs(self.draft_logits(hidden), plan.topk)

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """[R, D, V] from the drafter's hidden states [R, D, hidden]."""
        return F.linear(hidden, self._head)

    def _build(self, marginals: MarginalsBatch | None) -> TreeBatch:
        trees, plan, state = self._trees, self.plan, self.state
        if marginals is not None and not plan.chain:
            return build_tree(
                marginals.logprobs, marginals.ids, plan.budget, base=state.base, min_scores=self._least, out=trees
            )
        if marginals is not None:
            trees.tokens.copy_(marginals.ids[:, :, 0])
            trees.logprobs.copy_(marginals.logprobs[:, :, 0])
        torch.add(state.base[:, None], trees.depths, out=trees.positions)
        return trees

    def _verify(self, trees: TreeBatch) -> tuple[list[Tensor], Verified]:
        plan, state = self.plan, self.state
        ids = torch.cat([state.root[:, None], trees.tokens], dim=1)
        rows = Rows(trees.positions, state.base, trees.bits, trees.counts)
        last, captured = self.target.forward(ids, rows, self.drafter.config.target_layer_ids)
        logits = F.linear(last, self.target.head)
        judged = judge(logits) if plan.traced else None
        choices = self.choose(logits, trees, judged)
        logprobs = None
        if plan.sampled and judged is not None:
            logprobs = logits.gather(2, choices[..., None])[..., 0].float() - judged.logz
        return captured, Verified(logits, choices, judged, logprobs)

    def choose(self, logits: Tensor, trees: TreeBatch, judged: JudgementBatch | None) -> Tensor:
        """[R, N] int64 the target's token after every node, from logits [R, N, V]; judged: where traced."""
        state = self.state
        if self.plan.sampled:
            return choose(logits, temperatures=state.temperatures, seeds=state.seeds, positions=trees.positions + 1)
        return choose(logits) if judged is None else judged.ids

    def _told(
        self, marginals: MarginalsBatch | None, trees: TreeBatch, verified: Verified, walks: WalkBatch
    ) -> dict[str, Tensor]:
        told = {"emitted": walks.emitted, "counts": walks.counts, "reasons": walks.reasons, "lengths": walks.lengths}
        judged, state = verified.judged, self.state
        if judged is None:
            return told
        told |= {"root": state.root, "base": state.base, "path": walks.path, "bonus": walks.bonus}
        told |= {
            "tree.tokens": trees.tokens,
            "tree.parents": trees.parents,
            "tree.logprobs": trees.logprobs,
            "tree.scores": trees.scores,
            "tree.depths": trees.depths,
            "tree.positions": trees.positions,
            "tree.bits": trees.bits,
            "tree.counts": trees.counts,
        }
        logits = verified.logits
        path = walks.path.long()[..., None].expand(-1, -1, logits.shape[2])
        top = topk_logprobs(logits.gather(1, path), TARGET_TOPK)
        told |= {
            "target.choices": verified.choices,
            "target.logprobs": judged.logprobs if verified.logprobs is None else verified.logprobs,
            "target.gaps": judged.gap,
            "target.nonfinite": judged.nonfinite,
            "path.ids": top.ids,
            "path.logprobs": top.logprobs,
        }
        if marginals is not None:
            told |= {
                "draft.ids": marginals.ids,
                "draft.logprobs": marginals.logprobs,
                "draft.logz": marginals.logz,
                "draft.entropy": marginals.entropy,
                "draft.nonfinite": marginals.nonfinite,
            }
        return told


def _all_bits(count: int, device: torch.device) -> Tensor:
    """[count, ⌈count / 32⌉] int32: every row sees all."""
    return _causal_bits(count, device)[-1:].expand(count, -1)


def _causal_bits(count: int, device: torch.device) -> Tensor:
    """[count, ⌈count / 32⌉] int32: row i sees the rows up to i."""
    word = torch.arange((count + 31) // 32, device=device) * 32
    seen = (torch.arange(count, device=device)[:, None] + 1 - word).clamp(0, 32)
    return ((1 << seen) - 1).to(torch.int32)
