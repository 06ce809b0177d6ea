"""The end of a step: where each request of a batch stands after its path was accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from ddscope_kernels.batched.backend import use_triton
from ddscope_kernels.batched.walk import RUNNING, WalkBatch


def advance(walks: WalkBatch, base: Tensor, root: Tensor, room: Tensor) -> None:
    """Move every request that goes on behind its accepted path, in place; one that ends stays where it is.

    base: [R] int32 row and position of the root, moved by the length of the path.
    root: [R] int64 token, becomes the bonus; any stride.
    room: [R] int32 tokens that may still be emitted; 0 says that a request has ended, and is what an end writes.
    On a CUDA device one launch, no wait for the host. Raises ValueError when shapes disagree.
    """
    shape = walks.lengths.shape
    if base.shape != shape or root.shape != shape or room.shape != shape:
        raise ValueError(
            f"base {list(base.shape)}, root {list(root.shape)} and room {list(room.shape)} are not {list(shape)}"
        )
    if use_triton(base) and base.numel():
        from ddscope_kernels.jit import advance as compiled

        compiled.launch(walks, base, root, room)
        return
    goes_on = (room > 0) & (walks.reasons == RUNNING)
    base += torch.where(goes_on, walks.lengths, 0).to(base.dtype)
    root.copy_(torch.where(goes_on, walks.bonus, root))
    room.copy_(torch.where(goes_on, room - walks.counts, 0))
