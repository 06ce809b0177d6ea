"""Rows of a decoder layer that are moved: queries rotated, K and V rotated into caches, rows gathered side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddscope_kernels.batched.backend import use_triton
from ddscope_kernels.batched.layer_plan import early_launch

MOST_PIECES = 8
"""Of more, rows are gathered by torch."""


def rotate_into(
    qkv: Tensor,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    base: Tensor,
    *,
    heads: int,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
    counts: Tensor | None = None,
) -> Tensor:
    """[R, N, Hq, d] the queries, rotated; K, rotated, and V go to the caches. One launch.

    qkv:       [R, N, Hq + 2 Hkv, d] queries, K and V of N nodes of R requests; heads is Hq; d is even.
    tables:    cos and sin [P, d] float32: y = x · cos + roll(x, d / 2) · sin, so the first half of sin is negated.
    positions: [R, N] int64 rows of the tables; clamped to 0 … P − 1.
    k_cache, v_cache: [R, Hkv, S, d], dtype of qkv, any strides with d contiguous. Node j of request r goes to row
               base[r] + j; a row outside 0 … S − 1 is not written.
    base:      [R] int.
    qk_norm:   [Hq + Hkv, d] weights of an RMS norm over d of each query and K head before the rotation, or None.
    counts:    [R] int32 as of TreeBatch: nodes behind counts[r] are not written to the caches, and their queries may
               hold anything finite or not; N − 1 where it is None.
    Norm and rotation are float32 (float64 for float64). Queries are not scaled: `tree_attention` does that.
    Nothing waits for the host on a CUDA device. Raises ValueError when shapes or dtypes disagree.
    """
    check_rotation(tuple(qkv.shape), qkv.dtype, tables, positions, k_cache, v_cache, base, heads, qk_norm)
    if use_triton(qkv) and qkv.numel() and qkv.dtype != torch.float64 and k_cache.stride(3) == v_cache.stride(3) == 1:
        from ddscope_kernels.jit import layer_rows

        pdl = early_launch(qkv.shape[0] * qkv.shape[1])
        return layer_rows.rotate(qkv, tables, positions, k_cache, v_cache, base, heads, qk_norm, eps, counts, pdl)
    return _rotate_reference(qkv, tables, positions, k_cache, v_cache, base, heads, qk_norm, eps, counts)


def context_into(
    kv: Tensor,
    tables: tuple[Tensor, Tensor],
    base: Tensor,
    k_norm: Tensor | None,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None = None,
) -> None:
    """Write K (normed and rotated) and V of P new rows of context to the caches of all layers. One launch.

    kv:      [R, P, layers, 2, Hkv, d]: one product's K and V of all layers; d is even.
    tables:  cos and sin [positions, d] float32 as of `rotate_into`.
    base:    [R] int: row j of request r stands at position base[r] + j and goes to that row of the caches; a row
             outside 0 … S − 1 is not written, positions are clamped to the tables.
    k_norm:  [layers, d] weights of an RMS norm over d of each K head before the rotation, or None.
    k_cache, v_cache: [layers, R, Hkv, S, d], dtype of kv, any strides with d contiguous.
    lengths: [R] int32 rows that count: row j is written where j < lengths[r]; all P where it is None.
    Norm and rotation are float32 (float64 for float64). Nothing waits for the host on a CUDA device.
    Raises ValueError when shapes or dtypes disagree.
    """
    if kv.ndim != 6 or kv.shape[3] != 2 or kv.shape[5] % 2 or k_cache.ndim != 5:
        raise ValueError(f"kv {list(kv.shape)} is not [R, P, layers, 2, Hkv, d], d even, or k_cache not of five dims")
    requests, _, layers, _, kv_heads, width = kv.shape
    shape = (layers, requests, kv_heads, k_cache.shape[3], width)
    if k_cache.shape != shape or v_cache.shape != shape or k_cache.dtype != kv.dtype or v_cache.dtype != kv.dtype:
        raise ValueError(f"kv {list(kv.shape)} {kv.dtype} and k_cache {list(k_cache.shape)} do not fit")
    if base.shape != (requests,) or (lengths is not None and lengths.shape != (requests,)):
        raise ValueError(f"base {list(base.shape)} or lengths are not [{requests}]")
    if k_norm is not None and k_norm.shape != (layers, width):
        raise ValueError(f"k_norm {list(k_norm.shape)} is not [{layers}, {width}]")
    _check_tables(tables, width)
    if use_triton(kv) and kv.numel() and kv.dtype != torch.float64 and k_cache.stride(4) == v_cache.stride(4) == 1:
        from ddscope_kernels.jit import layer_rows

        layer_rows.context(
            kv, tables, base, k_norm, eps, k_cache, v_cache, lengths, early_launch(kv.shape[0] * kv.shape[1])
        )
    else:
        _context_reference(kv, tables, base, k_norm, eps, k_cache, v_cache, lengths)


def gather_rows(pieces: Sequence[Tensor], path: Tensor) -> Tensor:
    """[R, P, L · H]: row path[r, i] of each of L pieces, side by side. One launch.

    pieces: L tensors [R, N, H] of one dtype; path: [R, P] int, clamped to 0 … N − 1.
    Nothing waits for the host on a CUDA device. Raises ValueError when shapes or dtypes disagree.
    """
    if not pieces or pieces[0].ndim != 3 or path.ndim != 2 or path.shape[0] != pieces[0].shape[0]:
        raise ValueError(f"{len(pieces)} pieces and path {list(path.shape)} are not [R, N, H] each and [R, P]")
    first = pieces[0]
    if any(piece.shape != first.shape or piece.dtype != first.dtype for piece in pieces):
        raise ValueError("pieces of different shapes or dtypes")
    if not first.shape[1]:
        raise ValueError(f"pieces {list(first.shape)} have no rows to take")
    if use_triton(first) and first.numel() and path.numel() and len(pieces) <= MOST_PIECES:
        from ddscope_kernels.jit import layer_rows

        return layer_rows.gather(pieces, path, early_launch(path.numel()))
    return _gather_reference(pieces, path)


def check_rotation(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    base: Tensor,
    heads: int,
    qk_norm: Tensor | None,
) -> None:
    """Raises ValueError when the arguments of `rotate_into` disagree with a qkv of this shape and dtype."""
    if len(shape) != 4:
        raise ValueError(f"qkv {list(shape)} is not [R, N, Hq + 2 Hkv, d]")
    requests, nodes, all_heads, width = shape
    kv_heads = (all_heads - heads) // 2
    if kv_heads < 1 or heads < 1 or (all_heads - heads) % 2 or width % 2:
        raise ValueError(f"qkv {list(shape)} does not hold {heads} heads and two times as many others, d even")
    cache = (requests, kv_heads, k_cache.shape[2] if k_cache.ndim == 4 else 0, width)
    if k_cache.shape != cache or v_cache.shape != cache or k_cache.dtype != dtype or v_cache.dtype != dtype:
        raise ValueError(f"qkv {list(shape)} {dtype} and k_cache {list(k_cache.shape)} do not fit")
    if positions.shape != (requests, nodes) or base.shape != (requests,):
        raise ValueError(f"positions {list(positions.shape)} and base {list(base.shape)} do not fit {list(shape)}")
    if qk_norm is not None and qk_norm.shape != (heads + kv_heads, width):
        raise ValueError(f"qk_norm {list(qk_norm.shape)} is not [{heads + kv_heads}, {width}]")
    _check_tables(tables, width)


def _check_tables(tables: tuple[Tensor, Tensor], width: int) -> None:
    cos, sin = tables
    if cos.ndim != 2 or cos.shape != sin.shape or cos.shape[1] != width or not cos.shape[0]:
        raise ValueError(f"tables {list(cos.shape)} and {list(sin.shape)} are not [P, {width}]")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32:
        raise ValueError(f"tables are {cos.dtype} and {sin.dtype}, not float32")


def _rotate_reference(
    qkv: Tensor,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    base: Tensor,
    heads: int,
    qk_norm: Tensor | None,
    eps: float,
    counts: Tensor | None,
) -> Tensor:
    all_heads = qkv.shape[2]
    kv_heads = (all_heads - heads) // 2
    q_k, v = qkv[:, :, : heads + kv_heads], qkv[:, :, heads + kv_heads :]
    turned = _turned(q_k, tables, positions[..., None], qk_norm, eps)
    counted = None if counts is None else counts + 1
    _put(k_cache, turned[:, :, heads:], base, counted)
    _put(v_cache, v, base, counted)
    return turned[:, :, :heads].contiguous()


def _context_reference(
    kv: Tensor,
    tables: tuple[Tensor, Tensor],
    base: Tensor,
    k_norm: Tensor | None,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
) -> None:
    k, v = kv.unbind(3)  # [R, P, layers, Hkv, d]
    positions = base.long()[:, None] + torch.arange(kv.shape[1], device=kv.device)
    k = _turned(k, tables, positions[..., None, None], None if k_norm is None else k_norm[:, None], eps)
    for layer in range(kv.shape[2]):
        _put(k_cache[layer], k[:, :, layer], base, lengths)
        _put(v_cache[layer], v[:, :, layer], base, lengths)


def _turned(x: Tensor, tables: tuple[Tensor, Tensor], positions: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    """x [..., d] normed and rotated, in its dtype; positions and norm broadcast against all but the last dimension."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = x.to(wide)
    if norm is not None:
        y = y * (y.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.to(wide)
    cos, sin = (table[positions.clamp(0, len(table) - 1)].to(wide) for table in tables)
    return (y * cos + y.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


def _put(cache: Tensor, rows: Tensor, base: Tensor, counted: Tensor | None) -> None:
    """rows [R, N, H, d] to cache [R, H, S, d] from row base[r] on, where j < counted[r] and the row exists.

    Without a wait for the host, so that the reference can be captured too: a row that is not to be written gets what it
    has, which needs every row of a request's N to be told apart: hence the gather by the cache's row, not by the node.
    """
    here = torch.arange(cache.shape[2], device=cache.device)[None] - base.long()[:, None]  # node of each cache row
    wanted = (here >= 0) & (here < (rows.shape[1] if counted is None else counted.long()[:, None]))
    wanted &= here < rows.shape[1]
    index = here.clamp(0, rows.shape[1] - 1)[:, :, None, None].expand(-1, -1, *rows.shape[2:])
    moved = rows.gather(1, index).transpose(1, 2)
    cache.copy_(torch.where(wanted[:, None, :, None], moved, cache))


def _gather_reference(pieces: Sequence[Tensor], path: Tensor) -> Tensor:
    index = path.long().clamp(0, pieces[0].shape[1] - 1)[:, :, None].expand(-1, -1, pieces[0].shape[2])
    return torch.cat([piece.gather(1, index) for piece in pieces], dim=-1)
