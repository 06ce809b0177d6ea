"""A random-weight pair of a given shape, and a step whose acceptance is drawn: what a step costs, not what it yields.

The drafter's marginals are the same in every step, and the target's token at a position is a draw from them, as if the
drafter were calibrated; both models, both heads and all kernels run as they do with real weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ddscope.engine.config import DrafterConfig, Rope, TargetConfig, TransformerConfig
from ddscope.engine.device.step import Step
from ddscope.engine.drafter import Drafter
from ddscope.engine.layers import Weights
from ddscope.engine.pair import Pair
from ddscope.engine.target import Target
from ddscope.engine.weights import layer_shapes
from ddscope_kernels.batched import JudgementBatch, TreeBatch, choose


def _stack(
    hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int, qk_norm: bool, vocab: int
) -> TransformerConfig:
    return TransformerConfig(
        hidden, layers, heads, kv_heads, head_dim, inner, 1e-5, Rope(500_000.0), qk_norm, False, False, vocab, 8192
    )


SHAPES = {
    "135M": (_stack(576, 30, 9, 3, 64, 1536, False, 49_152), 4),
    "1B": (_stack(2048, 16, 32, 8, 64, 8192, False, 128_256), 4),
    "8B": (_stack(4096, 36, 32, 8, 128, 12_288, True, 151_936), 5),
}
"""Target, and layers of its drafter, which is as wide."""
SHARPNESS = 12.0


class _Random(Mapping[str, Tensor]):
    """Tensors that are drawn on the device when they are asked for."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._dtype, self._device = shapes, dtype, device

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        return torch.randn(shape, dtype=self._dtype, device=self._device) * shape[-1] ** -0.5

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def synthetic_pair(shape: str, dtype: torch.dtype, device: torch.device) -> Pair:
    """A target of a shape and a drafter for it, with random weights and no tokenizer."""
    torch.manual_seed(0)
    stack, depth = SHAPES[shape]
    config = TargetConfig(stack, tied=True, eos_ids=frozenset())
    names = {"model.embed_tokens.weight": (stack.vocab, stack.hidden), "model.norm.weight": (stack.hidden,)}
    target = Target(config, Weights(_Random(names | layer_shapes(stack, "model."), dtype, device), dtype, device))
    small = TransformerConfig(
        stack.hidden, depth, stack.heads, stack.kv_heads, stack.head_dim, stack.intermediate, 1e-5, stack.rope, True,
        False, False, stack.vocab, stack.max_positions,
    )  # fmt: skip
    taps = tuple(round(1 + i * (stack.layers - 4) / 4) for i in range(5))
    drafter_config = DrafterConfig(small, 16, 0, taps, stack.layers)
    own = {"fc.weight": (stack.hidden, 5 * stack.hidden), "hidden_norm.weight": (stack.hidden,)}
    own |= {"norm.weight": (stack.hidden,)} | layer_shapes(small, "")
    drafter = Drafter(drafter_config, Weights(_Random(own, dtype, device), dtype, device), target)
    return Pair(target, drafter, None, drafter_config, f"random weights, {shape} shape", "random weights")  # type: ignore[arg-type]


class SyntheticStep(Step):
    """Draft logits that are the same in every step, and a target that draws its tokens from them."""

    _logits: Tensor | None = None

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """Computes the real ones, for their cost, and returns the others."""
        super().draft_logits(hidden)
        return self._synthetic(hidden)

    def choose(self, logits: Tensor, trees: TreeBatch, judged: JudgementBatch | None) -> Tensor:
        """Computes the real choices, for their cost; what a node gets is the draw of its depth."""
        real = super().choose(logits, trees, judged)
        if not self.plan.depths:
            return real
        state, drafted = self.state, self._synthetic(logits)
        depths = torch.arange(1, self.plan.depths + 1, device=state.base.device)
        drawn = choose(
            drafted,
            temperatures=torch.ones_like(state.temperatures),
            seeds=state.seeds,
            positions=state.base[:, None].long() + depths,
        )
        padded = torch.cat([drawn, drawn[:, :1]], dim=1)  # behind the deepest node comes anything
        return padded.gather(1, trees.depths.long())

    def _synthetic(self, like: Tensor) -> Tensor:
        """[R, D, V]: few likely tokens at the first depths, more and more behind."""
        if self._logits is None:
            draw = torch.Generator(like.device).manual_seed(3)
            shape = (len(like), self.plan.depths, self.target.config.vocab)
            noise = torch.randn(shape, generator=draw, device=like.device)
            sharp = torch.linspace(SHARPNESS, SHARPNESS / 2, self.plan.depths, device=like.device)[None, :, None]
            self._logits = (noise * sharp).to(like.dtype)
        return self._logits
