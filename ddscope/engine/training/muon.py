"""Muon: the momentum of a matrix, made nearly orthogonal, is its step. Matrices of one shape go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_MOMENTUM = 0.95
_ROUNDS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_RMS = 0.2
"""Root mean square of AdamW's steps in units of the learning rate, about: so that both take the same ones."""


class Muon(torch.optim.Optimizer):
    """For matrices alone; vectors need another optimizer.

    Source: Jordan et al. 2024 (Newton–Schulz of the momentum), and for the size of the steps, which makes learning
    rates and decay those of AdamW, arXiv 2502.16982.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float | Tensor, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all matrices that have a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
            grads = [weight.grad for weight in weights]
            momenta = [self.state[weight]["momentum"] for weight in weights]
            torch._foreach_lerp_(momenta, grads, 1 - _MOMENTUM)
            pushes = torch._foreach_lerp(grads, momenta, _MOMENTUM)  # Nesterov's
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            steps = _orthogonal(pushes)
            torch._foreach_mul_(steps, [-_RMS * max(weight.shape) ** 0.5 for weight in weights])
            torch._foreach_mul_(steps, group["lr"])  # a tensor where a CUDA graph reads it
            torch._foreach_add_(weights, steps)


def _orthogonal(matrices: tuple[Tensor, ...] | list[Tensor]) -> list[Tensor]:
    """For each a matrix with about its singular vectors and singular values near 1, in float32."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for number, matrix in enumerate(matrices):
        by_shape.setdefault((min(matrix.shape), max(matrix.shape)), []).append(number)
    found: dict[int, Tensor] = {}
    for numbers in by_shape.values():
        flat = [matrices[number] if _is_wide(matrices[number]) else matrices[number].mT for number in numbers]
        x = torch.stack(flat)
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        if x.is_cuda:
            x = x.bfloat16()
        a, b, c = _COEFFICIENTS
        for _ in range(_ROUNDS):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
        for number, made in zip(numbers, x.float().unbind(), strict=True):
            found[number] = made if _is_wide(matrices[number]) else made.mT
    return [found[number] for number in range(len(matrices))]


def _is_wide(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


def state_of(optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Any]:
    """The states of several as one, for a checkpoint."""
    return {type(optimizer).__name__: optimizer.state_dict() for optimizer in optimizers}
