"""From logits to candidates: top-k log-probabilities, log Z and entropy of each row.

The order of candidates is total (logit down, token id up), so equal logits give equal candidates on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 64  # columns; a maximum over so many is one vectorised pass, and few chunks are left to look into


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


def ordered_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids, [m, min(k, V)] each, of the largest entries of each row of x [m, V], under a total order.

    Order: value down, id up; torch.topk leaves the order of equal values open, and which of them make the cut.
    x: float32 without NaN (-inf is the least value there is).
    """
    rows, size = x.shape
    k = min(k, size)
    if k == 0 or rows == 0:
        return x.new_empty(rows, k), torch.empty(rows, k, dtype=torch.int64, device=x.device)
    # One more than asked for: where it equals the last, the row has a tie across the cut.
    top, ids = _topk(x, min(k + 1, size))
    tied = (top[:, k - 1] == top[:, k]).nonzero().flatten().tolist() if size > k else []
    top, ids = top[:, :k].contiguous(), ids[:, :k].contiguous()
    for row in tied:
        cut = top[row, -1]
        above = int((top[row] > cut).sum())
        ids[row, above:] = (x[row] == cut).nonzero().flatten()[: k - above]
    if k > 1 and bool((top[:, 1:] == top[:, :-1]).any()):
        ids, by_id = ids.sort(dim=-1)
        top, by_value = top.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, by_value)
    return top, ids


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
    nonfinite = count_nonfinite(x)
    if nonfinite:
        x = torch.where(torch.isfinite(x), x, -torch.inf)
    top, ids = ordered_topk(x, k)
    logz, entropy = _logz_entropy(x, clean=nonfinite == 0)
    # Rounding may leave +1e-7, and a child must not outrank its parent.
    logprobs = (top - logz[:, None]).clamp_(max=0.0)
    if nonfinite:
        logprobs = torch.where(torch.isneginf(top), -torch.inf, logprobs)
    return Marginals(ids, logprobs, logz, entropy, nonfinite)


def _topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk, on a CPU through the maxima of chunks: the k largest values are in the k chunks of largest maxima."""
    rows, size = x.shape
    chunks = size // _CHUNK
    if x.device.type != "cpu" or size % _CHUNK or chunks < 4 * k:
        top, ids = x.topk(k, dim=-1)
        return top, ids
    columns = x.view(rows, chunks, _CHUNK)
    _, best = columns.amax(-1).topk(k, dim=-1, sorted=False)
    pool = columns.gather(1, best[:, :, None].expand(rows, k, _CHUNK)).view(rows, k * _CHUNK)
    top, place = pool.topk(k, dim=-1)
    return top, best.gather(1, place // _CHUNK) * _CHUNK + place % _CHUNK


def _logz_entropy(x: Tensor, *, clean: bool) -> tuple[Tensor, Tensor]:
    """[D] logsumexp and entropy of the rows of x [D, V], which holds no NaN and no +inf (and no -inf when clean)."""
    if x.shape[1] == 0:
        return x.new_full((x.shape[0],), -torch.inf), x.new_zeros(x.shape[0])
    peak = x.amax(-1)
    weights = x.softmax(-1)
    logz = peak - weights.amax(-1).log()
    if clean:
        return logz, (logz - torch.linalg.vecdot(weights, x)).clamp_(min=0.0)
    none = torch.isneginf(peak)
    mean = torch.linalg.vecdot(weights, x.clamp(min=torch.finfo(x.dtype).min))  # 0 × -inf would be NaN
    return torch.where(none, peak, logz), torch.where(none, 0.0, (logz - mean).clamp_(min=0.0))
