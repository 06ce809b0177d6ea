"""The products of a decoder layer over M rows, each with what stands before and behind it, and a norm by itself.

What moves rows (rotation into the cache, gathering) is in `layer_rows` and reached from here too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope_kernels.batched import layer_plan
from ddscope_kernels.batched.backend import use_triton
from ddscope_kernels.batched.layer_rows import check_rotation, context_into, gather_rows, rotate_into

__all__ = [
    "context_into",
    "gather_rows",
    "linear_add",
    "norm_gated_linear",
    "norm_linear",
    "norm_qkv_into",
    "rms_norm",
    "rotate_into",
]


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[M, N] = (rms_norm(x) · norm) @ weightᵀ + bias, in the dtype of x.

    x: [M, H]; norm: [H]; weight: [N, H]; bias: [N] or None; all of one dtype.
    Statistics and sums are float32 (float64 for float64). Raises ValueError when shapes or dtypes disagree.
    """
    _check(x, weight, bias, norm)
    if not _takes(x, weight):
        return F.linear(_normed(x, norm, eps), weight, bias)
    from ddscope_kernels.jit import layer

    pdl = layer_plan.early_launch(x.shape[0])
    how = layer_plan.plan(x.shape[0], weight.shape[0], weight.shape[1], x.dtype)
    if isinstance(how, layer_plan.Library):
        return F.linear(layer.rms_norm(x, norm, eps, pdl), weight, bias)
    return layer.product(x, weight, bias, how, norm=norm, eps=eps, pdl=pdl)


def norm_gated_linear(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor, bias: Tensor | None = None) -> Tensor:
    """[M, I] = silu(g) · u, where g and u are the halves of (rms_norm(x) · norm) @ gate_upᵀ + bias; dtype of x.

    x: [M, H]; norm: [H]; gate_up: [2 I, H], the rows of the gate first; bias: [2 I] or None; all of one dtype.
    Statistics and sums are float32 (float64 for float64). Raises ValueError when shapes or dtypes disagree.
    """
    _check(x, gate_up, bias, norm)
    if gate_up.shape[0] % 2:
        raise ValueError(f"gate_up {list(gate_up.shape)} has no two halves")
    if not _takes(x, gate_up):
        gate, up = F.linear(_normed(x, norm, eps), gate_up, bias).chunk(2, dim=-1)
        return F.silu(gate) * up
    from ddscope_kernels.jit import layer

    pdl = layer_plan.early_launch(x.shape[0])
    how = layer_plan.plan(x.shape[0], gate_up.shape[0] // 2, gate_up.shape[1], x.dtype, pairs=True)
    if isinstance(how, layer_plan.Library):
        return layer.gate(F.linear(layer.rms_norm(x, norm, eps, pdl), gate_up, bias), pdl)
    return layer.product(x, gate_up, bias, how, norm=norm, eps=eps, gated=True, pdl=pdl)


def norm_qkv_into(
    x: Tensor,
    norm: Tensor,
    eps: float,
    weight: Tensor,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    base: Tensor,
    *,
    heads: int,
    bias: Tensor | None = None,
    qk_norm: Tensor | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """[R, N, Hq, d] rotated queries: `norm_linear` and then `rotate_into`, in one launch where the rows are few.

    x: [R · N, H]; weight: [(Hq + 2 Hkv) · d, H] of queries, K and V; bias: [(Hq + 2 Hkv) · d] or None. The rest as of
    `rotate_into`; eps is that of all norms. With qk_norm it takes two launches, since a head's norm needs all its sums.
    In one launch sums are not rounded to the dtype of x before they are rotated.
    Raises ValueError when shapes or dtypes disagree.
    """
    _check(x, weight, bias, norm)
    width = k_cache.shape[-1]
    if positions.ndim != 2 or positions.numel() != x.shape[0] or weight.shape[0] % width:
        raise ValueError(
            f"positions {list(positions.shape)} and weight {list(weight.shape)} do not fit {list(x.shape)}"
        )
    qkv_shape = (*positions.shape, weight.shape[0] // width, width)
    check_rotation(qkv_shape, x.dtype, tables, positions, k_cache, v_cache, base, heads, qk_norm)
    how: layer_plan.Plan = layer_plan.Library()
    if _takes(x, weight) and qk_norm is None and k_cache.stride(3) == v_cache.stride(3) == 1:
        how = layer_plan.plan(x.shape[0], weight.shape[0] // 2, weight.shape[1], x.dtype, pairs=True, into=True)
    if isinstance(how, layer_plan.Library | layer_plan.Tiles):
        qkv = norm_linear(x, norm, eps, weight, bias).view(qkv_shape)
        return rotate_into(
            qkv, tables, positions, k_cache, v_cache, base, heads=heads, qk_norm=qk_norm, eps=eps, counts=counts
        )
    from ddscope_kernels.jit import layer

    into = layer.Into(tables, positions, k_cache, v_cache, base, counts, heads)
    return layer.product(x, weight, bias, how, norm=norm, eps=eps, into=into, pdl=layer_plan.early_launch(x.shape[0]))


def linear_add(y: Tensor, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """[M, N] = x + y @ weightᵀ + bias, a new tensor in the dtype of x.

    y: [M, K]; weight: [N, K]; x: [M, N]; bias: [N] or None; all of one dtype.
    Sums are float32 (float64 for float64). Raises ValueError when shapes or dtypes disagree.
    """
    _check(y, weight, bias)
    if x.shape != (y.shape[0], weight.shape[0]) or x.dtype != y.dtype:
        raise ValueError(f"x {list(x.shape)} {x.dtype} is not [{y.shape[0]}, {weight.shape[0]}] {y.dtype}")
    if not _takes(y, weight):
        return x + F.linear(y, weight, bias)
    how = layer_plan.plan(y.shape[0], weight.shape[0], weight.shape[1], x.dtype)
    if isinstance(how, layer_plan.Library):
        return torch.addmm(x if bias is None else x + bias, y, weight.T)
    from ddscope_kernels.jit import layer

    return layer.product(y, weight, bias, how, add=x, pdl=layer_plan.early_launch(x.shape[0]))


def rms_norm(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    """[…, H] = x / √(mean(x²) + eps) · norm, in the dtype of x; statistics in float32 (float64 for float64).

    x: […, H]; norm: [H]. Raises ValueError when shapes or dtypes disagree. Source: arXiv 1910.07467.
    """
    if norm.shape != x.shape[-1:] or norm.dtype != x.dtype:
        raise ValueError(f"x {list(x.shape)} {x.dtype} and norm {list(norm.shape)} {norm.dtype} do not fit")
    if not _takes(x, norm):
        return _normed(x, norm, eps)
    from ddscope_kernels.jit import layer

    return layer.rms_norm(x, norm, eps, layer_plan.early_launch(x.numel() // x.shape[-1]))


def _takes(x: Tensor, weight: Tensor) -> bool:
    return use_triton(x) and x.numel() > 0 and weight.numel() > 0 and x.dtype in (torch.float32, torch.bfloat16)


def _normed(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, norm.shape, norm, eps)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None = None) -> None:
    if x.ndim != 2 or weight.ndim != 2 or weight.shape[1] != x.shape[1] or weight.dtype != x.dtype:
        raise ValueError(f"x {list(x.shape)} {x.dtype} and weight {list(weight.shape)} {weight.dtype} do not fit")
    if norm is not None and (norm.shape != x.shape[1:] or norm.dtype != x.dtype):
        raise ValueError(f"x {list(x.shape)} {x.dtype} and norm {list(norm.shape)} {norm.dtype} do not fit")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        raise ValueError(f"weight {list(weight.shape)} {x.dtype} and bias {list(bias.shape)} {bias.dtype} do not fit")
