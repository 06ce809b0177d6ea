"""From a drafter's logits to the candidates of each depth: top-k log-probabilities, log Z and entropy.

The order of candidates is total (logit down, token id up), so equal logits give equal candidates on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Marginals:
    """Candidates of D depths.

    ids:       [D, k] int64 token ids.
    logprobs:  [D, k] float32 nats at temperature 1, descending, ≤ 0; -inf marks a candidate that is none.
    logz:      [D] float32 nats, logsumexp over the finite logits of the whole vocabulary (-inf where there are none).
    entropy:   [D] float32 nats, 0 where there are no finite logits.
    nonfinite: how many logits were NaN or ±inf; they are no candidates and have no part in logz.
    """

    ids: Tensor
    logprobs: Tensor
    logz: Tensor
    entropy: Tensor
    nonfinite: int


def count_nonfinite(logits: Tensor) -> int:
    """How many entries of a floating tensor are NaN or ±inf.

    One pass over the tensor when there are none: a sum is finite only when every term is (logits are far from overflow;
    a sum that does overflow costs the exact count, not a wrong answer).
    """
    if bool(torch.isfinite(logits.sum(dtype=torch.float32))):
        return 0
    return int(logits.numel() - torch.isfinite(logits).sum())


def topk_logprobs(logits: Tensor, k: int) -> Marginals:
    """The k likeliest tokens of each depth with their log-probabilities.

    logits: [D, V] any floating dtype; computed in float32.
    k:      candidates a depth; min(k, V) come back.
    Order: logit down, token id up. NaN and ±inf logits are counted and take no part; where fewer than k finite logits
    exist, the rest of the row has log-probability -inf.
    Raises ValueError when logits is not a matrix or k < 0.
    Source: DDTree (arXiv 2604.12989), section 3: log-marginals at temperature 1 against the full vocabulary.
    """
    if logits.ndim != 2 or k < 0:
        raise ValueError(f"logits must be [D, V] and k ≥ 0, got {list(logits.shape)} and {k}")
    x = logits.float()
    nonfinite = count_nonfinite(x) if x.numel() else 0
    if nonfinite:
        x = torch.where(torch.isfinite(x), x, -torch.inf)
    k = min(k, x.shape[1])
    top, ids = _ordered_topk(x, k)
    logz, entropy = _logz_entropy(x, clean=nonfinite == 0)
    # Rounding may leave +1e-7, and a child must not outrank its parent.
    logprobs = (top - logz[:, None]).clamp_(max=0.0)
    if nonfinite:
        logprobs = torch.where(torch.isneginf(top), -torch.inf, logprobs)
    return Marginals(ids, logprobs, logz, entropy, nonfinite)


def _ordered_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk under a total order. torch leaves the order of equal values open, and which of them make the cut."""
    if k == 0 or x.shape[0] == 0:
        return x.new_empty(x.shape[0], k), torch.empty(x.shape[0], k, dtype=torch.int64, device=x.device)
    top, ids = x.topk(k, dim=-1)
    tied = ((x >= top[:, -1:]).sum(-1) > k).nonzero().flatten().tolist()
    for row in tied:
        cut = top[row, -1]
        above = int((top[row] > cut).sum())
        ids[row, above:] = (x[row] == cut).nonzero().flatten()[: k - above]
    ids, by_id = ids.sort(dim=-1)
    top, by_value = top.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return top, ids.gather(-1, by_value)


def _logz_entropy(x: Tensor, *, clean: bool) -> tuple[Tensor, Tensor]:
    """[D] logsumexp and entropy of the rows of x [D, V], which holds no NaN and no +inf (and no -inf when clean)."""
    if x.shape[1] == 0:
        return x.new_full((x.shape[0],), -torch.inf), x.new_zeros(x.shape[0])
    peak = x.amax(-1, keepdim=True)
    if not clean:
        peak = peak.clamp(min=torch.finfo(x.dtype).min)  # a row of -inf only: keep -inf - peak away from NaN
    shifted = x - peak
    weights = shifted.exp()
    total = weights.sum(-1)
    if not clean:
        shifted = shifted.clamp_(min=torch.finfo(x.dtype).min)  # 0 × -inf
    mean = torch.linalg.vecdot(weights, shifted)
    logz = total.log() + peak.squeeze(-1)
    entropy = torch.where(total > 0, total.log() - mean / total, torch.zeros_like(total)).clamp_(min=0.0)
    return logz, entropy
