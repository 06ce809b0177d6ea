"""What the target says at every node of a batch, in one pass over its logits: choice, certainty, and what is broken."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddscope_kernels.batched.backend import use_triton


@dataclass(frozen=True, slots=True)
class JudgementBatch:
    """The target's view of R × N rows of logits; everything lies on the device of the logits.

    ids:       [R, N] int64 the likeliest token; of equals the lowest id, 0 where no logit is finite.
    logprobs:  [R, N] float32 nats of that token at temperature 1, ≤ 0; -inf where no logit is finite.
    gap:       [R, N] float32 its logit less the second best one; inf where fewer than two are finite.
    logz:      [R, N] float32 nats, logsumexp over the finite logits (-inf where there are none).
    nonfinite: [R, N] int32, how many logits were NaN or ±inf; they have no part in anything.
    """

    ids: Tensor
    logprobs: Tensor
    gap: Tensor
    logz: Tensor
    nonfinite: Tensor


def judge(logits: Tensor) -> JudgementBatch:
    """The best token of each row with its log-probability, its lead over the second, log Z and non-finite counts.

    logits: [R, N, V] float32, float16 or bfloat16.
    On a CUDA device two launches that read the logits once, and no wait for the host. For more candidates of a row than
    its best: `topk_logprobs`; for draws: `choose`.
    Raises ValueError when logits are not [R, N, V].
    """
    if logits.ndim != 3:
        raise ValueError(f"logits must be [R, N, V], got {list(logits.shape)}")
    if use_triton(logits) and logits.numel():
        from ddscope_kernels.jit import judge as compiled

        return JudgementBatch(*compiled.launch(logits))
    return _reference(logits)


def _reference(logits: Tensor) -> JudgementBatch:
    finite = torch.isfinite(logits)
    nonfinite = (~finite).sum(-1, dtype=torch.int32)
    if logits.shape[2] < 2:  # so that there is a second one
        logits = torch.nn.functional.pad(logits, (0, 2), value=-torch.inf)
        finite = torch.isfinite(logits)
    scores = torch.where(finite, logits.float(), -torch.inf)
    top = scores.topk(2).values
    ids = torch.arange(scores.shape[2], device=scores.device)
    first = torch.where(scores == top[..., :1], ids, scores.shape[2]).amin(-1)
    none = top[..., 0].isneginf()
    logz = scores.logsumexp(-1)
    return JudgementBatch(
        ids=torch.where(none, 0, first),
        logprobs=torch.where(none, -torch.inf, (top[..., 0] - logz).clamp(max=0.0)),
        gap=torch.where(top[..., 1].isneginf(), torch.inf, top[..., 0] - top[..., 1]),
        logz=logz,
        nonfinite=nonfinite,
    )
