"""From the draft logits of a batch to candidates: top-k log-probabilities, log Z and entropy of each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddscope_kernels import marginals as single
from ddscope_kernels.batched.backend import use_triton

MAX_K = 64


@dataclass(frozen=True, slots=True)
class MarginalsBatch:
    """Candidates of D depths of R requests; everything lies on the device of the logits.

    ids:       [R, D, k] int64 token ids.
    logprobs:  [R, D, k] float32 nats at temperature 1, descending, ≤ 0; -inf marks a candidate that is none.
    logz:      [R, D] float32 nats, logsumexp over the finite logits (-inf where there are none).
    entropy:   [R, D] float32 nats, 0 where there are no finite logits.
    nonfinite: [R, D] int32, how many logits were NaN or ±inf; they have no part in anything.
    """

    ids: Tensor
    logprobs: Tensor
    logz: Tensor
    entropy: Tensor
    nonfinite: Tensor


def topk_logprobs(x: Tensor, k: int, lm_head: Tensor | None = None) -> MarginalsBatch:
    """The k likeliest tokens of each depth with their log-probabilities, for a batch.

    x:       [R, D, V] logits, float32, float16 or bfloat16; with lm_head: [R, D, H] hidden states.
    lm_head: [V, H], dtype of x: logits are x @ lm_headᵀ, summed in float32 and not rounded to the dtype of x. On a
             CUDA device they never reach memory.
    k:       candidates a depth, ≤ 64; min(k, V) come back.
    Order: logit down, token id up, as of `ddscope_kernels.topk_logprobs`, whose meaning this has row by row.
    On a CUDA device nothing waits for the host: it can be captured in a CUDA graph.
    Raises ValueError when shapes or dtypes disagree, or k is not in 0 … 64.
    Source: DDTree (arXiv 2604.12989), section 3.
    """
    if x.ndim != 3 or not 0 <= k <= MAX_K:
        raise ValueError(f"x must be [R, D, V] or [R, D, H] and 0 ≤ k ≤ {MAX_K}, got {list(x.shape)} and {k}")
    if lm_head is not None and (lm_head.ndim != 2 or lm_head.shape[1] != x.shape[2] or lm_head.dtype != x.dtype):
        raise ValueError(
            f"hidden states {list(x.shape)} {x.dtype} and lm_head {list(lm_head.shape)} {lm_head.dtype} do not fit"
        )
    vocabulary = x.shape[2] if lm_head is None else lm_head.shape[0]
    if use_triton(x) and min(k, vocabulary, x.shape[0], x.shape[1]) > 0 and x.shape[2] > 0:
        from ddscope_kernels.jit import topk

        return MarginalsBatch(*topk.launch(x, min(k, vocabulary), lm_head))
    return _reference(x, k, lm_head)


def _reference(x: Tensor, k: int, lm_head: Tensor | None) -> MarginalsBatch:
    requests, depths, _ = x.shape
    logits = x.float() if lm_head is None else x.float() @ lm_head.float().T
    rows = logits.reshape(requests * depths, logits.shape[2])
    found = single.topk_logprobs(rows, k)
    nonfinite = (~torch.isfinite(rows)).sum(-1, dtype=torch.int32)
    shape = (requests, depths)
    return MarginalsBatch(
        ids=found.ids.view(*shape, found.ids.shape[1]),
        logprobs=found.logprobs.view(*shape, found.logprobs.shape[1]),
        logz=found.logz.view(shape),
        entropy=found.entropy.view(shape),
        nonfinite=nonfinite.view(shape),
    )
