"""Argmax and Gumbel-max over long rows: a program a slice, and one a row over the slices' winners."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two

_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def _slices(logits_ptr, temperatures_ptr, seeds_ptr, positions_ptr, values_ptr, ids_ptr, nodes, size, parts,
            BLOCK: tl.constexpr, DRAWS: tl.constexpr):  # fmt: skip
    """One row and one slice of BLOCK logits a program."""
    row, part = tl.program_id(0), tl.program_id(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    valid = ids < size
    x = tl.load(logits_ptr + row.to(tl.int64) * size + ids, mask=valid, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    if DRAWS:
        warmth = tl.load(temperatures_ptr + row // nodes)
        if warmth > 0:
            seed = tl.load(seeds_ptr + row // nodes)
            position = tl.load(positions_ptr + row).to(tl.int32)
            # One Philox gives the words of four tokens.
            words = part * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
            nothing = tl.zeros((BLOCK // 4,), tl.int32)
            w0, w1, w2, w3 = tl.philox(seed, words, nothing + position, nothing, nothing)
            random = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK,))
            u = (random.to(tl.float32) + 0.5) * 2.3283064365386963e-10
            small = u * (1.0 + u * (0.5 + u * (0.3333333333333333 + u * 0.25)))
            waiting = tl.where(u < 0.015625, small, -tl.log(tl.maximum(1.0 - u, 1e-30)))
            x = x * (1.0 / warmth) - tl.log(waiting)
    best = tl.max(x, axis=0)
    tl.store(values_ptr + row * parts + part, best)
    tl.store(ids_ptr + row * parts + part, tl.min(tl.where(x == best, ids, _NO_ID), axis=0))


@triton.jit
def _merge(values_ptr, ids_ptr, out_ptr, parts, PARTS2: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS2)
    values = tl.load(values_ptr + row * parts + part, mask=part < parts, other=float("-inf"))
    ids = tl.load(ids_ptr + row * parts + part, mask=part < parts, other=_NO_ID)
    best = tl.max(values, axis=0)
    first = tl.min(tl.where(values == best, ids, _NO_ID), axis=0)
    tl.store(out_ptr + row, tl.where(best == float("-inf"), 0, first).to(tl.int64))


def launch(logits: Tensor, temperatures: Tensor | None, seeds: Tensor | None, positions: Tensor | None) -> Tensor:
    """Arguments as of `batched.choose`, checked, not empty."""
    requests, nodes, size = logits.shape
    logits = logits.contiguous()
    block = min(4096, power_of_two(size, 4))
    parts = triton.cdiv(size, block)
    values = torch.empty(requests * nodes, parts, dtype=torch.float32, device=logits.device)
    ids = torch.empty(requests * nodes, parts, dtype=torch.int32, device=logits.device)
    out = torch.empty(requests, nodes, dtype=torch.int64, device=logits.device)
    draws = temperatures is not None
    unused = logits
    _slices[(requests * nodes, parts)](
        logits, unused if temperatures is None else temperatures, unused if seeds is None else seeds,
        unused if positions is None else positions.contiguous(), values, ids, nodes, size, parts, block, draws,
        num_warps=4)  # fmt: skip
    _merge[(requests * nodes,)](values, ids, out, parts, power_of_two(parts), num_warps=1)
    return out
