"""Rotation of queries, rotation of K and storing of K and V in caches, and gathering of rows: one launch each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.jit.layer_ends import wait


@triton.jit
def _turn(a, b, cos_ptr, sin_ptr, position, i, HALF: tl.constexpr):
    """Halves of heads [h, i] at one position → the same rotated."""
    at = position * (2 * HALF) + i
    there = i < HALF
    cos_a = tl.load(cos_ptr + at, mask=there, other=0.0)
    cos_b = tl.load(cos_ptr + at + HALF, mask=there, other=0.0)
    sin_a = tl.load(sin_ptr + at, mask=there, other=0.0)
    sin_b = tl.load(sin_ptr + at + HALF, mask=there, other=0.0)
    return a * cos_a + b * sin_a, b * cos_b + a * sin_b


@triton.jit
def _normed(a, b, norm_ptr, head, i, there, eps, HALF: tl.constexpr):
    """Halves of heads [h, i] → the same under an RMS norm with the weights of each head."""
    scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)[:, None]
    at = norm_ptr + head * (2 * HALF) + i
    weight_a = tl.load(at, mask=there, other=0.0).to(tl.float32)
    weight_b = tl.load(at + HALF, mask=there, other=0.0).to(tl.float32)
    return a * scale * weight_a, b * scale * weight_b


@triton.jit
def _put(ptr, a, b, i, there, HALF: tl.constexpr):
    tl.store(ptr + i, a.to(ptr.dtype.element_ty), mask=there)
    tl.store(ptr + HALF + i, b.to(ptr.dtype.element_ty), mask=there)


@triton.jit
def _rotate(x_ptr, cos_ptr, sin_ptr, positions_ptr, k_ptr, v_ptr, base_ptr, norm_ptr, counts_ptr, out_ptr, eps, table,
            capacity, k_r, k_h, k_s, v_r, v_h, v_s, N: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr,
            HALF: tl.constexpr, HALF2: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr, COUNTED: tl.constexpr,
            PDL: tl.constexpr):  # fmt: skip
    """HEADS heads of one node a program."""
    row = tl.program_id(0)
    request, node = (row // N).to(tl.int64), row % N
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    i = tl.arange(0, HALF2)[None, :]
    if PDL:
        wait(PDL)
    there = (head < HQ + 2 * HKV) & (i < HALF)
    at = x_ptr + (row.to(tl.int64) * (HQ + 2 * HKV) + head) * (2 * HALF) + i
    first = tl.load(at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=there, other=0.0).to(tl.float32)
    position = tl.minimum(tl.maximum(tl.load(positions_ptr + row).to(tl.int64), 0), table - 1)
    place = tl.load(base_ptr + request).to(tl.int64) + node
    turned = there & (head < HQ + HKV)
    a, b = first, second
    if NORM:
        a, b = _normed(a, b, norm_ptr, head, i, turned, eps, HALF)
    a, b = _turn(a, b, cos_ptr, sin_ptr, position, i, HALF)
    _put(out_ptr + (row.to(tl.int64) * HQ + head) * (2 * HALF), a, b, i, there & (head < HQ), HALF)
    kept = (place >= 0) & (place < capacity)
    if COUNTED:
        kept = kept & (node <= tl.load(counts_ptr + request))
    k_head, v_head = (head - HQ).to(tl.int64), (head - HQ - HKV).to(tl.int64)
    _put(k_ptr + request * k_r + place * k_s + k_head * k_h, a, b, i, turned & (head >= HQ) & kept, HALF)
    _put(v_ptr + request * v_r + place * v_s + v_head * v_h, first, second, i, there & (v_head >= 0) & kept, HALF)


@triton.jit
def _context(x_ptr, cos_ptr, sin_ptr, base_ptr, norm_ptr, lengths_ptr, k_ptr, v_ptr, eps, table, capacity, k_l, k_r,
             k_h, k_s, v_l, v_r, v_h, v_s, P: tl.constexpr, LAYERS: tl.constexpr, HKV: tl.constexpr,
             HALF: tl.constexpr, HALF2: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr, COUNTED: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    """All heads of one row and one layer a program."""
    row, layer = tl.program_id(0), tl.program_id(1)
    request, j = (row // P).to(tl.int64), row % P
    head = tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, HALF2)[None, :]
    if PDL:
        wait(PDL)
    there = (head < HKV) & (i < HALF)
    at = x_ptr + ((row.to(tl.int64) * LAYERS + layer) * 2 * HKV + head) * (2 * HALF) + i
    a = tl.load(at, mask=there, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=there, other=0.0).to(tl.float32)
    v_a = tl.load(at + HKV * 2 * HALF, mask=there, other=0.0)
    v_b = tl.load(at + HKV * 2 * HALF + HALF, mask=there, other=0.0)
    place = tl.load(base_ptr + request).to(tl.int64) + j
    position = tl.minimum(tl.maximum(place, 0), table - 1)
    if NORM:
        a, b = _normed(a, b, norm_ptr, layer, i, i < HALF, eps, HALF)
    a, b = _turn(a, b, cos_ptr, sin_ptr, position, i, HALF)
    kept = there & (place >= 0) & (place < capacity)
    if COUNTED:
        kept = kept & (j < tl.load(lengths_ptr + request))
    far = layer.to(tl.int64)
    _put(k_ptr + far * k_l + request * k_r + place * k_s + head.to(tl.int64) * k_h, a, b, i, kept, HALF)
    _put(v_ptr + far * v_l + request * v_r + place * v_s + head.to(tl.int64) * v_h, v_a, v_b, i, kept, HALF)


@triton.jit
def _gather(p0, p1, p2, p3, p4, p5, p6, p7, path_ptr, out_ptr, P: tl.constexpr, N: tl.constexpr, H: tl.constexpr,
            BLOCK: tl.constexpr, PIECES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BLOCK entries of one row of one piece a program."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    h = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        wait(PDL)
    node = tl.minimum(tl.maximum(tl.load(path_ptr + row).to(tl.int64), 0), N - 1)
    source = p0
    if piece == 1:
        source = p1
    if piece == 2:
        source = p2
    if piece == 3:
        source = p3
    if piece == 4:
        source = p4
    if piece == 5:
        source = p5
    if piece == 6:
        source = p6
    if piece == 7:
        source = p7
    value = tl.load(source + (row // P * N + node) * H + h, mask=h < H)
    tl.store(out_ptr + (row * PIECES + piece) * H + h, value, mask=h < H)


def rotate(
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
    pdl: int,
) -> Tensor:
    """Arguments as of `batched.layer.rotate_into`, checked, qkv not empty."""
    requests, nodes, all_heads, width = qkv.shape
    kv_heads, half = (all_heads - heads) // 2, width // 2
    out = torch.empty(requests, nodes, heads, width, dtype=qkv.dtype, device=qkv.device)
    cos, sin = (table.contiguous() for table in tables)
    half2 = power_of_two(half)
    block = min(power_of_two(all_heads), max(1, 1024 // half2))
    _rotate[(requests * nodes, triton.cdiv(all_heads, block))](
        qkv.contiguous(), cos, sin, positions.contiguous(), k_cache, v_cache, base.contiguous(),
        cos if qk_norm is None else qk_norm.contiguous(), base if counts is None else counts.contiguous(), out, eps,
        len(cos), k_cache.shape[2], *k_cache.stride()[:3], *v_cache.stride()[:3], nodes, heads, kv_heads, half, half2,
        block, qk_norm is not None, counts is not None, **_options(qkv, pdl, block * half2))  # fmt: skip
    return out


def context(
    kv: Tensor,
    tables: tuple[Tensor, Tensor],
    base: Tensor,
    k_norm: Tensor | None,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    pdl: int,
) -> None:
    """Arguments as of `batched.layer.context_into`, checked, kv not empty."""
    requests, rows, layers, _, kv_heads, width = kv.shape
    cos, sin = (table.contiguous() for table in tables)
    half = width // 2
    half2, heads2 = power_of_two(half), power_of_two(kv_heads)
    _context[(requests * rows, layers)](
        kv.contiguous(), cos, sin, base.contiguous(), cos if k_norm is None else k_norm.contiguous(),
        base if lengths is None else lengths.contiguous(), k_cache, v_cache, eps, len(cos), k_cache.shape[3],
        *k_cache.stride()[:4], *v_cache.stride()[:4], rows, layers, kv_heads, half, half2, heads2, k_norm is not None,
        lengths is not None, **_options(kv, pdl, heads2 * half2))  # fmt: skip


def gather(pieces: Sequence[Tensor], path: Tensor, pdl: int) -> Tensor:
    """Arguments as of `batched.layer.gather_rows`, checked, not empty, at most eight pieces."""
    requests, nodes, width = pieces[0].shape
    rows = path.shape[1]
    out = torch.empty(requests, rows, len(pieces) * width, dtype=pieces[0].dtype, device=path.device)
    block = min(1024, power_of_two(width))
    eight = [pieces[min(i, len(pieces) - 1)].contiguous() for i in range(8)]
    _gather[(requests * rows, len(pieces), triton.cdiv(width, block))](
        *eight, path.contiguous(), out, rows, nodes, width, block, len(pieces),
        **_options(out, pdl, block))  # fmt: skip
    return out


def _options(x: Tensor, pdl: int, size: int) -> dict[str, int | bool]:
    """The last constexpr and the launch's options; size: entries of a program's tile."""
    warps = {"num_warps": max(1, min(4, size // 128))}
    return {"PDL": int(pdl), "launch_pdl": True, **warps} if pdl and x.is_cuda else {"PDL": 0, **warps}
