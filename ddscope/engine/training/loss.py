"""What a drafted row is trained for: the text's own token, or the target's distribution, or a mix of both.

The head is frozen, so the gradient of the hidden states is known in the forward pass; logits exist a piece at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope_kernels.batched import use_triton

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
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    soft: Soft | None = None,
    mix: float = 0.0,
    reach: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mean loss of the rows of G blocks of D drafted rows, weighted, and the likeliest token of each row, [G, D].

    hidden:  [G, D, hidden]; gradients flow to them, not to the head [V, hidden].
    labels:  [G, D] ids; weights: [G, D] ≥ 0, 0 leaves a row out.
    mix:     share of the soft targets' cross-entropy (it differs from the KL divergence to them by a constant); soft is
             [G, D, K].
    reach:   share of a row's weight that is multiplied by Π √q(label) over the rows before it in its block: how likely
             a step gets there. The square root stands for what a tree has besides the likeliest tokens.
    The loss of a row is (1 − mix) · −log q(label) − mix · Σ p(j) log q(j), in nats.
    """
    loss, chosen = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, labels, weights, soft, 0.0 if soft is None else mix, reach
    )
    return loss, chosen


def softmax_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [M, V] become their softmax in place; the likeliest tokens and logsumexp, [M] each, come back."""
    if use_triton(logits):
        from ddscope.engine.training.softmax_jit import softmax

        return softmax(logits)
    best, logz = logits.argmax(-1), logits.float().logsumexp(-1)
    logits.sub_(logz[:, None]).exp_()
    return best, logz


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, soft: Soft | None, mix: float,
        reach: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Loss, and the gradient of `hidden` on the way.

        Rows × vocabulary is what costs, so it is written twice (logits, softmax) and stays in the head's dtype; in
        bfloat16 the loss told is right to half a percent, and the gradient does not depend on it.
        """
        gradient = torch.empty_like(hidden, dtype=head.dtype)
        chosen = torch.empty_like(labels)
        loss, total = torch.zeros(2, device=hidden.device).unbind()
        count = max(1, PIECE // hidden.shape[1])
        for first in range(0, len(hidden), count):
            blocks = slice(first, first + count)
            label = labels[blocks].flatten()[:, None]
            push = F.linear(hidden[blocks].flatten(0, 1).to(head.dtype), head)
            hard = push.gather(-1, label)[:, 0].float()
            near = None if soft is None else push.gather(-1, soft.ids[blocks].flatten(0, 1)).float()
            best, logz = softmax_(push)  # becomes the gradient of the logits, but for the row's weight
            hard = logz - hard
            picked = (1 - mix) * hard
            push.scatter_add_(-1, label, push.new_full((), mix - 1).expand(label.shape))
            if soft is not None and near is not None:
                probabilities = soft.probabilities[blocks].flatten(0, 1)
                picked += mix * (probabilities * (logz[:, None] - near)).sum(-1)
                push.scatter_add_(-1, soft.ids[blocks].flatten(0, 1), (-mix * probabilities).to(push.dtype))
            weight = weights[blocks]
            if reach:
                before = hard.view_as(weight).cumsum(-1) - hard.view_as(weight)
                weight = weight * (1 - reach + reach * torch.exp(-0.5 * before))
            loss += (weight.flatten() * picked).sum()
            total += weight.sum()
            gradient[blocks] = (
                ((push @ head).float() * weight.flatten()[:, None]).to(head.dtype).view_as(gradient[blocks])
            )
            chosen[blocks] = best.view_as(weight)
        total.clamp_(min=1e-9)
        ctx.save_for_backward(gradient, total)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(chosen)
        return loss / total, chosen

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The kept gradient, scaled."""
        gradient, total = ctx.saved_tensors
        return (gradient * (outputs[0] / total)).to(ctx.dtype), None, None, None, None, None, None
