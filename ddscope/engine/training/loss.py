"""What a drafted row is trained for: the text's own token, or the target's distribution, or a mix of both.

The head is frozen, so the gradient of the hidden states is known in the forward pass; logits exist a piece at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 8192
"""Rows whose logits and softmax exist at once: 1.6 GB in bfloat16 with a vocabulary of 49,152."""


class Soft(NamedTuple):
    """The target's likeliest tokens: ids [..., K] and their probabilities, summing to one over K."""

    ids: Tensor
    probabilities: Tensor


def depth_weights(block: int, decay: float, device: torch.device) -> Tensor:
    """[block - 1] exp(−(k − 1) / decay) for depth k = 1 …: a token counts only when all before it are accepted."""
    return torch.exp(-torch.arange(block - 1, device=device, dtype=torch.float32) / decay)


def target_soft(logits: Tensor, k: int) -> Soft:
    """The k likeliest of each row of logits [..., V], their probabilities among themselves."""
    top = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return Soft(top.indices, top.values.float().softmax(-1))


def head_loss(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, soft: Soft | None = None, mix: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean loss of M rows, weighted, and the likeliest token of each row, [M].

    hidden:  [M, hidden] drafted rows; gradients flow to them, not to the head [V, hidden].
    labels:  [M] ids; weights: [M] ≥ 0, 0 leaves a row out.
    mix:     share of the soft targets' cross-entropy (it differs from the KL divergence to them by a constant).
    The loss of a row is (1 − mix) · −log q(label) − mix · Σ p(j) log q(j), in nats.
    """
    scale = weights / weights.sum().clamp(min=1e-9)
    if soft is None:
        mix = 0.0
    loss, chosen = _HeadLoss.apply(hidden, head, labels, scale, soft, mix)  # type: ignore[no-untyped-call]
    return loss, chosen


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, scale: Tensor, soft: Soft | None, mix: float
    ) -> tuple[Tensor, Tensor]:
        """Loss, and the gradient of `hidden` on the way.

        Rows × vocabulary is what costs, so it is written twice (logits, softmax) and stays in the head's dtype; in
        bfloat16 the loss told is right to half a percent, and the gradient does not depend on it.
        """
        gradient = torch.empty_like(hidden, dtype=head.dtype)
        chosen = torch.empty_like(labels)
        loss = torch.zeros((), device=hidden.device)
        for first in range(0, len(hidden), PIECE):
            rows = slice(first, first + PIECE)
            label, weight = labels[rows, None], scale[rows, None]
            logits = F.linear(hidden[rows].to(head.dtype), head)
            best = logits.argmax(-1, keepdim=True)
            push = logits.softmax(-1)  # becomes the gradient of the logits, but for the row's weight
            logz = logits.gather(-1, best).float() - push.gather(-1, best).float().log()
            picked = (1 - mix) * (logz - logits.gather(-1, label).float())
            push.scatter_add_(-1, label, push.new_full((), mix - 1).expand(label.shape))
            if soft is not None:
                ids, probabilities = soft.ids[rows], soft.probabilities[rows]
                picked += mix * (probabilities * (logz - logits.gather(-1, ids).float())).sum(-1, keepdim=True)
                push.scatter_add_(-1, ids, (-mix * probabilities).to(push.dtype))
            loss += (weight * picked).sum()
            gradient[rows] = ((push @ head).float() * weight).to(head.dtype)
            chosen[rows] = best[:, 0]
        ctx.save_for_backward(gradient)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(chosen)
        return loss, chosen

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The kept gradient, scaled."""
        (gradient,) = ctx.saved_tensors
        return (gradient * outputs[0]).to(ctx.dtype), None, None, None, None, None
