"""Products of a decoder layer with an RMS norm before and a gate, a sum or a rotation behind; norm and gate alone.

Of few rows the norm is in the product: its weight is multiplied in on the way, and its scale, which is one number a
row, is applied to what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from ddscope_kernels.batched.backend import power_of_two
from ddscope_kernels.batched.layer_plan import Few, Tiles, Whole
from ddscope_kernels.jit.layer_ends import arrived, fetch, finish, prepare, wait, weight_row


@triton.jit
def _terms(x_ptr, norm_ptr, x_stride, m, k, ROWS: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr):
    """x [m, 1, k] times the norm's weight, and its squares."""
    x = tl.load(x_ptr + m * x_stride + k, mask=(m < ROWS) & (k < K), other=0.0).to(tl.float32)
    squares = x * x
    if NORM:
        x = x * tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    return x, squares


@triton.jit
def _few(x_ptr, norm_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, rotation, eps, x_stride, add_stride, ROWS: tl.constexpr,
         ROWS2: tl.constexpr, N: tl.constexpr, K: tl.constexpr, W_STRIDE: tl.constexpr, SECOND: tl.constexpr,
         NODES: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, COUNTED: tl.constexpr,
         BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
         BIAS: tl.constexpr, INTERPRETED: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BLOCK_N columns of all rows a program, without a tensor core: weights go from memory to where they are used."""
    m = tl.arange(0, ROWS2)[:, None, None]
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    n = column[None, :, None]
    k = tl.arange(0, BLOCK_K)[None, None, :]
    rows, columns = tl.arange(0, ROWS2)[:, None], column[None, :]
    at = w_ptr + weight_row(n, HALF).to(tl.int64) * W_STRIDE + k
    if K <= BLOCK_K:  # one step: the weights, which no kernel before this one writes, can be asked for at once
        w = tl.load(at, mask=(n < N) & (k < K), other=0.0)
        up = w
        if SECOND > 0:
            up = tl.load(at + SECOND * W_STRIDE, mask=(n < N) & (k < K), other=0.0)
        if PDL:
            wait(PDL)
        prepared = prepare(rows, columns, ROWS, bias_ptr, add_ptr, add_stride, rotation, N, SECOND, HALF, ADD, BIAS)
        x, squares = _terms(x_ptr, norm_ptr, x_stride, m, k, ROWS, K, NORM)
        acc = x * w.to(tl.float32)
        acc_up = acc
        if SECOND > 0:
            acc_up = x * up.to(tl.float32)
    else:
        if PDL:
            fetch(w_ptr, column, N, K, W_STRIDE, SECOND, HALF)
            wait(PDL)
        prepared = prepare(rows, columns, ROWS, bias_ptr, add_ptr, add_stride, rotation, N, SECOND, HALF, ADD, BIAS)
        acc = tl.zeros((ROWS2, BLOCK_N, BLOCK_K), tl.float32)
        acc_up = tl.zeros((ROWS2, BLOCK_N, BLOCK_K), tl.float32)
        squares = tl.zeros((ROWS2, 1, BLOCK_K), tl.float32)
        for start in range(0, K, BLOCK_K):
            there = (n < N) & (start + k < K)
            x, more = _terms(x_ptr, norm_ptr, x_stride, m, start + k, ROWS, K, NORM)
            squares += more
            acc += x * tl.load(at + start, mask=there, other=0.0).to(tl.float32)
            if SECOND > 0:
                acc_up += x * tl.load(at + SECOND * W_STRIDE + start, mask=there, other=0.0).to(tl.float32)
    value = tl.sum(acc, axis=2)
    second, scale = value, value
    if SECOND > 0:
        second = tl.sum(acc_up, axis=2)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=2) / K + eps)
    finish(value, second, scale, prepared, rows, columns, ROWS, out_ptr, rotation, N, NODES, HQ, HKV, HALF, COUNTED,
           NORM, GATED, INTERPRETED)  # fmt: skip


@triton.jit
def _tile(x_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, rows, x_stride, add_stride, N: tl.constexpr, K: tl.constexpr,
          W_STRIDE: tl.constexpr, SECOND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
          BLOCK_K: tl.constexpr, STAGES: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
          INTERPRETED: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BLOCK_M rows and BLOCK_N columns a program, BLOCK_K terms of a sum at a time; x is normed already."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PDL:
        if tl.program_id(0) == 0:  # other rows need the same weights
            fetch(w_ptr, n, N, K, W_STRIDE, SECOND, 0)
        wait(PDL)
    prepared = prepare(m[:, None], n[None, :], rows, bias_ptr, add_ptr, add_stride, None, N, SECOND, 0, ADD, BIAS)
    x_row = x_ptr + m.to(tl.int64)[:, None] * x_stride
    w_row = w_ptr + n.to(tl.int64)[None, :] * W_STRIDE
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_row + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)
        w_there = (n < N)[None, :] & (k < K)[:, None]
        w = tl.load(w_row + k[:, None], mask=w_there, other=0.0)
        if INTERPRETED:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc=acc, input_precision="ieee")
        if SECOND > 0:
            up = tl.load(w_row + SECOND * W_STRIDE + k[:, None], mask=w_there, other=0.0)
            acc_up = tl.dot(x, up.to(x.dtype), acc=acc_up, input_precision="ieee")
    finish(acc, acc_up, acc, prepared, m[:, None], n[None, :], rows, out_ptr, None, N, 1, 0, 0, 0, False, False,
           GATED, INTERPRETED)  # fmt: skip


@triton.jit
def _weights(w_row, there, first, K: tl.constexpr, GROUPS: tl.constexpr, PIECE: tl.constexpr):
    """[GROUPS, PIECE / GROUPS, n] weights of PIECE terms from `first` on; there: [1, 1, n]."""
    PART: tl.constexpr = PIECE // GROUPS
    k = first + tl.arange(0, GROUPS)[:, None, None] * PART + tl.arange(0, PART)[None, :, None]
    return tl.load(w_row + k, mask=there & (k < K), other=0.0)


@triton.jit
def _piece(w_row, norm_ptr, there, first, K: tl.constexpr, W_STRIDE: tl.constexpr, SECOND: tl.constexpr,
           GROUPS: tl.constexpr, PIECE: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    """A piece's weights, those of the other halves, and the norm's; the first again for what is not wanted."""
    w = _weights(w_row, there, first, K, GROUPS, PIECE)
    up, norm = w, w
    if NORM:
        norm = _weights(norm_ptr, tl.full((1, 1, 1), 1, tl.int1), first, K, GROUPS, PIECE)
    if SECOND > 0:
        up = _weights(w_row + SECOND * W_STRIDE, there, first, K, GROUPS, PIECE)
    return w, up, norm


@triton.jit
def _normed(w, up, norm, NORM: tl.constexpr, SECOND: tl.constexpr, INTERPRETED: tl.constexpr):
    """Weights times the norm's."""
    if not INTERPRETED:
        w = arrived(w)
        if SECOND > 0:
            up = arrived(up)
        if NORM:
            norm = arrived(norm)
    if NORM:
        w = (w.to(tl.float32) * norm.to(tl.float32)).to(w.dtype)
        if SECOND > 0:
            up = (up.to(tl.float32) * norm.to(tl.float32)).to(up.dtype)
    return w, up


@triton.jit
def _values(x_row, there, first, K: tl.constexpr, GROUPS: tl.constexpr, PIECE: tl.constexpr):
    """[GROUPS, m, PIECE / GROUPS] values of PIECE terms from `first` on; there: [1, m, 1]."""
    PART: tl.constexpr = PIECE // GROUPS
    k = first + tl.arange(0, GROUPS)[:, None, None] * PART + tl.arange(0, PART)[None, None, :]
    return tl.load(x_row + k, mask=there & (k < K), other=0.0)


@triton.jit
def _absorb(sums, x, w, up, NORM: tl.constexpr, SECOND: tl.constexpr, INTERPRETED: tl.constexpr):
    """The sums after one more piece: of x w, of x up, and of x xᵀ, on whose diagonal are those of x²."""
    acc, acc_up, squares = sums
    if INTERPRETED:
        x, w, up = x.to(tl.float32), w.to(tl.float32), up.to(tl.float32)
    acc = tl.dot(x, w, acc=acc, input_precision="ieee")
    if SECOND > 0:
        acc_up = tl.dot(x, up, acc=acc_up, input_precision="ieee")
    if NORM:
        squares = tl.dot(x, tl.permute(x, (0, 2, 1)), acc=squares, input_precision="ieee")
    return acc, acc_up, squares


@triton.jit
def _joined(sums, eps, K: tl.constexpr, BLOCK_M: tl.constexpr, NORM: tl.constexpr, SECOND: tl.constexpr):
    """Sums of all groups, and the scale of each row."""
    acc, acc_up, squares = sums
    value = tl.sum(acc, axis=0)
    second, scale = value, value
    if SECOND > 0:
        second = tl.sum(acc_up, axis=0)
    if NORM:
        i = tl.arange(0, BLOCK_M)
        own = tl.sum(tl.where((i[:, None] == i[None, :])[None], squares, 0.0), axis=2)
        scale = tl.rsqrt(tl.sum(own, axis=0) / K + eps)[:, None]
    return value, second, scale


@triton.jit
def _whole(x_ptr, norm_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, rotation, rows, eps, x_stride, add_stride,
           N: tl.constexpr, K: tl.constexpr, W_STRIDE: tl.constexpr, SECOND: tl.constexpr, NODES: tl.constexpr,
           HQ: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, COUNTED: tl.constexpr, BLOCK_M: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, REST: tl.constexpr, GROUPS: tl.constexpr, NORM: tl.constexpr,
           GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, INTERPRETED: tl.constexpr,
           PDL: tl.constexpr):  # fmt: skip
    """BLOCK_M rows and BLOCK_N columns a program, all their terms at once: BLOCK_K of them, and REST more.

    GROUPS of warps share the terms of each sum, so that chains of dependent products are short. Weights are asked for,
    and multiplied with the norm's, before the kernels that make x have ended. What is read then is asked for before
    anything of it is used. x² comes from a product of its own, since that takes x from where the other one does.
    """
    if PDL == 1:
        gdc_launch_dependents()
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    w_row = w_ptr + weight_row(n, HALF).to(tl.int64)[None, None, :] * W_STRIDE
    columns = (n < N)[None, None, :]
    w, up, norm = _piece(w_row, norm_ptr, columns, 0, K, W_STRIDE, SECOND, GROUPS, BLOCK_K, NORM)
    w_rest, up_rest, norm_rest = w, up, norm
    if REST > 0:
        w_rest, up_rest, norm_rest = _piece(w_row, norm_ptr, columns, BLOCK_K, K, W_STRIDE, SECOND, GROUPS, REST, NORM)
    if PDL:
        w, up = _normed(w, up, norm, NORM, SECOND, INTERPRETED)
        if REST > 0:
            w_rest, up_rest = _normed(w_rest, up_rest, norm_rest, NORM, SECOND, INTERPRETED)
        wait(PDL)
    there = (m < rows)[None, :, None]
    x_row = x_ptr + m.to(tl.int64)[None, :, None] * x_stride
    x = _values(x_row, there, 0, K, GROUPS, BLOCK_K)
    x_rest = x
    if REST > 0:
        x_rest = _values(x_row, there, BLOCK_K, K, GROUPS, REST)
    prepared = prepare(m[:, None], n[None, :], rows, bias_ptr, add_ptr, add_stride, rotation, N, SECOND, HALF, ADD,
                       BIAS)  # fmt: skip
    if not PDL:
        w, up = _normed(w, up, norm, NORM, SECOND, INTERPRETED)
        if REST > 0:
            w_rest, up_rest = _normed(w_rest, up_rest, norm_rest, NORM, SECOND, INTERPRETED)
    if not INTERPRETED:
        x = arrived(x)
        if REST > 0:
            x_rest = arrived(x_rest)
    acc = tl.zeros((GROUPS, BLOCK_M, BLOCK_N), tl.float32)
    sums = _absorb((acc, acc, tl.zeros((GROUPS, BLOCK_M, BLOCK_M), tl.float32)), x, w, up, NORM, SECOND, INTERPRETED)
    if REST > 0:
        sums = _absorb(sums, x_rest, w_rest, up_rest, NORM, SECOND, INTERPRETED)
    value, second, scale = _joined(sums, eps, K, BLOCK_M, NORM, SECOND)
    finish(value, second, scale, prepared, m[:, None], n[None, :], rows, out_ptr, rotation, N, NODES, HQ, HKV, HALF,
           COUNTED, NORM, GATED, INTERPRETED)  # fmt: skip


@triton.jit
def _norm(x_ptr, norm_ptr, out_ptr, eps, x_stride, K: tl.constexpr, K2: tl.constexpr, PDL: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, K2)
    weight = tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    if PDL:
        wait(PDL)
    x = tl.load(x_ptr + row * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
    value = x * tl.rsqrt(tl.sum(x * x, axis=0) / K + eps) * weight
    tl.store(out_ptr + row * K + k, value.to(out_ptr.dtype.element_ty), mask=k < K)


@triton.jit
def _gate(x_ptr, out_ptr, total, N: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """BLOCK of the total entries of silu(gate) · up a program; a row of x is N of the one and N of the other."""
    if PDL:
        wait(PDL)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = x_ptr + i // N * (2 * N) + i % N
    gate = tl.load(at, mask=i < total, other=0.0).to(tl.float32)
    up = tl.load(at + N, mask=i < total, other=0.0).to(tl.float32)
    tl.store(out_ptr + i, (gate / (1.0 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty), mask=i < total)


@dataclass(frozen=True, slots=True)
class Into:
    """Where rotated rows go; arguments as of `batched.layer.norm_qkv_into`, checked."""

    tables: tuple[Tensor, Tensor]
    positions: Tensor
    k_cache: Tensor
    v_cache: Tensor
    base: Tensor
    counts: Tensor | None
    heads: int

    @property
    def width(self) -> int:
        """Of a head."""
        return self.k_cache.shape[3]

    def operands(self) -> tuple[Tensor | int, ...]:
        """As the kernels take them, in this order."""
        cos, sin = (table.contiguous() for table in self.tables)
        base = self.base.contiguous()
        counts = base if self.counts is None else self.counts.contiguous()
        k, v = self.k_cache, self.v_cache
        return (cos, sin, self.positions.contiguous(), k, v, base, counts, len(cos), k.shape[2], *k.stride()[:3],
                *v.stride()[:3])  # fmt: skip


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    how: Few | Tiles | Whole,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    add: Tensor | None = None,
    into: Into | None = None,
    pdl: int = 0,
) -> Tensor:
    """Arguments as of `batched.layer`, checked, none empty; norm, gate and add as there, by tiles of `how`.

    into: rotate what comes out and put K and V into caches; then [R, N, Hq, d], the queries, come back. Not by Tiles.
    """
    if norm is not None and isinstance(how, Tiles):
        x, norm = rms_norm(x, norm, eps, pdl), None
    rows, depth = x.shape
    x, weight = _flat(x), _flat(weight)
    second = 0 if into is None else into.width // 2
    columns = weight.shape[0] // 2 if gated or into is not None else weight.shape[0]
    shape = (rows, columns) if into is None else (*into.positions.shape, into.heads, into.width)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    add = None if add is None else _flat(add)
    pdl = int(pdl) if x.is_cuda else 0
    pointers = weight, x if bias is None else bias.contiguous(), x if add is None else add, out
    strides = x.stride(0), 0 if add is None else add.stride(0)
    given = {
        "N": columns,
        "K": depth,
        "W_STRIDE": weight.stride(0),
        "SECOND": columns if gated else second,
        "BLOCK_N": how.block_n,
        "GATED": gated,
        "ADD": add is not None,
        "BIAS": bias is not None,
        "INTERPRETED": not x.is_cuda,
        "PDL": pdl,
        "num_warps": how.warps,
        **({"launch_pdl": True} if pdl else {}),
    }
    if isinstance(how, Tiles):
        grid = triton.cdiv(rows, how.block_m), triton.cdiv(columns, how.block_n)
        _tile[grid](x, *pointers, rows, *strides, BLOCK_M=how.block_m, BLOCK_K=how.block_k, STAGES=how.stages, **given)
        return out
    given |= {
        "NODES": 1 if into is None else into.positions.shape[1],
        "HQ": 0 if into is None else into.heads,
        "HKV": 0 if into is None else into.k_cache.shape[1],
        "HALF": second,
        "COUNTED": into is not None and into.counts is not None,
        "NORM": norm is not None,
    }
    ends = (x if norm is None else norm.contiguous(), *pointers, None if into is None else into.operands())
    if isinstance(how, Few):
        _few[(triton.cdiv(columns, how.block_n),)](
            x, *ends, eps, *strides, ROWS=rows, ROWS2=power_of_two(rows), BLOCK_K=how.block_k, **given)  # fmt: skip
        return out
    block = max(how.warps * 16, power_of_two(depth + 1) // 2)
    rest = power_of_two(depth - block, how.warps * 16) if depth > block else 0
    _whole[triton.cdiv(rows, how.block_m), triton.cdiv(columns, how.block_n)](
        x, *ends, rows, eps, *strides, BLOCK_M=how.block_m, BLOCK_K=block, REST=rest, GROUPS=how.warps,
        **given)  # fmt: skip
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float, pdl: int = 0) -> Tensor:
    """Arguments as of `batched.layer.rms_norm`, checked, not empty."""
    flat = _flat(x.reshape(-1, x.shape[-1]))
    rows, depth = flat.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    pdl = int(pdl) if x.is_cuda else 0
    depth2 = power_of_two(depth)
    launch = {"launch_pdl": True} if pdl else {}
    _norm[(rows,)](flat, weight.contiguous(), out, eps, flat.stride(0), depth, depth2, pdl,
                   num_warps=min(8, max(1, depth2 // 256)), **launch)  # fmt: skip
    return out


def gate(x: Tensor, pdl: int = 0) -> Tensor:
    """[M, I] = silu of the first half of each row of x [M, 2 I], times its second half; not empty."""
    rows, columns = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    pdl = int(pdl) if x.is_cuda else 0
    launch = {"launch_pdl": True} if pdl else {}
    block = 1024
    _gate[(triton.cdiv(out.numel(), block),)](x.contiguous(), out, out.numel(), columns, block, pdl, num_warps=4,
                                              **launch)  # fmt: skip
    return out


def _flat(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
