"""The DFlash drafter as a trainable module over a batch of texts with many blocks each; names are those of its file.

Inference in the engine is `ddscope.engine.drafter`; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddscope.engine.config import DrafterConfig, TransformerConfig
from ddscope.engine.training.block_attention import block_attention, dense_attention
from ddscope.engine.training.forward import RopeTable, compiled, rotate
from ddscope.engine.weights import layer_shapes, load_tensors


class Context(NamedTuple):
    """K (rotated) and V of one layer for S tokens of context or rows of blocks: [B, S, kv_heads, head_dim] each."""

    k: Tensor
    v: Tensor


Table = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, Context, Context], Tensor]
"""From q [B, N, heads, head_dim], the context and the rows' own K and V to what the rows read, shaped as q."""


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32 whatever comes in, which is where training is sensitive."""
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class _Attention(nn.Module):
    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        wide, narrow, bias = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim, stack.attention_bias
        self.q_proj = nn.Linear(stack.hidden, wide, bias=bias)
        self.k_proj = nn.Linear(stack.hidden, narrow, bias=bias)
        self.v_proj = nn.Linear(stack.hidden, narrow, bias=bias)
        self.o_proj = nn.Linear(wide, stack.hidden, bias=bias)
        self.q_norm = _Norm(stack.head_dim)
        self.k_norm = _Norm(stack.head_dim)


class _MLP(nn.Module):
    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(stack.hidden, stack.intermediate, bias=stack.mlp_bias)
        self.up_proj = nn.Linear(stack.hidden, stack.intermediate, bias=stack.mlp_bias)
        self.down_proj = nn.Linear(stack.intermediate, stack.hidden, bias=stack.mlp_bias)


class _Layer(nn.Module):
    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        self.input_layernorm = _Norm(stack.hidden)
        self.self_attn = _Attention(stack)
        self.post_attention_layernorm = _Norm(stack.hidden)
        self.mlp = _MLP(stack)

    def tensors(self) -> dict[str, Tensor | None]:
        """Weights by short names, for the functions below; biases that there are not are None."""
        found: dict[str, Tensor | None] = {
            "input": self.input_layernorm.weight,
            "post": self.post_attention_layernorm.weight,
            "q_norm": self.self_attn.q_norm.weight,
            "k_norm": self.self_attn.k_norm.weight,
        }
        for name, part in [*self.self_attn.named_children(), *self.mlp.named_children()]:
            if isinstance(part, nn.Linear):
                found |= {name: part.weight, f"{name}.bias": part.bias}
        return found


# What lies between attentions, as functions of tensors alone: compiled once, they serve all layers.
# Products run in the dtype of the input, whatever that of the weights.
Weights = dict[str, Tensor | None]


def _linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    weight, bias = weights[name], weights[f"{name}.bias"]
    assert weight is not None
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _heads(x: Tensor, weights: Weights, which: str, size: int, eps: float, table: Table) -> Tensor:
    norm = weights[f"{which}_norm"]
    assert norm is not None
    heads = _linear(x, weights, f"{which}_proj").view(*x.shape[:-1], -1, size)
    return rotate(_norm(heads, norm, eps), table).to(x.dtype)


def _key_value(x: Tensor, weights: Weights, size: int, eps: float, table: Table) -> tuple[Tensor, Tensor]:
    v = _linear(x, weights, "v_proj").view(*x.shape[:-1], -1, size)
    return _heads(x, weights, "k", size, eps, table), v


def _before(x: Tensor, weights: Weights, size: int, eps: float, table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of rows."""
    norm = weights["input"]
    assert norm is not None
    y = _norm(x, norm, eps)
    return (_heads(y, weights, "q", size, eps, table), *_key_value(y, weights, size, eps, table))


def _after(x: Tensor, mixed: Tensor, weights: Weights, eps: float) -> Tensor:
    """The rest of a layer."""
    norm = weights["post"]
    assert norm is not None
    x = x + _linear(mixed.flatten(-2), weights, "o_proj")
    y = _norm(x, norm, eps)
    gated = F.silu(_linear(y, weights, "gate_proj")) * _linear(y, weights, "up_proj")
    return x + _linear(gated, weights, "down_proj")


def _fuse(
    features: Tensor, fc: Tensor, norm: Tensor, layers: list[Weights], size: int, eps: float, table: Table
) -> list[tuple[Tensor, Tensor]]:
    """K and V of every layer from the target's features."""
    fused = _norm(F.linear(features, fc.to(features.dtype)), norm, eps)
    return [_key_value(fused, weights, size, eps, table) for weights in layers]


class DrafterModule(nn.Module):
    """fc and hidden_norm fuse the target's features; every layer reads them as context of the blocks it refines."""

    def __init__(self, config: DrafterConfig, positions: int, device: torch.device, *, compile: bool = False) -> None:
        """positions: how many there are at most, context and block; compile: by torch.compile, for fixed shapes."""
        super().__init__()
        stack = config.stack
        self.config = config
        self.fc = nn.Linear(stack.hidden * len(config.target_layer_ids), stack.hidden, bias=False)
        self.hidden_norm = _Norm(stack.hidden)
        self.layers = nn.ModuleList([_Layer(stack) for _ in range(stack.layers)])
        self.norm = _Norm(stack.hidden)
        self.to(device)
        self._rope = RopeTable(stack.rope, stack.head_dim, positions, device)
        self._fuse = compiled(_fuse, compile)
        self._before = compiled(_before, compile)
        self._after = compiled(_after, compile)
        self._norm = compiled(_norm, compile)

    def initialise(self, seed: int, std: float = 0.02) -> None:
        """Normal weights, norms of one, no biases. Drawn on the CPU, so that every device starts from the same."""
        draws = torch.Generator().manual_seed(seed)
        for name, weight in sorted(self.named_parameters()):
            if weight.ndim == 2:
                weight.data.copy_(torch.empty(weight.shape).normal_(0, std, generator=draws))
            elif name.endswith("bias"):
                weight.data.zero_()

    def load(self, folder: Path) -> None:
        """Weights from a folder in the z-lab layout. Raises EngineError when they do not fit this module."""
        hidden, layers = self.config.stack.hidden, len(self.config.target_layer_ids)
        expected = {
            "fc.weight": (hidden, hidden * layers),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
            **layer_shapes(self.config.stack, ""),
        }
        self.load_state_dict(load_tensors(folder, expected))

    def context(self, features: Tensor, positions: Tensor) -> list[Context]:
        """Of every layer, for tokens with features [B, S, layers × hidden] at positions [B or 1, S]."""
        stack = self.config.stack
        table = self._rope.at(positions, torch.float32)
        layers = [layer.tensors() for layer in self._stack()]
        fused = self._fuse(
            features, self.fc.weight, self.hidden_norm.weight, layers, stack.head_dim, stack.norm_eps, table
        )
        return [Context(k, v) for k, v in fused]

    def forward(self, block: Tensor, positions: Tensor, context: list[Context], attend: Attend) -> Tensor:
        """Hidden states [B, N, hidden], after the final norm, of N rows of blocks.

        block:     [B, N, hidden] embeddings of the rows: each block's anchor, then masks.
        positions: [B, N].
        attend:    attention of rows over context and rows, such as `over_blocks` or `over_mask`.
        """
        stack = self.config.stack
        table = self._rope.at(positions, torch.float32)
        # With a gradient asked for, the first layer's graph is that of the others: one compilation less.
        x = block.detach().requires_grad_() if torch.is_grad_enabled() else block
        for layer, seen in zip(self._stack(), context, strict=True):
            weights = layer.tensors()
            q, k, v = self._before(x, weights, stack.head_dim, stack.norm_eps, table)
            x = self._after(x, attend(q, seen, Context(k, v)), weights, stack.norm_eps)
        out: Tensor = self._norm(x, self.norm.weight, stack.norm_eps)
        return out

    def _stack(self) -> list[_Layer]:
        return [layer for layer in self.layers if isinstance(layer, _Layer)]


def over_blocks(anchors: Tensor) -> Attend:
    """Blocks at anchors [B, A], each over the context before its anchor and itself."""

    def attend(q: Tensor, seen: Context, own: Context) -> Tensor:
        return block_attention(q, seen.k, seen.v, own.k, own.v, anchors)

    return attend


def over_mask(bias: Tensor) -> Attend:
    """Rows over what bias [B, 1, N, S + N] lets them see of context and rows (0 sees, -inf does not)."""

    def attend(q: Tensor, seen: Context, own: Context) -> Tensor:
        return dense_attention(q, torch.cat([seen.k, own.k], 1), torch.cat([seen.v, own.v], 1), bias)

    return attend
