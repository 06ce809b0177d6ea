"""Attention of many drafted blocks of a text: each over the context before its anchor, and over itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope_kernels.batched import use_triton

HEAD_SIZES = range(16, 129)


def block_attention(q: Tensor, ck: Tensor, cv: Tensor, ok: Tensor, ov: Tensor, anchors: Tensor) -> Tensor:
    """[B, N, heads, d]: what each row of A blocks reads, N = A × block; differentiable in all but the anchors.

    q:       [B, N, heads, d], rows of one block after another.
    ck, cv:  [B, S, kv_heads, d] of the context; block a of text b sees columns 0 … anchors[b, a] − 1.
    ok, ov:  [B, N, kv_heads, d] of the rows; a row sees those of its own block, before and behind it.
    anchors: [B, A] ≤ S.
    On a CUDA device kernels that touch only what is seen; elsewhere a dense mask, of which most is -inf.
    """
    if use_triton(q) and q.shape[-1] in HEAD_SIZES and q.dtype != torch.float64:
        out: Tensor = _BlockAttention.apply(q, ck, cv, ok, ov, anchors)  # type: ignore[no-untyped-call]
        return out
    block = q.shape[1] // anchors.shape[1]
    return dense_attention(q, torch.cat([ck, ok], 1), torch.cat([cv, ov], 1), block_bias(anchors, ck.shape[1], block))


def dense_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """[B, N, heads, d] of q over k and v [B, S, kv_heads, d]; bias [B, 1, N, S] is added to the scores."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=bias.to(v.dtype)).transpose(1, 2)


def block_bias(anchors: Tensor, columns: int, block: int) -> Tensor:
    """[B, 1, N, columns + N]: a row sees the context before its anchor, and its own block in both directions."""
    texts, count = anchors.shape
    context = torch.arange(columns, device=anchors.device) < anchors[:, :, None]
    owner = torch.arange(count, device=anchors.device).repeat_interleave(block)
    own = (owner[:, None] == owner).expand(texts, -1, -1)
    sees = torch.cat([context.repeat_interleave(block, 1), own], dim=-1)
    return torch.zeros(sees.shape, device=anchors.device).masked_fill_(~sees, -torch.inf)[:, None]


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, ck: Tensor, cv: Tensor, ok: Tensor, ov: Tensor, anchors: Tensor) -> Tensor:
        """Outputs; the sums are kept, the weights are computed again in the backward pass."""
        from ddscope.engine.training import block_attention_jit as jit

        given = [x.contiguous() for x in (q, ck, cv, ok, ov, anchors)]
        out, lse = jit.forward(*given)
        ctx.save_for_backward(*given, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all but the anchors."""
        from ddscope.engine.training import block_attention_jit as jit

        q, ck, cv, ok, ov, anchors, out, lse = ctx.saved_tensors
        return (*jit.backward(q, ck, cv, ok, ov, anchors, out, lse, grads[0].contiguous()), None)
