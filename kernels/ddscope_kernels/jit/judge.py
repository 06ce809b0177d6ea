"""Best token, lead, log Z and non-finite counts of long rows: a program a slice, and one a row over the slices."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two

_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def _slices(logits_ptr, values_ptr, counts_ptr, size, parts, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """One row and one slice of BLOCK logits a program: best, second, Σ exp(x − best); its id, non-finite count."""
    row, part = tl.program_id(0), tl.program_id(1)
    place = tl.arange(0, BLOCK)
    here = logits_ptr + row.to(tl.int64) * size + part * BLOCK
    if WHOLE:  # no slice ends beyond the row
        x = tl.load(here + place).to(tl.float32)
        finite = tl.abs(x) < float("inf")  # not of NaN either
        broken = BLOCK - tl.sum(finite.to(tl.int32), axis=0)
    else:
        valid = part * BLOCK + place < size
        x = tl.load(here + place, mask=valid, other=float("inf")).to(tl.float32)
        finite = tl.abs(x) < float("inf")
        broken = tl.minimum(size - part * BLOCK, BLOCK) - tl.sum(finite.to(tl.int32), axis=0)
    score = tl.where(finite, x, float("-inf"))
    best = tl.max(score, axis=0)
    first = tl.min(tl.where(score == best, place, BLOCK), axis=0)
    second = tl.max(tl.where(place == first, float("-inf"), score), axis=0)
    shift = tl.where(best == float("-inf"), 0.0, best)
    total = tl.sum(tl.exp2((score - shift) * 1.4426950408889634), axis=0)
    at = row * parts + part
    tl.store(values_ptr + at * 3, best)
    tl.store(values_ptr + at * 3 + 1, second)
    tl.store(values_ptr + at * 3 + 2, total)
    tl.store(counts_ptr + at * 2, tl.where(best == float("-inf"), _NO_ID, part * BLOCK + first))
    tl.store(counts_ptr + at * 2 + 1, broken)


@triton.jit
def _merge(values_ptr, counts_ptr, ids_ptr, logprobs_ptr, gaps_ptr, logz_ptr, nonfinite_ptr, parts,
           PARTS2: tl.constexpr):  # fmt: skip
    """One row a program."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS2)
    at, there = row * parts + part, part < parts
    bests = tl.load(values_ptr + at * 3, mask=there, other=float("-inf"))
    seconds = tl.load(values_ptr + at * 3 + 1, mask=there, other=float("-inf"))
    totals = tl.load(values_ptr + at * 3 + 2, mask=there, other=0.0)
    firsts = tl.load(counts_ptr + at * 2, mask=there, other=_NO_ID)
    broken = tl.load(counts_ptr + at * 2 + 1, mask=there, other=0)
    best = tl.max(bests, axis=0)
    first = tl.min(tl.where(bests == best, firsts, _NO_ID), axis=0)
    second = tl.maximum(tl.max(seconds, axis=0), tl.max(tl.where(firsts == first, float("-inf"), bests), axis=0))
    empty = best == float("-inf")
    shift = tl.where(empty, 0.0, best)
    total = tl.sum(totals * tl.where(bests > float("-inf"), tl.exp(bests - shift), 0.0), axis=0)
    over = tl.log(tl.where(empty, 1.0, total))
    tl.store(ids_ptr + row, tl.where(empty, 0, first).to(tl.int64))
    tl.store(logprobs_ptr + row, tl.where(empty, float("-inf"), tl.minimum(-over, 0.0)))
    tl.store(gaps_ptr + row, tl.where(second == float("-inf"), float("inf"), shift - second))
    tl.store(logz_ptr + row, tl.where(empty, float("-inf"), shift + over))
    tl.store(nonfinite_ptr + row, tl.sum(broken, axis=0))


def launch(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of a JudgementBatch; arguments as of `batched.judge`, checked, not empty."""
    requests, nodes, size = logits.shape
    logits = logits.contiguous()
    rows = requests * nodes
    block = min(4096, power_of_two(size))
    parts = triton.cdiv(size, block)
    device = logits.device
    values = torch.empty(rows, parts, 3, dtype=torch.float32, device=device)
    counts = torch.empty(rows, parts, 2, dtype=torch.int32, device=device)
    ids = torch.empty(requests, nodes, dtype=torch.int64, device=device)
    logprobs = torch.empty(requests, nodes, dtype=torch.float32, device=device)
    gaps, logz = torch.empty_like(logprobs), torch.empty_like(logprobs)
    nonfinite = torch.empty(requests, nodes, dtype=torch.int32, device=device)
    _slices[(rows, parts)](logits, values, counts, size, parts, block, size % block == 0, num_warps=8)
    _merge[(rows,)](values, counts, ids, logprobs, gaps, logz, nonfinite, parts, power_of_two(parts), num_warps=1)
    return ids, logprobs, gaps, logz, nonfinite
