"""Greedy decoding of many prompts at once with chain or tree, for τ on a GPU: the engine's algorithms, batched models.

Every text is its own: trees, paths and limits are those of `ddscope.engine.generate`, and a test compares the texts.
All state lies on the device; the host asks once a step how many texts have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.training.forward import BatchCache, BatchTarget
from ddscope.engine.training.model import Context, DrafterModule, over_blocks
from ddscope_kernels.batched import TreeBatch, WalkBatch, build_tree, choose, compact_kv, topk_logprobs, walk
from ddscope_kernels.batched.marginals import MAX_K
from ddscope_kernels.batched.walk import RUNNING

_EXTENT = 64
_ROWS = 8192
"""Rows whose logits exist at once: those of all nodes of all texts would be gigabytes."""


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt's answer. accepted: drafted tokens that each step accepted."""

    prompt: list[int]
    output: list[int]
    accepted: list[int]


class FreeRun:
    """Decodes R prompts; `budget` None is DFlash's chain, else DDTree's nodes without the root.

    A depth gives at most 64 candidates; the engine's own generator has no such limit.
    """

    def __init__(
        self,
        target: BatchTarget,
        drafter: DrafterModule,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        budget: int | None,
    ) -> None:
        self._target, self._drafter = target, drafter
        self._prompts = [list(prompt) for prompt in prompts]
        block, stack, count = drafter.config.block_size, drafter.config.stack, len(prompts)
        self._candidates, self._budget = (1, block - 1) if budget is None else (min(budget, MAX_K), budget)
        longest = max(map(len, prompts))
        rows = longest + max_new_tokens + max(self._budget + 1, block) + 1
        self._rows = -(-rows // _EXTENT) * _EXTENT
        self._cache = BatchCache(target.config.stack, count, self._rows, target.embedding)
        shape = (count, self._rows, stack.kv_heads, stack.head_dim)
        self._context = [
            Context(target.embedding.new_zeros(shape), target.embedding.new_zeros(shape)) for _ in range(stack.layers)
        ]
        device = target.device
        most = target.config.stack.max_positions
        self._base = torch.tensor([len(prompt) for prompt in prompts], device=device)  # committed tokens
        self._limit = torch.tensor([min(max_new_tokens, most - len(prompt)) for prompt in prompts], device=device)
        # What is emitted behind a text's limit lands in the columns behind.
        self._output = torch.zeros(count, max_new_tokens + block + 1, dtype=torch.int64, device=device)
        self._emitted = torch.zeros(count, dtype=torch.int64, device=device)
        self._last = torch.zeros(count, dtype=torch.int64, device=device)  # token that is not committed yet
        self._live = torch.ones(count, dtype=torch.bool, device=device)
        self._eos = torch.tensor(sorted(target.config.eos_ids), dtype=torch.int64, device=device)
        self._accepted: list[Tensor] = []  # a step each: [R], -1 where a text had ended

    @torch.inference_mode()
    def run(self, told: Callable[[int], None] | None = None) -> list[Text]:
        """Decode all to their ends; told: called after each step with how many have ended."""
        self._prefill()
        while live := int(self._live.sum()):
            if told is not None:
                told(len(self._prompts) - live)
            self._verify(self._trees())
        steps = torch.stack(self._accepted, dim=1).tolist() if self._accepted else [[] for _ in self._prompts]
        outputs, lengths = self._output.tolist(), self._emitted.tolist()
        return [
            Text(prompt, output[:length], [count for count in accepted if count >= 0])
            for prompt, output, length, accepted in zip(self._prompts, outputs, lengths, steps, strict=True)
        ]

    def _prefill(self) -> None:
        width, device = max(map(len, self._prompts)), self._target.device
        ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in self._prompts], device=device)
        at = torch.arange(width, device=device).expand_as(ids)
        # Behind a prompt's end stands what its own tokens will replace; nobody sees it before.
        sees = torch.ones(width, width, dtype=torch.bool, device=device).tril().expand(len(ids), -1, -1)
        bias = torch.zeros(sees.shape, dtype=self._target.dtype, device=device).masked_fill_(~sees, -torch.inf)
        out = self._target.step(ids, at, at, self._cache, bias, self._capture)
        self._keep(out.captured, at)
        last = out.last[torch.arange(len(ids), device=device), self._base - 1]
        self._last = self._target.logits(last).argmax(-1)
        self._output[:, 0] = self._last
        self._emitted += 1
        self._live &= (self._limit > 1) & ~(self._last[:, None] == self._eos).any(-1)

    def _trees(self) -> TreeBatch:
        """The tree of every text, those that have ended included."""
        block, mask = self._drafter.config.block_size, self._drafter.config.mask_token_id
        rows = torch.full((len(self._last), block), mask, device=self._last.device)
        rows[:, 0] = self._last
        positions = self._base[:, None] + torch.arange(block, device=rows.device)
        embedded = F.embedding(rows, self._target.embedding)
        hidden = self._drafter(embedded, positions, self._context, over_blocks(self._base[:, None]))
        marginals = topk_logprobs(self._target.logits(hidden[:, 1:]), self._candidates)
        return build_tree(marginals.logprobs, marginals.ids, self._budget, base=self._base)

    def _verify(self, trees: TreeBatch) -> None:
        tokens = torch.cat([self._last[:, None], trees.tokens], dim=1)
        out = self._target.verify(
            tokens, trees.positions, self._base, trees.bits, trees.counts, self._cache, self._capture
        )
        pieces = torch.split(out.last.flatten(0, 1), _ROWS)
        choices = torch.cat([choose(self._target.logits(piece)[None])[0] for piece in pieces]).view_as(tokens)
        room = torch.where(self._live, self._limit - self._emitted, 0).to(torch.int32)
        depth = self._drafter.config.block_size - 1
        walked = walk(trees.tokens, trees.parents, trees.counts, choices, depth, eos=self._eos, room=room)
        compact_kv(self._cache.data.transpose(2, 3), walked.path, walked.lengths, base=self._base)
        kept = walked.path.long()[:, :, None].expand(-1, -1, out.captured.shape[-1])
        places = torch.arange(depth + 1, device=tokens.device)
        self._keep(out.captured.gather(1, kept), self._base[:, None] + places)
        self._emit(walked, places)

    def _emit(self, walked: WalkBatch, places: Tensor) -> None:
        """What a step commits and emits of the texts that had not ended."""
        live = self._live
        self._accepted.append(torch.where(live, walked.lengths - 1, -1))
        counts = torch.where(live, walked.counts, 0)
        wanted = places < counts[:, None]
        at = torch.where(wanted, self._emitted[:, None] + places, self._output.shape[1] - 1)
        self._output.scatter_(1, at, walked.emitted)
        self._emitted += counts
        # A text that has ended goes on at the same place, where there is room for its trees.
        self._live = live & (walked.reasons == RUNNING)
        self._base = torch.where(self._live, self._base + walked.lengths, self._base)
        self._last = torch.where(self._live, walked.bonus, self._last)

    def _keep(self, features: Tensor, at: Tensor) -> None:
        """Commit features [R, n, layers × hidden] to the drafter's context at places [R, n]; padding stays hidden."""
        sequence = self._cache.sequence
        for kv, new in zip(self._context, self._drafter.context(features, at), strict=True):
            kv.k[sequence, at] = new.k.to(kv.k.dtype)
            kv.v[sequence, at] = new.v.to(kv.v.dtype)

    @property
    def _capture(self) -> tuple[int, ...]:
        return self._drafter.config.target_layer_ids
