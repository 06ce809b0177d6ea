"""Where each request stands after a step: one program for a whole batch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.batched.walk import WalkBatch


@triton.jit
def _advance(lengths_ptr, bonus_ptr, kept_ptr, reasons_ptr, base_ptr, root_ptr, room_ptr, root_stride, requests,
             R2: tl.constexpr):  # fmt: skip
    """All requests in one program."""
    request = tl.arange(0, R2)
    there = request < requests
    room = tl.load(room_ptr + request, mask=there, other=0)
    goes_on = there & (room > 0) & (tl.load(reasons_ptr + request, mask=there, other=1) == 0)
    base = tl.load(base_ptr + request, mask=goes_on, other=0)
    tl.store(base_ptr + request, base + tl.load(lengths_ptr + request, mask=goes_on, other=0), mask=goes_on)
    tl.store(root_ptr + request * root_stride, tl.load(bonus_ptr + request, mask=goes_on, other=0), mask=goes_on)
    left = room - tl.load(kept_ptr + request, mask=goes_on, other=0)
    tl.store(room_ptr + request, tl.where(goes_on, left, 0), mask=there)


def launch(walks: WalkBatch, base: Tensor, root: Tensor, room: Tensor) -> None:
    """Arguments as of `batched.advance`, checked, R > 0."""
    requests = base.shape[0]
    _advance[(1,)](
        walks.lengths, walks.bonus, walks.counts, walks.reasons, base, root, room, root.stride(0), requests,
        power_of_two(requests), num_warps=1)  # fmt: skip
