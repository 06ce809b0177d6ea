"""Which form of a function runs: the Triton kernels or the torch reference."""

from __future__ import annotations

import os

from torch import Tensor


def use_triton(tensor: Tensor) -> bool:
    """Whether the Triton kernels take this tensor: it lies on a CUDA device, or TRITON_INTERPRET=1 is set.

    The variable must also have been set when triton was first imported: its functions are bound then.
    """
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def power_of_two(n: int, least: int = 1) -> int:
    """The least power of two that is ≥ n and ≥ least."""
    return max(least, 1 << max(n - 1, 0).bit_length())
