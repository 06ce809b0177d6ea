"""Keeping the accepted rows of a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def compact_kv(cache: Tensor, base: int, path: Sequence[int]) -> int:
    """Move rows base + path[i] of the cache to base + i, in place; return the committed length base + len(path).

    cache: [..., S, head_dim], rows in the last dimension but one (any leading layers, K/V, heads).
    path:  accepted nodes, root first; node j lies in row base + j. Strictly ascending is usual but not needed: all rows
    are read before any is written. Nothing moves when the path is 0, 1, 2, …
    What lies behind the new length is left as it is. Raises ValueError when a row is out of range.
    """
    end = base + len(path)
    if path and (base < 0 or min(path) < 0 or base + max(path) >= cache.shape[-2] or end > cache.shape[-2]):
        raise ValueError(f"rows {base} + {list(path)} do not fit a cache of {cache.shape[-2]} rows")
    first = next((i for i, node in enumerate(path) if node != i), len(path))
    if first < len(path):
        rows = torch.tensor(path[first:], device=cache.device) + base
        cache[..., base + first : end, :] = cache.index_select(-2, rows)
    return end
