"""Keeping the accepted rows of the KV caches of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ddscope_kernels.batched.backend import use_triton

MAX_PATH = 64


def compact_kv(
    cache: Tensor, path: Tensor, lengths: Tensor, *, base: Tensor | None = None, slots: Tensor | None = None
) -> None:
    """Move the rows of each accepted path to the front of the request's tree, in place, in all layers at once.

    cache:   [L, R, H, S, d] a cache a request, with base; or [L, S, H, d] one pool of rows, with slots. L counts K and
             V of all layers. Any dtype; d contiguous.
    path:    [R, P] int32 accepted nodes, root first, P ≤ 64; need not ascend: all rows are read before any is written.
    lengths: [R] int32 nodes of each path that count.
    base:    [R] int row of the root: node j of request r lies in row base[r] + j.
    slots:   [R, N] int: node j of request r lies in row slots[r, j]. Requests share no row.
    Row i of the tree gets row path[i]. Nothing moves for a path 0, 1, 2, …; what lies behind a path is left.
    On a CUDA device one launch, no wait for the host. Node numbers must be in range (that would take a wait to check).
    Raises ValueError when the shapes disagree.
    """
    requests = path.shape[0]
    pooled = slots is not None
    if pooled == (base is not None) or cache.ndim != (4 if pooled else 5):
        raise ValueError("a cache [L, R, H, S, d] needs base, a pool [L, S, H, d] needs slots, and not both")
    if path.ndim != 2 or path.shape[1] > MAX_PATH or lengths.shape != (requests,):
        raise ValueError(f"path {list(path.shape)} and lengths {list(lengths.shape)} are not [R, ≤ {MAX_PATH}] and [R]")
    if (base is not None and (base.shape != (requests,) or cache.shape[1] != requests)) or (
        slots is not None and (slots.ndim != 2 or slots.shape[0] != requests)
    ):
        raise ValueError(f"cache {list(cache.shape)} and base or slots do not fit {requests} requests")
    if cache.numel() == 0 or path.numel() == 0:
        return
    if use_triton(cache) and cache.stride(-1) == 1:
        from ddscope_kernels.jit import kv

        kv.launch(cache, path, lengths, base, slots)
    else:
        _reference(cache, path, lengths, base, slots)


def _reference(cache: Tensor, path: Tensor, lengths: Tensor, base: Tensor | None, slots: Tensor | None) -> None:
    for r in range(path.shape[0]):
        nodes = path[r, : int(lengths[r])].long()
        places = torch.arange(len(nodes), device=nodes.device)
        if base is not None:
            first = int(base[r])
            cache[:, r, :, first + places] = cache[:, r][:, :, first + nodes]
        elif slots is not None:
            rows = slots[r].long()
            cache[:, rows[places]] = cache[:, rows[nodes]]
