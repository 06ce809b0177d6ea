"""Products of a decoder layer with an RMS norm before and a gate or a sum behind, for few rows; norm and gate alone.

The norm's weight is multiplied into x on the way in. Its scale is one number a row, so the squares are summed in the
loop of the product, and the scale is applied to what comes out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.batched.layer_plan import Few, Tiles


@triton.jit
def _prefetch(ptr, row, there, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """Ask for rows [n] of WIDTH 16-bit weights to be brought to the second-level cache, a line of 64 weights each."""
    LINES: tl.constexpr = (WIDTH + 63) // 64
    LINES2: tl.constexpr = triton.next_power_of_2(LINES)
    line = tl.minimum(tl.arange(0, LINES2), LINES - 1) * 64
    at = ptr + tl.where(there, row, 0).to(tl.int64)[:, None] * STRIDE + line[None, :]
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32,
                              is_pure=False, pack=1)  # fmt: skip


@triton.jit
def _finish(value, second, scale, m, n, there, bias_ptr, add_ptr, out_ptr, add_stride, N: tl.constexpr,
            NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """Scale, bias, gate, sum and store of a tile [m, n] of float32; second is the other half of a gated product."""
    if NORM:
        value = value * scale
    if BIAS:
        value += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    if GATED:
        if NORM:
            second = second * scale
        if BIAS:
            second += tl.load(bias_ptr + N + n, mask=n < N, other=0.0).to(tl.float32)
        value = value / (1.0 + tl.exp(-value)) * second
    place = m.to(tl.int64) * N + n
    if ADD:
        value += tl.load(add_ptr + m.to(tl.int64) * add_stride + n, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, value.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _few(x_ptr, norm_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, eps, x_stride, add_stride, ROWS: tl.constexpr,
         ROWS2: tl.constexpr, N: tl.constexpr, K: tl.constexpr, W_STRIDE: tl.constexpr, BLOCK_N: tl.constexpr,
         BLOCK_K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
         PDL: tl.constexpr):  # fmt: skip
    """BLOCK_N columns of all rows a program, without a tensor core: weights go from memory to where they are used."""
    m = tl.arange(0, ROWS2)[:, None, None]
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :, None]
    if PDL:
        gdc_launch_dependents()
        flat = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        _prefetch(w_ptr, flat, flat < N, K, W_STRIDE)
        if GATED:
            _prefetch(w_ptr + N * W_STRIDE, flat, flat < N, K, W_STRIDE)
        gdc_wait()
    acc = tl.zeros((ROWS2, BLOCK_N, BLOCK_K), tl.float32)
    acc_up = tl.zeros((ROWS2, BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((ROWS2, 1, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, None, :]
        there = (n < N) & (k < K)
        at = n.to(tl.int64) * W_STRIDE + k
        w = tl.load(w_ptr + at, mask=there, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + m * x_stride + k, mask=(m < ROWS) & (k < K), other=0.0).to(tl.float32)
        if NORM:
            squares += x * x
            x = x * tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        acc += x * w
        if GATED:
            up = tl.load(w_ptr + N * W_STRIDE + at, mask=there, other=0.0).to(tl.float32)
            acc_up += x * up
    value = tl.sum(acc, axis=2)
    second = value
    scale = value
    if GATED:
        second = tl.sum(acc_up, axis=2)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=2) / K + eps)
    rows = tl.arange(0, ROWS2)[:, None]
    columns = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    _finish(value, second, scale, rows, columns, (rows < ROWS) & (columns < N), bias_ptr, add_ptr, out_ptr, add_stride,
            N, NORM, GATED, ADD, BIAS)  # fmt: skip


@triton.jit
def _tile(x_ptr, norm_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, rows, eps, x_stride, add_stride, N: tl.constexpr,
          K: tl.constexpr, W_STRIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
          STAGES: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
          UPCAST: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BLOCK_M rows and BLOCK_N columns a program."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PDL:
        gdc_launch_dependents()
        _prefetch(w_ptr, n, n < N, K, W_STRIDE)
        if GATED:
            _prefetch(w_ptr + N * W_STRIDE, n, n < N, K, W_STRIDE)
        gdc_wait()
    x_row = x_ptr + m.to(tl.int64)[:, None] * x_stride
    w_row = w_ptr + n.to(tl.int64)[None, :] * W_STRIDE
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_row + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)
        w_there = (n < N)[None, :] & (k < K)[:, None]
        w = tl.load(w_row + k[:, None], mask=w_there, other=0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += wide * wide
            x = (wide * tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)[None, :]).to(x.dtype)
        if UPCAST:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc=acc, input_precision="ieee")
        if GATED:
            up = tl.load(w_row + N * W_STRIDE + k[:, None], mask=w_there, other=0.0)
            acc_up = tl.dot(x, up.to(x.dtype), acc=acc_up, input_precision="ieee")
    scale = acc
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=1) / K + eps)[:, None]
    _finish(acc, acc_up, scale, m[:, None], n[None, :], (m < rows)[:, None] & (n < N)[None, :], bias_ptr, add_ptr,
            out_ptr, add_stride, N, NORM, GATED, ADD, BIAS)  # fmt: skip


@triton.jit
def _tile_by_groups(x_ptr, norm_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, rows, eps, x_stride, add_stride,
                    N: tl.constexpr, K: tl.constexpr, W_STRIDE: tl.constexpr, BLOCK_M: tl.constexpr,
                    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr, STAGES: tl.constexpr,
                    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
                    UPCAST: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """As `_tile`; GROUPS of warps share the terms of each sum, which makes the chains of dependent products short."""
    PART: tl.constexpr = BLOCK_K // GROUPS
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PDL:
        gdc_launch_dependents()
        _prefetch(w_ptr, n, n < N, K, W_STRIDE)
        if GATED:
            _prefetch(w_ptr + N * W_STRIDE, n, n < N, K, W_STRIDE)
        gdc_wait()
    x_row = x_ptr + m.to(tl.int64)[None, :, None] * x_stride
    w_row = w_ptr + n.to(tl.int64)[None, None, :] * W_STRIDE
    group = tl.arange(0, GROUPS)[:, None, None] * PART
    acc = tl.zeros((GROUPS, BLOCK_M, BLOCK_N), tl.float32)
    acc_up = tl.zeros((GROUPS, BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((GROUPS, BLOCK_M, PART), tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        across = start + group + tl.arange(0, PART)[None, None, :]
        down = start + group + tl.arange(0, PART)[None, :, None]
        x = tl.load(x_row + across, mask=(m < rows)[None, :, None] & (across < K), other=0.0)
        w_there = (n < N)[None, None, :] & (down < K)
        w = tl.load(w_row + down, mask=w_there, other=0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += wide * wide
            x = (wide * tl.load(norm_ptr + across, mask=across < K, other=0.0).to(tl.float32)).to(x.dtype)
        if UPCAST:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc=acc, input_precision="ieee")
        if GATED:
            up = tl.load(w_row + N * W_STRIDE + down, mask=w_there, other=0.0)
            acc_up = tl.dot(x, up.to(x.dtype), acc=acc_up, input_precision="ieee")
    value = tl.sum(acc, axis=0)
    second, scale = value, value
    if GATED:
        second = tl.sum(acc_up, axis=0)
    if NORM:
        scale = tl.rsqrt(tl.sum(tl.sum(squares, axis=2), axis=0) / K + eps)[:, None]
    _finish(value, second, scale, m[:, None], n[None, :], (m < rows)[:, None] & (n < N)[None, :], bias_ptr, add_ptr,
            out_ptr, add_stride, N, NORM, GATED, ADD, BIAS)  # fmt: skip


@triton.jit
def _norm(x_ptr, norm_ptr, out_ptr, eps, x_stride, K: tl.constexpr, K2: tl.constexpr, PDL: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, K2)
    weight = tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(x_ptr + row * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
    value = x * tl.rsqrt(tl.sum(x * x, axis=0) / K + eps) * weight
    tl.store(out_ptr + row * K + k, value.to(out_ptr.dtype.element_ty), mask=k < K)


@triton.jit
def _gate(x_ptr, out_ptr, total, N: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """BLOCK of the total entries of silu(gate) · up a program; a row of x is N of the one and N of the other."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = x_ptr + i // N * (2 * N) + i % N
    gate = tl.load(at, mask=i < total, other=0.0).to(tl.float32)
    up = tl.load(at + N, mask=i < total, other=0.0).to(tl.float32)
    tl.store(out_ptr + i, (gate / (1.0 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty), mask=i < total)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    how: Few | Tiles,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    add: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """Arguments as of `batched.layer`, checked, none empty; norm, gate and add as there, by tiles of `how`."""
    rows, depth = x.shape
    x, weight = _flat(x), _flat(weight)
    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    add = None if add is None else _flat(add)
    pdl = pdl and x.is_cuda
    pointers = (x, x if norm is None else norm.contiguous(), weight, x if bias is None else bias.contiguous(),
                x if add is None else add, out)  # fmt: skip
    strides = x.stride(0), 0 if add is None else add.stride(0)
    modes = {"NORM": norm is not None, "GATED": gated, "ADD": add is not None, "BIAS": bias is not None, "PDL": pdl}
    sizes = {"N": columns, "K": depth, "W_STRIDE": weight.stride(0)}
    launch = {"num_warps": how.warps, "launch_pdl": True} if pdl else {"num_warps": how.warps}
    if isinstance(how, Few):
        _few[(triton.cdiv(columns, how.block_n),)](
            *pointers, eps, *strides, ROWS=rows, ROWS2=power_of_two(rows), BLOCK_N=how.block_n, BLOCK_K=how.block_k,
            **sizes, **modes, **launch)  # fmt: skip
        return out
    tiles = {"BLOCK_M": how.block_m, "BLOCK_N": how.block_n, "BLOCK_K": how.block_k, "STAGES": how.stages}
    upcast = x.dtype == torch.bfloat16 and not x.is_cuda
    grid = triton.cdiv(rows, how.block_m), triton.cdiv(columns, how.block_n)
    if how.groups == 1:
        _tile[grid](*pointers, rows, eps, *strides, UPCAST=upcast, **sizes, **tiles, **modes, **launch)
    else:
        _tile_by_groups[grid](*pointers, rows, eps, *strides, GROUPS=how.groups, UPCAST=upcast, **sizes, **tiles,
                              **modes, **launch)  # fmt: skip
    return out


def norm(x: Tensor, weight: Tensor, eps: float, pdl: bool = False) -> Tensor:
    """Arguments as of `batched.layer.rms_norm`, checked, not empty."""
    flat = _flat(x.reshape(-1, x.shape[-1]))
    rows, depth = flat.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    pdl = pdl and x.is_cuda
    depth2 = power_of_two(depth)
    launch = {"launch_pdl": True} if pdl else {}
    _norm[(rows,)](flat, weight.contiguous(), out, eps, flat.stride(0), depth, depth2, pdl,
                   num_warps=min(8, max(1, depth2 // 256)), **launch)  # fmt: skip
    return out


def gate(x: Tensor, pdl: bool = False) -> Tensor:
    """[M, I] = silu of the first half of each row of x [M, 2 I], times its second half; not empty."""
    rows, columns = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    pdl = pdl and x.is_cuda
    launch = {"launch_pdl": True} if pdl else {}
    block = 1024
    _gate[(triton.cdiv(out.numel(), block),)](x.contiguous(), out, out.numel(), columns, block, pdl, num_warps=4,
                                              **launch)  # fmt: skip
    return out


def _flat(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
