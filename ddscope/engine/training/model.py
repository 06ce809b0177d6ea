"""The DFlash drafter as a trainable module over a batch of texts with many blocks each; names are those of its file.

Inference in the engine is `ddscope.engine.drafter`; a test holds the two against each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddscope.engine.config import DrafterConfig, TransformerConfig
from ddscope.engine.training.forward import RopeTable, rotate
from ddscope.engine.weights import layer_shapes, load_tensors


class Context(NamedTuple):
    """K (rotated) and V of one layer for S tokens of context: [B, S, kv_heads, head_dim] each."""

    k: Tensor
    v: Tensor


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """In float32 whatever comes in, which is where training is sensitive."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self._eps).to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        wide, narrow, bias = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim, stack.attention_bias
        self.q_proj = nn.Linear(stack.hidden, wide, bias=bias)
        self.k_proj = nn.Linear(stack.hidden, narrow, bias=bias)
        self.v_proj = nn.Linear(stack.hidden, narrow, bias=bias)
        self.o_proj = nn.Linear(wide, stack.hidden, bias=bias)
        self.q_norm = _Norm(stack.head_dim, stack.norm_eps)
        self.k_norm = _Norm(stack.head_dim, stack.norm_eps)
        self._head_dim = stack.head_dim
        self._group = stack.heads // stack.kv_heads

    def key_value(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Context:
        """Of any rows: context or block."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self._head_dim)))
        v = self.v_proj(x).unflatten(-1, (-1, self._head_dim))
        return Context(rotate(k, table).to(v.dtype), v)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], context: Context, bias: Tensor) -> Tensor:
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self._head_dim))), table)
        own = self.key_value(x, table)
        k = torch.cat([context.k, own.k], dim=1).transpose(1, 2).repeat_interleave(self._group, 1)
        v = torch.cat([context.v, own.v], dim=1).transpose(1, 2).repeat_interleave(self._group, 1)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2).to(v.dtype), k, v, attn_mask=bias.to(v.dtype))
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class _MLP(nn.Module):
    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(stack.hidden, stack.intermediate, bias=stack.mlp_bias)
        self.up_proj = nn.Linear(stack.hidden, stack.intermediate, bias=stack.mlp_bias)
        self.down_proj = nn.Linear(stack.intermediate, stack.hidden, bias=stack.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        self.input_layernorm = _Norm(stack.hidden, stack.norm_eps)
        self.self_attn = _Attention(stack)
        self.post_attention_layernorm = _Norm(stack.hidden, stack.norm_eps)
        self.mlp = _MLP(stack)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], context: Context, bias: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table, context, bias)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DrafterModule(nn.Module):
    """fc and hidden_norm fuse the target's features; every layer reads them as context of the blocks it refines."""

    def __init__(self, config: DrafterConfig, positions: int, device: torch.device) -> None:
        """positions: how many there are at most, context and block."""
        super().__init__()
        stack = config.stack
        self.config = config
        self.fc = nn.Linear(stack.hidden * len(config.target_layer_ids), stack.hidden, bias=False)
        self.hidden_norm = _Norm(stack.hidden, stack.norm_eps)
        self.layers = nn.ModuleList([_Layer(stack) for _ in range(stack.layers)])
        self.norm = _Norm(stack.hidden, stack.norm_eps)
        self.to(device)
        self._rope = RopeTable(stack.rope, stack.head_dim, positions, device)

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
        fused = self.hidden_norm(self.fc(features))
        table = self._rope.at(positions, torch.float32)
        return [layer.self_attn.key_value(fused, table) for layer in self._stack()]

    def forward(self, block: Tensor, positions: Tensor, context: list[Context], bias: Tensor) -> Tensor:
        """Hidden states [B, N, hidden], after the final norm, of N rows of blocks.

        block:     [B, N, hidden] embeddings of the rows: each block's anchor, then masks.
        positions: [B, N].
        bias:      [B, 1, N, S + N] added to the scores over context and rows (0 sees, -inf does not).
        """
        table = self._rope.at(positions, torch.float32)
        x = block
        for layer, kv in zip(self._stack(), context, strict=True):
            x = layer(x, table, kv, bias)
        out: Tensor = self.norm(x)
        return out

    def _stack(self) -> list[_Layer]:
        return [layer for layer in self.layers if isinstance(layer, _Layer)]
