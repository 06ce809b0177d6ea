"""What a drafted row is trained for: the text's own token, or the target's distribution, or a mix of both.

The head is frozen, so the gradient of the hidden states is known in the forward pass; logits exist a piece at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Judging:
    """What rows are trained for.

    mix:   share of the soft targets' cross-entropy (it differs from the KL divergence to them by a constant).
    reach: share of a row's weight that is multiplied by Π √q(label) over the rows before it in its block: how likely a
           step gets there. The square root stands for what a tree has besides the likeliest tokens.
    deep:  share of the blocks whose second half is judged at all: those that are likeliest to get there.
    """

    mix: float = 0.0
    reach: float = 0.0
    deep: float = 1.0


_PLAIN = Judging()


def head_loss(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    soft: Soft | None = None,
    judging: Judging = Judging(),
) -> tuple[Tensor, Tensor]:
    """Mean loss of the rows of G blocks of D drafted rows, weighted, and the likeliest token of each row, [G, D].

    hidden:  [G, D, hidden]; gradients flow to them, not to the head [V, hidden].
    labels:  [G, D] ids; weights: [G, D] ≥ 0, 0 leaves a row out; soft: [G, D, K], or None for a mix of 0.
    The loss of a row is (1 − mix) · −log q(label) − mix · Σ p(j) log q(j), in nats. The likeliest token of a row that
    is not judged is -1.
    """
    loss, chosen = _HeadLoss.apply(hidden, head, labels, weights, soft, judging)  # type: ignore[no-untyped-call]
    return loss, chosen


def softmax_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [M, V] become their softmax in place; the likeliest tokens and logsumexp, [M] each, come back."""
    if use_triton(logits):
        from ddscope.engine.training.softmax_jit import softmax

        return softmax(logits)
    best, logz = logits.argmax(-1), logits.float().logsumexp(-1)
    logits.sub_(logz[:, None]).exp_()
    return best, logz


class _Rows(NamedTuple):
    """Of G blocks, D rows each: as of `head_loss`; before: [G] −log q of the labels before these rows, summed."""

    hidden: Tensor
    labels: Tensor
    weights: Tensor
    soft: Soft | None
    before: Tensor

    def part(self, blocks: slice | Tensor, depths: slice, before: Tensor) -> _Rows:
        """Some depths of some blocks."""
        soft = self.soft and Soft(self.soft.ids[blocks, depths], self.soft.probabilities[blocks, depths])
        return _Rows(
            self.hidden[blocks, depths], self.labels[blocks, depths], self.weights[blocks, depths], soft, before[blocks]
        )


class _Judged(NamedTuple):
    """gradient of the rows, not divided by `total`; nats: −log q of the labels; chosen: the likeliest tokens; loss and
    total: loss and weight, summed over the rows."""

    gradient: Tensor
    nats: Tensor
    chosen: Tensor
    loss: Tensor
    total: Tensor


def _judge(rows: _Rows, head: Tensor, judging: Judging) -> _Judged:
    """Piece by piece. Rows × vocabulary is what costs, so it is written twice (logits, softmax) and stays in the head's
    dtype; in bfloat16 the loss told is right to half a percent, and the gradient does not depend on it."""
    made = _Judged(
        torch.empty_like(rows.hidden, dtype=head.dtype),
        torch.empty_like(rows.weights),
        torch.empty_like(rows.labels),
        *torch.zeros(2, device=head.device).unbind(),
    )
    count = max(1, PIECE // rows.hidden.shape[1])
    for first in range(0, len(rows.hidden), count):
        blocks = slice(first, first + count)
        hidden, labels, weight, soft, before = rows.part(blocks, slice(None), rows.before)
        label, mix = labels.flatten()[:, None], judging.mix if soft else 0.0
        push = F.linear(hidden.flatten(0, 1).to(head.dtype), head)
        hard = push.gather(-1, label)[:, 0].float()
        near = None if soft is None else push.gather(-1, soft.ids.flatten(0, 1)).float()
        best, logz = softmax_(push)  # becomes the gradient of the logits, but for the row's weight
        hard = logz - hard
        picked = (1 - mix) * hard
        push.scatter_add_(-1, label, push.new_full((), mix - 1).expand(label.shape))
        if soft is not None and near is not None:
            probabilities = soft.probabilities.flatten(0, 1)
            picked += mix * (probabilities * (logz[:, None] - near)).sum(-1)
            push.scatter_add_(-1, soft.ids.flatten(0, 1), (-mix * probabilities).to(push.dtype))
        nats = hard.view_as(weight)
        reached = torch.exp(-0.5 * (before[:, None] + nats.cumsum(-1) - nats))
        weight = weight * (1 - judging.reach + judging.reach * reached)
        made.loss.add_((weight.flatten() * picked).sum())
        made.total.add_(weight.sum())
        pushed = (push @ head).float() * weight.flatten()[:, None]
        made.gradient[blocks] = pushed.to(head.dtype).view_as(hidden)
        made.nats[blocks], made.chosen[blocks] = nats, best.view_as(weight)
    return made


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, soft: Soft | None, judging: Judging
    ) -> tuple[Tensor, Tensor]:
        """Loss, and the gradient of `hidden` on the way."""
        groups, depth = labels.shape
        rows = _Rows(hidden, labels, weights, soft, torch.zeros(groups, device=hidden.device))
        split = depth if judging.deep == 1 else (depth + 1) // 2
        some = _judge(rows.part(slice(None), slice(split), rows.before), head, judging)
        gradient, chosen, loss, total = some.gradient, some.chosen, some.loss, some.total
        if split < depth:
            before = some.nats.sum(-1)
            far = torch.where(weights[:, split] > 0, before, torch.inf)
            blocks = far.topk(max(1, round(judging.deep * groups)), largest=False, sorted=False).indices
            more = _judge(rows.part(blocks, slice(split, None), before), head, judging)
            gradient = torch.cat([gradient, gradient.new_zeros(groups, depth - split, hidden.shape[2])], dim=1)
            chosen = torch.cat([chosen, torch.full_like(labels[:, split:], -1)], dim=1)
            gradient[blocks, split:], chosen[blocks, split:] = more.gradient, more.chosen
            loss, total = loss + more.loss, total + more.total
        total = total.clamp(min=1e-9)
        ctx.save_for_backward(gradient, total)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(chosen)
        return loss / total, chosen

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The kept gradient, scaled."""
        gradient, total = ctx.saved_tensors
        return (gradient * (outputs[0] / total)).to(ctx.dtype), None, None, None, None, None
