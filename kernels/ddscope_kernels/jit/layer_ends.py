"""What stands before and behind the sums of a layer's product, shared by its kernels: bias, gate, rotation."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def weight_row(n, HALF: tl.constexpr):
    """Of the first weight of column n: n itself, or, where columns are pairs in heads of 2 HALF, the pair's first."""
    if HALF > 0:
        n = n // HALF * (2 * HALF) + n % HALF
    return n


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait for the kernels before this one, and let the next one start: before that (1), or then (2)."""
    if PDL == 1:
        gdc_launch_dependents()
    gdc_wait()
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit
def fetch(w_ptr, n, N: tl.constexpr, K: tl.constexpr, W_STRIDE: tl.constexpr, SECOND: tl.constexpr,
          HALF: tl.constexpr):  # fmt: skip
    """Ask for the weights of columns n to be brought to the second-level cache."""
    row = weight_row(tl.minimum(n, N - 1), HALF)
    _fetch(w_ptr, row, K, W_STRIDE)
    if SECOND > 0:
        _fetch(w_ptr, row + SECOND, K, W_STRIDE)


@triton.jit
def _fetch(w_ptr, row, K: tl.constexpr, W_STRIDE: tl.constexpr):
    """Ask for rows of K 16-bit weights to be brought to the second-level cache, by lines of 64."""
    LINES: tl.constexpr = (K + 63) // 64
    LINES2: tl.constexpr = triton.next_power_of_2(LINES)
    line = tl.minimum(tl.arange(0, LINES2), LINES - 1) * 64
    at = (w_ptr + row.to(tl.int64)[:, None] * W_STRIDE + line[None, :]).to(tl.int64)
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False,
                              pack=1)  # fmt: skip


@triton.jit
def arrived(x):
    """x, at a point that nothing is moved across: what is read before it is asked for before x is waited for."""
    if x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    else:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)
    return x


@triton.jit
def prepare(m, n, rows, bias_ptr, add_ptr, add_stride, rotation, N: tl.constexpr, SECOND: tl.constexpr,
            HALF: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """What `finish` adds or turns by, for m [BLOCK_M, 1] and n [1, BLOCK_N]: asked for early, it is there in time.

    Two addends, and cos and sin of both halves; zeros of one entry where there is none.
    """
    nothing = tl.zeros((1, 1), tl.float32)
    there = (m < rows) & (n < N)
    first, second = nothing, nothing
    if ADD:
        first = tl.load(add_ptr + m.to(tl.int64) * add_stride + n, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        at = bias_ptr + weight_row(n, HALF)
        first = first + tl.load(at, mask=n < N, other=0.0).to(tl.float32)
        if SECOND > 0:
            second = tl.load(at + SECOND, mask=n < N, other=0.0).to(tl.float32)
    cos_a, cos_b, sin_a, sin_b = nothing, nothing, nothing, nothing
    if HALF > 0:
        position = tl.load(rotation[2] + m, mask=m < rows, other=0).to(tl.int64)
        at = tl.minimum(tl.maximum(position, 0), rotation[7] - 1) * (2 * HALF) + n % HALF
        cos_a = tl.load(rotation[0] + at, mask=there, other=0.0)
        cos_b = tl.load(rotation[0] + at + HALF, mask=there, other=0.0)
        sin_a = tl.load(rotation[1] + at, mask=there, other=0.0)
        sin_b = tl.load(rotation[1] + at + HALF, mask=there, other=0.0)
    return first, second, cos_a, cos_b, sin_a, sin_b


@triton.jit
def finish(value, second, scale, prepared, m, n, rows, out_ptr, rotation, N: tl.constexpr, NODES: tl.constexpr,
           HQ: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, COUNTED: tl.constexpr, NORM: tl.constexpr,
           GATED: tl.constexpr, INTERPRETED: tl.constexpr):  # fmt: skip
    """Scale, add, gate or rotate, and store sums [BLOCK_M, BLOCK_N]; second: of the other weights of a pair."""
    there = (m < rows) & (n < N)
    if NORM:
        value = value * scale
        second = second * scale
    first, other, cos_a, cos_b, sin_a, sin_b = prepared
    if not INTERPRETED:
        first = arrived(first)
        cos_a, cos_b, sin_a, sin_b = arrived(cos_a), arrived(cos_b), arrived(sin_a), arrived(sin_b)
    value += first
    if HALF > 0:
        second += other
        head, i = n // HALF, n % HALF
        a = tl.where(head < HQ + HKV, value * cos_a + second * sin_a, value)
        b = tl.where(head < HQ + HKV, second * cos_b + value * sin_b, second)
        _store(out_ptr + (m.to(tl.int64) * HQ + head) * (2 * HALF) + i, a, b, there & (head < HQ), HALF)
        request, node = (m // NODES).to(tl.int64), m % NODES
        place = tl.load(rotation[5] + request, mask=m < rows, other=0).to(tl.int64) + node
        kept = there & (place >= 0) & (place < rotation[8])
        if COUNTED:
            kept = kept & (node <= tl.load(rotation[6] + request, mask=m < rows, other=0))
        kv_head = (head - HQ).to(tl.int64)
        k_at = rotation[3] + request * rotation[9] + kv_head * rotation[10] + place * rotation[11] + i
        _store(k_at, a, b, kept & (kv_head >= 0) & (kv_head < HKV), HALF)
        v_at = rotation[4] + request * rotation[12] + (kv_head - HKV) * rotation[13] + place * rotation[14] + i
        _store(v_at, a, b, kept & (kv_head >= HKV), HALF)
    else:
        if GATED:
            value = value / (1.0 + tl.exp(-value)) * (second + other)
        tl.store(out_ptr + m.to(tl.int64) * N + n, value.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _store(at, a, b, there, HALF: tl.constexpr):
    tl.store(at, a.to(at.dtype.element_ty), mask=there)
    tl.store(at + HALF, b.to(at.dtype.element_ty), mask=there)
