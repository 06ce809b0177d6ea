"""Sampling with noise that belongs to a position, not to a node.

A draw from softmax(logits / T) is the argmax of logits / T + Gumbel noise. When the noise of a position depends on
(seed, position) alone, every node at that position is one exact draw, draws at different positions are independent, and
plain decoding and any tree with the same seed choose the same tokens: losslessness at T > 0 can be seen token by token.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def gumbel(seed: int, position: int, size: int) -> Tensor:
    """[size] float32 standard Gumbel noise of one position, on the CPU.

    Depends on (seed, position, size) only; draws of different positions are independent. Any int is a seed.
    """
    generator = torch.Generator().manual_seed(_mix(seed, position))
    waiting = torch.empty(size).exponential_(generator=generator)
    return waiting.clamp_(min=torch.finfo(torch.float32).tiny).log_().neg_()


def perturbed_argmax(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """[m] int64: one draw from softmax(logits / temperature) a row.

    logits: [m, V]; noise: [m, V] or [V], standard Gumbel. Raises ValueError when temperature ≤ 0.
    """
    if not temperature > 0:
        raise ValueError(f"a draw needs a temperature above 0, got {temperature}")
    return torch.add(noise, logits.float(), alpha=1.0 / temperature).argmax(-1)


def _mix(seed: int, position: int) -> int:
    """64 bits from two integers; splitmix64's finaliser, so that neighbouring positions get unrelated generators."""
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) & (_MASK >> 1)
