"""Attention of the nodes of trees over a KV cache, whose last rows are the nodes' own, masked by ancestry."""

from __future__ import annotations

import torch
from torch import Tensor

from ddscope_kernels.batched import layer_plan
from ddscope_kernels.batched.backend import use_triton
from ddscope_kernels.batched.tree import unpack_bits

HEAD_SIZES = range(16, 257)


def tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bits: Tensor,
    lengths: Tensor,
    *,
    counts: Tensor | None = None,
    pages: Tensor | None = None,
    scale: float | None = None,
    splits: int | None = None,
    arrivals: Tensor | None = None,
) -> Tensor:
    """[R, N, Hq, d] what each node of each request reads: softmax(q kᵀ · scale) v over the prefix and its ancestors.

    q:       [R, N, Hq, d], node 0 is the root; float32, float16 or bfloat16; 16 ≤ d ≤ 256, d contiguous.
    k, v:    [R, Hkv, S, d] a cache a request; with pages: [pages of the pool, page size, Hkv, d]. Dtype of q; Hq is a
             multiple of Hkv, and query head h reads KV head h // (Hq / Hkv).
    bits:    [R, N, ⌈N / 32⌉] int32 as of TreeBatch: bit j of row i says that node i sees node j.
    lengths: [R] int32 rows before the root: all nodes see them. Node j has row lengths[r] + j.
    counts:  [R] int32 as of TreeBatch: rows of nodes behind are not read and may hold anything; N - 1 where it is None.
    pages:   [R, …] int32: row t of request r is row t % size of page pages[r, t // size].
    scale:   1 / √d where it is None.
    splits:  programs that share the rows of one request and head; chosen by the sizes where it is None.
    arrivals: int32 zeros, R · Hkv · ⌈N · Hq / Hkv / 16⌉ of them are always enough: where it is faster, the last of the
             programs that share rows sums their parts, and no other launch. Zeros again afterwards; calls that may
             run at the same time need their own.
    A node that sees nothing reads zeros. Sums are float32 and always in the same order; nothing waits for the host on a
    CUDA device (one launch, and without arrivals one more where rows are shared), and no mask of [N, S] exists.
    Raises ValueError when shapes or dtypes disagree.
    Source: FlashAttention (arXiv 2205.14135) for the running softmax, Flash-Decoding for the splits.
    """
    requests, nodes, heads, width = q.shape
    paged = pages is not None
    kv_heads = k.shape[2 if paged else 1] if k.ndim == 4 else 0
    if k.shape != v.shape or k.shape[-1] != width or k.dtype != q.dtype or v.dtype != q.dtype or not kv_heads:
        raise ValueError(f"q {list(q.shape)} {q.dtype}, k {list(k.shape)} {k.dtype} and v {list(v.shape)} do not fit")
    if heads % kv_heads or width not in HEAD_SIZES or (not paged and k.shape[0] != requests):
        raise ValueError(f"{heads} heads of size {width} over k {list(k.shape)} cannot be read")
    if bits.shape != (requests, nodes, (nodes + 31) // 32) or lengths.shape != (requests,):
        raise ValueError(f"bits {list(bits.shape)} and lengths {list(lengths.shape)} do not fit q {list(q.shape)}")
    if counts is None:
        counts = torch.full_like(lengths, nodes - 1)
    scale = width**-0.5 if scale is None else scale
    if use_triton(q) and q.numel() and q.dtype != torch.float64:
        from ddscope_kernels.jit import attention

        return attention.launch(q, k, v, bits, lengths, counts, pages, scale, splits, arrivals, pdl=layer_plan.pdl())
    return _reference(q, k, v, bits, lengths, counts, pages, scale)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor, lengths: Tensor, counts: Tensor, pages: Tensor | None, scale: float
) -> Tensor:
    out = torch.zeros_like(q)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    seen = unpack_bits(bits)
    nodes, heads = q.shape[1:3]
    for r in range(q.shape[0]):
        length = int(lengths[r])
        tail = min(int(counts[r]) + 1, nodes)
        rows = torch.arange(length + tail, device=q.device)
        if pages is None:
            keys, values = k[r][:, rows], v[r][:, rows]
        else:
            size = k.shape[1]
            place = pages[r].long()[rows // size], rows % size
            keys, values = k[place].transpose(0, 1), v[place].transpose(0, 1)
        group = heads // keys.shape[0]
        keys, values = (x.to(wide).repeat_interleave(group, 0) for x in (keys, values))
        scores = q[r].to(wide).transpose(0, 1) @ keys.transpose(1, 2) * scale
        mask = torch.cat([seen.new_ones(nodes, length), seen[r, :, :tail]], dim=1)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
        out[r] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out
