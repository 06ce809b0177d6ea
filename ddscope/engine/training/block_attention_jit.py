"""Attention of drafted blocks and its gradients as Triton kernels: a program a block, or a slice of the context."""

# What is compiled is not Python, and its arguments have no Python types.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2E = 1.4426950408889634
_TILE = 64


@triton.jit
def _rows(pointer, text, rows, heads, first, head, row, d, mask, WIDTH: tl.constexpr):  # fmt: skip
    """Places and mask of rows `first + row` of a contiguous [B, rows, heads, WIDTH]; head: one, or one a row."""
    place = ((text.to(tl.int64) * rows + first + row) * heads + head) * WIDTH
    return pointer + place[:, None] + d[None, :], mask[:, None] & (d < WIDTH)[None, :]


@triton.jit
def _forward(q_ptr, ck_ptr, cv_ptr, ok_ptr, ov_ptr, anchors_ptr, out_ptr, lse_ptr, scale, columns, blocks,
             BLOCK: tl.constexpr, OWN: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, WIDTH: tl.constexpr,
             WIDTH2: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
             INTERPRETED: tl.constexpr):  # fmt: skip
    """The (row, head of the group) pairs of one block and one KV head a program."""
    GROUP: tl.constexpr = HQ // HKV
    block, kv_head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pair, d, own = tl.arange(0, M), tl.arange(0, WIDTH2), tl.arange(0, OWN)
    live, head = pair < BLOCK * GROUP, kv_head * GROUP + pair % GROUP
    first, rows = block * BLOCK, blocks * BLOCK
    at, there = _rows(q_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
    q = tl.load(at, mask=there, other=0.0)
    at, there = _rows(ok_ptr, text, rows, HKV, first, kv_head, own, d, own < BLOCK, WIDTH)
    k = tl.load(at, mask=there, other=0.0)
    at, there = _rows(ov_ptr, text, rows, HKV, first, kv_head, own, d, own < BLOCK, WIDTH)
    v = tl.load(at, mask=there, other=0.0)
    if UPCAST:
        q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where((own < BLOCK)[None, :], scores, float("-inf"))
    peak = tl.max(scores, axis=1)
    weight = tl.exp2(scores - peak[:, None])
    total = tl.sum(weight, axis=1)
    acc = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    end = tl.load(anchors_ptr + text * blocks + block).to(tl.int32)
    if INTERPRETED:  # whose range takes no loaded value as a bound
        start = 0
        while start < end:
            peak, total, acc = _absorb(start, end, peak, total, acc, q, ck_ptr, cv_ptr, text, columns, kv_head, d,
                                       scale, HKV, WIDTH, TILE, UPCAST)  # fmt: skip
            start += TILE
    else:
        for start in range(0, end, TILE):
            peak, total, acc = _absorb(start, end, peak, total, acc, q, ck_ptr, cv_ptr, text, columns, kv_head, d,
                                       scale, HKV, WIDTH, TILE, UPCAST)  # fmt: skip
    at, there = _rows(out_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
    tl.store(at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=there)
    place = (text.to(tl.int64) * rows + first + pair // GROUP) * HQ + head
    tl.store(lse_ptr + place, peak + tl.log2(total), mask=live)


@triton.jit
def _absorb(start, end, peak, total, acc, q, ck_ptr, cv_ptr, text, columns, kv_head, d, scale, HKV: tl.constexpr,
            WIDTH: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """The running softmax after TILE columns of context more."""
    column = tl.arange(0, TILE)
    seen = start + column < end
    at, there = _rows(ck_ptr, text, columns, HKV, start, kv_head, column, d, seen, WIDTH)
    k = tl.load(at, mask=there, other=0.0)
    at, there = _rows(cv_ptr, text, columns, HKV, start, kv_head, column, d, seen, WIDTH)
    v = tl.load(at, mask=there, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    keep = tl.exp2(peak - higher)
    weight = tl.exp2(scores - higher[:, None])
    acc = acc * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return higher, total * keep + tl.sum(weight, axis=1), acc


@triton.jit
def _backward_rows(q_ptr, ck_ptr, cv_ptr, ok_ptr, ov_ptr, anchors_ptr, out_ptr, lse_ptr, grad_ptr, delta_ptr, dq_ptr,
                   dok_ptr, dov_ptr, scale, plain, columns, blocks, BLOCK: tl.constexpr, OWN: tl.constexpr,
                   HQ: tl.constexpr, HKV: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr, M: tl.constexpr,
                   TILE: tl.constexpr, UPCAST: tl.constexpr, INTERPRETED: tl.constexpr):  # fmt: skip
    """As `_forward`: gradients of the block's q, k and v, and delta = Σ gradient · output of each row and head."""
    GROUP: tl.constexpr = HQ // HKV
    block, kv_head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pair, d, own = tl.arange(0, M), tl.arange(0, WIDTH2), tl.arange(0, OWN)
    live, head = pair < BLOCK * GROUP, kv_head * GROUP + pair % GROUP
    first, rows = block * BLOCK, blocks * BLOCK
    at, there = _rows(q_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
    q = tl.load(at, mask=there, other=0.0)
    at, there = _rows(grad_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
    grad = tl.load(at, mask=there, other=0.0)
    at, there = _rows(out_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
    delta = tl.sum(grad.to(tl.float32) * tl.load(at, mask=there, other=0.0).to(tl.float32), axis=1)
    place = (text.to(tl.int64) * rows + first + pair // GROUP) * HQ + head
    tl.store(delta_ptr + place, delta, mask=live)
    lse = tl.load(lse_ptr + place, mask=live, other=float("inf"))  # weights of rows that are none become 0
    at, there = _rows(ok_ptr, text, rows, HKV, first, kv_head, own, d, own < BLOCK, WIDTH)
    k = tl.load(at, mask=there, other=0.0)
    at, there = _rows(ov_ptr, text, rows, HKV, first, kv_head, own, d, own < BLOCK, WIDTH)
    v = tl.load(at, mask=there, other=0.0)
    if UPCAST:
        q, k, v, grad = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32), grad.to(tl.float32)
    weight, push = _push(q, k, v, grad, lse, delta, (own < BLOCK)[None, :], scale)
    dq = tl.dot(push.to(k.dtype), k, input_precision="ieee")
    at, there = _rows(dok_ptr, text, rows, HKV, first, kv_head, own, d, own < BLOCK, WIDTH)
    dk = tl.dot(tl.trans(push.to(q.dtype)), q, input_precision="ieee") * plain
    tl.store(at, dk.to(dok_ptr.dtype.element_ty), mask=there)
    at, there = _rows(dov_ptr, text, rows, HKV, first, kv_head, own, d, own < BLOCK, WIDTH)
    dv = tl.dot(tl.trans(weight.to(grad.dtype)), grad, input_precision="ieee")
    tl.store(at, dv.to(dov_ptr.dtype.element_ty), mask=there)
    end = tl.load(anchors_ptr + text * blocks + block).to(tl.int32)
    if INTERPRETED:
        start = 0
        while start < end:
            dq = _more_dq(start, end, dq, q, grad, lse, delta, ck_ptr, cv_ptr, text, columns, kv_head, d, scale, HKV,
                          WIDTH, TILE, UPCAST)  # fmt: skip
            start += TILE
    else:
        for start in range(0, end, TILE):
            dq = _more_dq(start, end, dq, q, grad, lse, delta, ck_ptr, cv_ptr, text, columns, kv_head, d, scale, HKV,
                          WIDTH, TILE, UPCAST)  # fmt: skip
    at, there = _rows(dq_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
    tl.store(at, (dq * plain).to(dq_ptr.dtype.element_ty), mask=there)


@triton.jit
def _push(q, k, v, grad, lse, delta, seen, scale):
    """Weights of the softmax, and the gradient of the scores: both [rows, columns]."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    weight = tl.where(seen, tl.exp2(scores - lse[:, None]), 0.0)
    return weight, weight * (tl.dot(grad, tl.trans(v), input_precision="ieee") - delta[:, None])


@triton.jit
def _more_dq(start, end, dq, q, grad, lse, delta, ck_ptr, cv_ptr, text, columns, kv_head, d, scale, HKV: tl.constexpr,
             WIDTH: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """The part of TILE columns of context more."""
    column = tl.arange(0, TILE)
    seen = start + column < end
    at, there = _rows(ck_ptr, text, columns, HKV, start, kv_head, column, d, seen, WIDTH)
    k = tl.load(at, mask=there, other=0.0)
    at, there = _rows(cv_ptr, text, columns, HKV, start, kv_head, column, d, seen, WIDTH)
    v = tl.load(at, mask=there, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    _, push = _push(q, k, v, grad, lse, delta, seen[None, :], scale)
    return dq + tl.dot(push.to(k.dtype), k, input_precision="ieee")


@triton.jit
def _backward_context(q_ptr, ck_ptr, cv_ptr, anchors_ptr, lse_ptr, grad_ptr, delta_ptr, dck_ptr, dcv_ptr, scale, plain,
                      columns, blocks: tl.constexpr, BLOCK: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr,
                      WIDTH: tl.constexpr, WIDTH2: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr,
                      UPCAST: tl.constexpr):  # fmt: skip
    """TILE columns of one text's context and one KV head a program: gradients of k and v, over all blocks behind."""
    GROUP: tl.constexpr = HQ // HKV
    start, kv_head, text = tl.program_id(0) * TILE, tl.program_id(1), tl.program_id(2)
    pair, d, column = tl.arange(0, M), tl.arange(0, WIDTH2), tl.arange(0, TILE)
    live, head, rows = pair < BLOCK * GROUP, kv_head * GROUP + pair % GROUP, blocks * BLOCK
    inside = start + column < columns
    at, there = _rows(ck_ptr, text, columns, HKV, start, kv_head, column, d, inside, WIDTH)
    k = tl.load(at, mask=there, other=0.0)
    at, there = _rows(cv_ptr, text, columns, HKV, start, kv_head, column, d, inside, WIDTH)
    v = tl.load(at, mask=there, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    dk, dv = tl.zeros((TILE, WIDTH2), tl.float32), tl.zeros((TILE, WIDTH2), tl.float32)
    for block in range(blocks):
        end = tl.load(anchors_ptr + text * blocks + block).to(tl.int32)
        if end > start:
            first = block * BLOCK
            q_at, q_there = _rows(q_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
            q = tl.load(q_at, mask=q_there, other=0.0)
            q_at, q_there = _rows(grad_ptr, text, rows, HQ, first, head, pair // GROUP, d, live, WIDTH)
            grad = tl.load(q_at, mask=q_there, other=0.0)
            place = (text.to(tl.int64) * rows + first + pair // GROUP) * HQ + head
            lse = tl.load(lse_ptr + place, mask=live, other=float("inf"))
            delta = tl.load(delta_ptr + place, mask=live, other=0.0)
            if UPCAST:
                q, grad = q.to(tl.float32), grad.to(tl.float32)
            weight, push = _push(q, k, v, grad, lse, delta, (start + column < end)[None, :], scale)
            dk += tl.dot(tl.trans(push.to(q.dtype)), q, input_precision="ieee")
            dv += tl.dot(tl.trans(weight.to(grad.dtype)), grad, input_precision="ieee")
    at, there = _rows(dck_ptr, text, columns, HKV, start, kv_head, column, d, inside, WIDTH)
    tl.store(at, (dk * plain).to(dck_ptr.dtype.element_ty), mask=there)
    at, there = _rows(dcv_ptr, text, columns, HKV, start, kv_head, column, d, inside, WIDTH)
    tl.store(at, dv.to(dcv_ptr.dtype.element_ty), mask=there)


def _power(n: int, least: int = 16) -> int:
    return max(least, 1 << (n - 1).bit_length())


def _sizes(q: Tensor, ck: Tensor, anchors: Tensor) -> dict[str, int | bool]:
    block, heads, kv_heads, width = q.shape[1] // anchors.shape[1], q.shape[2], ck.shape[2], q.shape[3]
    return {
        "BLOCK": block, "HQ": heads, "HKV": kv_heads, "WIDTH": width, "WIDTH2": _power(width),
        "M": _power(block * (heads // kv_heads)), "TILE": _TILE, "UPCAST": q.dtype == torch.bfloat16 and not q.is_cuda,
    }  # fmt: skip


def forward(q: Tensor, ck: Tensor, cv: Tensor, ok: Tensor, ov: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs as q, and log₂ of the sums [B, N, heads] float32; all arguments contiguous."""
    sizes, scale = _sizes(q, ck, anchors), q.shape[-1] ** -0.5
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    grid = (anchors.shape[1], ck.shape[2], len(q))
    _forward[grid](q, ck, cv, ok, ov, anchors, out, lse, scale * _LOG2E, ck.shape[1], anchors.shape[1], **sizes,
                   OWN=_power(int(sizes["BLOCK"])), INTERPRETED=not q.is_cuda, num_warps=4, num_stages=2)  # fmt: skip
    return out, lse


def backward(
    q: Tensor, ck: Tensor, cv: Tensor, ok: Tensor, ov: Tensor, anchors: Tensor, out: Tensor, lse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, ck, cv, ok, ov."""
    sizes, scale = _sizes(q, ck, anchors), q.shape[-1] ** -0.5
    columns, blocks = ck.shape[1], anchors.shape[1]
    dq, dck, dcv, dok, dov = (torch.empty_like(x) for x in (q, ck, cv, ok, ov))
    delta = torch.empty_like(lse)
    _backward_rows[(blocks, ck.shape[2], len(q))](
        q, ck, cv, ok, ov, anchors, out, lse, grad, delta, dq, dok, dov, scale * _LOG2E, scale, columns, blocks,
        **sizes, OWN=_power(int(sizes["BLOCK"])), INTERPRETED=not q.is_cuda, num_warps=4, num_stages=2)  # fmt: skip
    _backward_context[(-(-columns // _TILE), ck.shape[2], len(q))](
        q, ck, cv, anchors, lse, grad, delta, dck, dcv, scale * _LOG2E, scale, columns, blocks, **sizes,
        num_warps=4, num_stages=2)  # fmt: skip
    return dq, dck, dcv, dok, dov
