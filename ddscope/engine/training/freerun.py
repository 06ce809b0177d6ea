"""Greedy decoding of many prompts at once with chain or tree, for τ on a GPU: the engine's algorithms, batched models.

Every text is its own: trees, paths and limits are those of `ddscope.engine.generate`, and a test compares the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.drafting import CHAIN_TOPK
from ddscope.engine.training.forward import BatchCache, BatchTarget, Passed
from ddscope.engine.training.model import Context, DrafterModule, over_mask
from ddscope_kernels import DraftTree, build_tree, chain_tree, compact_kv, topk_logprobs, visibility, walk

_EXTENT = 64


@dataclass(slots=True)
class Text:
    """One prompt being answered. accepted: drafted tokens that each step accepted; base: committed tokens."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    base: int = 0
    done: bool = False


class FreeRun:
    """Decodes R prompts; `budget` None is DFlash's chain, else DDTree's nodes without the root."""

    def __init__(
        self,
        target: BatchTarget,
        drafter: DrafterModule,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        budget: int | None,
    ) -> None:
        self._target, self._drafter, self._limit, self._budget = target, drafter, max_new_tokens, budget
        self.texts = [Text(list(prompt)) for prompt in prompts]
        block = drafter.config.block_size
        nodes = block - 1 if budget is None else budget
        rows = max(map(len, prompts)) + max_new_tokens + max(nodes + 1, block) + 1
        self._rows = -(-rows // _EXTENT) * _EXTENT
        stack = drafter.config.stack
        self._cache = BatchCache(target.config.stack, len(prompts), self._rows, target.embedding)
        shape = (len(prompts), self._rows, stack.kv_heads, stack.head_dim)
        self._context = [
            Context(target.embedding.new_zeros(shape), target.embedding.new_zeros(shape)) for _ in range(stack.layers)
        ]

    @torch.inference_mode()
    def run(self, told: Callable[[int], None] | None = None) -> list[Text]:
        """Decode all to their ends; told: called after each step with how many have ended."""
        self._prefill()
        while live := [number for number, text in enumerate(self.texts) if not text.done]:
            trees = self._trees(live)
            self._verify(live, trees)
            if told is not None:
                told(sum(text.done for text in self.texts))
        return self.texts

    def _prefill(self) -> None:
        lengths = [len(text.prompt) for text in self.texts]
        width = max(lengths)
        ids = self._tensor([text.prompt + [0] * (width - len(text.prompt)) for text in self.texts])
        at = torch.arange(width, device=ids.device).expand_as(ids)
        # Behind a prompt's end stands what its own tokens will replace; the mask never shows it.
        sees = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril().expand(len(ids), -1, -1)
        out = self._target.step(ids, at, at, self._cache, self._bias(sees), self._capture)
        self._keep(out.captured, at)
        last = out.last[torch.arange(len(ids), device=ids.device), self._tensor(lengths) - 1]
        for text, token in zip(self.texts, self._target.logits(last).argmax(-1).tolist(), strict=True):
            text.base = len(text.prompt)
            self._emit(text, [token])

    def _trees(self, live: list[int]) -> list[DraftTree]:
        """The tree of every text; empty ones for those that have ended."""
        block, mask = self._drafter.config.block_size, self._drafter.config.mask_token_id
        base = self._bases()
        rows = self._tensor([[text.output[-1]] + [mask] * (block - 1) for text in self.texts])
        positions = base[:, None] + torch.arange(block, device=base.device)
        extent = self._extent(block)
        sees = torch.arange(extent, device=base.device) < base[:, None, None]
        own = torch.ones(len(base), block, block, dtype=torch.bool, device=base.device)
        bias = self._bias(torch.cat([sees.expand(-1, block, -1), own], dim=-1))[:, None]
        context = [Context(kv.k[:, :extent], kv.v[:, :extent]) for kv in self._context]
        hidden = self._drafter(F.embedding(rows, self._target.embedding), positions, context, over_mask(bias))
        drafted = hidden[torch.tensor(live, device=base.device), 1:]
        candidates = CHAIN_TOPK if self._budget is None else self._budget
        trees = [DraftTree() for _ in self.texts]
        marginals = topk_logprobs(self._target.logits(drafted).flatten(0, 1), candidates)
        logprobs = marginals.logprobs.view(len(live), block - 1, -1).tolist()
        ids = marginals.ids.view(len(live), block - 1, -1).tolist()
        for number, probs, tokens in zip(live, logprobs, ids, strict=True):
            if self._budget is None:
                trees[number] = chain_tree(probs, tokens, block - 1)
            else:
                trees[number] = build_tree(probs, tokens, self._budget)
        return trees

    def _verify(self, live: list[int], trees: list[DraftTree]) -> None:
        base = self._bases()
        size = 1 + max(len(tree) for tree in trees)
        tokens = self._tensor([[t.output[-1], *tree.tokens, *self._pad(tree, size)] for t, tree in self._with(trees)])
        depths = self._tensor([[*tree.depths, *self._pad(tree, size)] for tree in trees])
        slots = base[:, None] + torch.arange(size, device=base.device)
        out = self._target.step(
            tokens, base[:, None] + depths, slots, self._cache, self._tree_bias(base, trees, size), self._capture
        )
        choices = self._choices(out)
        paths = [[0] for _ in self.texts]
        for number in live:
            text, tree = self.texts[number], trees[number]
            path, bonus = walk(tree.tokens, tree.parents, choices[number][: len(tree) + 1])
            compact_kv(self._cache.data[:, number].transpose(1, 2), text.base, path)
            paths[number] = path
            text.accepted.append(len(path) - 1)
            self._emit(text, [*(tree.tokens[node - 1] for node in path[1:]), bonus])
        longest = max(map(len, paths))
        kept = self._tensor([path + [0] * (longest - len(path)) for path in paths])
        at = base[:, None] + torch.arange(longest, device=base.device)
        self._keep(out.captured.gather(1, kept[:, :, None].expand(-1, -1, out.captured.shape[-1])), at)
        for number in live:
            self.texts[number].base += len(paths[number])

    def _choices(self, out: Passed) -> list[list[int]]:
        """The target's argmax after every node, for a few texts at a time: logits of all would be gigabytes."""
        pieces = [self._target.logits(piece).argmax(-1) for piece in torch.split(out.last, 16)]
        chosen: list[list[int]] = torch.cat(pieces).tolist()
        return chosen

    def _keep(self, features: Tensor, at: Tensor) -> None:
        """Commit features [R, n, layers × hidden] to the drafter's context at places [R, n]; padding stays hidden."""
        sequence = self._cache.sequence
        for kv, new in zip(self._context, self._drafter.context(features, at), strict=True):
            kv.k[sequence, at] = new.k.to(kv.k.dtype)
            kv.v[sequence, at] = new.v.to(kv.v.dtype)

    def _emit(self, text: Text, tokens: list[int]) -> None:
        """Append tokens up to an end of text, no more than the limits leave."""
        config = self._target.config
        room = min(self._limit, config.stack.max_positions - len(text.prompt)) - len(text.output)
        text.done = len(tokens) >= room
        for token in tokens[:room]:
            text.output.append(token)
            if token in config.eos_ids:
                text.done = True
                return

    def _tree_bias(self, base: Tensor, trees: list[DraftTree], size: int) -> Tensor:
        """[R, size, columns]: all that is committed, and of the tree what a node's row of bits says."""
        rows = [[*tree.rows, *(1 << node for node in range(len(tree) + 1, size))] for tree in trees]
        tree_sees = torch.stack([visibility(row) for row in rows]).to(base.device)
        columns = torch.arange(self._extent(size), device=base.device)
        node = (columns - base[:, None])[:, None].expand(-1, size, -1)
        inside = (node >= 0) & (node < size)
        sees = tree_sees.gather(2, node.clamp(0, size - 1)) & inside
        return self._bias(sees | (node < 0))

    @property
    def _capture(self) -> tuple[int, ...]:
        return self._drafter.config.target_layer_ids

    def _with(self, trees: list[DraftTree]) -> list[tuple[Text, DraftTree]]:
        return list(zip(self.texts, trees, strict=True))

    def _pad(self, tree: DraftTree, size: int) -> list[int]:
        return [0] * (size - 1 - len(tree))

    def _extent(self, more: int) -> int:
        """Columns that hold every text and `more` rows behind it."""
        needed = max(text.base for text in self.texts) + more
        return min(-(-needed // _EXTENT) * _EXTENT, self._rows)

    def _bases(self) -> Tensor:
        return self._tensor([text.base for text in self.texts])

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, device=self._target.device)

    def _bias(self, sees: Tensor) -> Tensor:
        zeros = torch.zeros(sees.shape, dtype=self._target.dtype, device=sees.device)
        return zeros.masked_fill_(~sees, -torch.inf)
