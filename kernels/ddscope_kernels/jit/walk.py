"""Accepted paths, one program a request: all edges are judged at once, then one reduction a step of the path."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.batched.walk import WalkBatch

_NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def _walk(tokens_ptr, parents_ptr, counts_ptr, choices_ptr, eos_ptr, room_ptr, path_ptr, lengths_ptr, bonus_ptr,
          emitted_ptr, kept_ptr, reasons_ptr, B: tl.constexpr, B2: tl.constexpr, P: tl.constexpr, P2: tl.constexpr,
          E: tl.constexpr, E2: tl.constexpr, HAS_ROOM: tl.constexpr):  # fmt: skip
    """One request a program."""
    request = tl.program_id(0)
    count = tl.load(counts_ptr + request)
    i = tl.arange(0, B2)
    real = i < tl.minimum(count, B)
    token = tl.load(tokens_ptr + request * B + i, mask=real, other=0)
    parent = tl.load(parents_ptr + request * B + i, mask=real, other=-1)
    choices = choices_ptr + request * (B + 1)
    wanted = tl.load(choices + parent, mask=real, other=0)
    # The parent of an edge that the target did not choose matters no more.
    parent = tl.where(real & (token == wanted), parent, -1)
    step = tl.arange(0, P2)
    path = tl.zeros((P2,), tl.int32)
    here = request * 0
    length = request * 0 + 1
    for at in range(1, P):
        child = tl.min(tl.where(parent == here, i + 1, _NOWHERE), axis=0)
        on = child != _NOWHERE
        path = tl.where(step == tl.where(on, at, -1), child, path)
        here = tl.where(on, child, -2)  # no node's parent
        length += on.to(tl.int32)
    tl.store(path_ptr + request * P + step, path, mask=step < P)
    tl.store(lengths_ptr + request, length)
    emitted = tl.load(choices + path, mask=step < length, other=0)
    last = tl.sum(tl.where(step == length - 1, path, 0), axis=0)
    tl.store(bonus_ptr + request, tl.load(choices + last))

    room = length + 1
    if HAS_ROOM:
        room = tl.maximum(tl.load(room_ptr + request).to(tl.int32), 0)
    kept = tl.minimum(length, room)
    reason = tl.where(length >= room, 2, 0)
    if E > 0:
        e = tl.arange(0, E2)[None, :]
        ends = tl.load(eos_ptr + e, mask=e < E, other=0)
        hit = ((emitted[:, None] == ends) & (e < E)).to(tl.int32)
        stop = tl.min(tl.where((tl.max(hit, axis=1) > 0) & (step < kept), step, _NOWHERE), axis=0)
        reason = tl.where(stop != _NOWHERE, 1, reason)
        kept = tl.where(stop != _NOWHERE, stop + 1, kept)
    tl.store(kept_ptr + request, kept)
    tl.store(reasons_ptr + request, reason)
    tl.store(emitted_ptr + request * P + step, tl.where(step < kept, emitted, 0), mask=step < P)


def launch(
    tokens: Tensor,
    parents: Tensor,
    counts: Tensor,
    choices: Tensor,
    eos: Tensor | None,
    room: Tensor | None,
    out: WalkBatch,
) -> None:
    """Fill `out`; arguments as of `batched.walk`, checked, R > 0."""
    requests, budget = tokens.shape
    places = out.path.shape[1]
    ends = 0 if eos is None else eos.numel()
    b2 = power_of_two(budget)
    _walk[(requests,)](
        tokens.contiguous(), parents.contiguous(), counts, choices.contiguous(), counts if eos is None else eos,
        counts if room is None else room, out.path, out.lengths, out.bonus, out.emitted, out.counts, out.reasons,
        budget, b2, places, power_of_two(places), ends, power_of_two(ends), room is not None,
        num_warps=1 if b2 <= 512 else 4)  # fmt: skip
