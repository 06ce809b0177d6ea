"""Tiny random models in real model folders, and a plain second implementation of what they compute.

The reference is written for reading: no cache, no fusing, one head at a time, straight from the tensors' names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ddscope.engine.pair import Pair, load_pair

VOCAB = 16


def target_config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """A target of four small layers with grouped queries."""
    config = {
        "model_type": family,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": None,
    }
    return config | changes


def drafter_config(**changes: Any) -> dict[str, Any]:
    """A drafter of two layers for `target_config`, with a block of 6."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "vocab_size": VOCAB,
        "num_target_layers": 4,
        "block_size": 6,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 2]},
    }
    return config | changes


def stack_tensors(config: dict[str, Any], prefix: str, *, qk_norm: bool) -> dict[str, Tensor]:
    """Random tensors of all layers, wide enough that logits differ clearly: else equal tokens would mean little."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    wide, narrow = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    tensors: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        tensors[f"{name}.weight"] = torch.randn(rows, columns) * columns**-0.5 * 1.5
        if bias:
            tensors[f"{name}.bias"] = torch.randn(rows) * 0.3

    for layer in range(config["num_hidden_layers"]):
        here = f"{prefix}layers.{layer}."
        attention_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
        linear(f"{here}self_attn.q_proj", wide, hidden, attention_bias)
        linear(f"{here}self_attn.k_proj", narrow, hidden, attention_bias)
        linear(f"{here}self_attn.v_proj", narrow, hidden, attention_bias)
        linear(f"{here}self_attn.o_proj", hidden, wide, attention_bias)
        linear(f"{here}mlp.gate_proj", inner, hidden, mlp_bias)
        linear(f"{here}mlp.up_proj", inner, hidden, mlp_bias)
        linear(f"{here}mlp.down_proj", hidden, inner, mlp_bias)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{here}{norm}.weight"] = 1 + torch.randn(hidden) * 0.2
        if qk_norm:
            for norm in ("q_norm", "k_norm"):
                tensors[f"{here}self_attn.{norm}.weight"] = 1 + torch.randn(dim) * 0.2
    return tensors


def target_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """All tensors of a target's file."""
    torch.manual_seed(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    tensors = stack_tensors(config, "model.", qk_norm=config["model_type"] == "qwen3")
    tensors["model.embed_tokens.weight"] = torch.randn(vocab, hidden) * 0.5
    tensors["model.norm.weight"] = 1 + torch.randn(hidden) * 0.2
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(vocab, hidden) * 0.5
    return tensors


def drafter_tensors(config: dict[str, Any], seed: int = 1) -> dict[str, Tensor]:
    """All tensors of a drafter's file."""
    torch.manual_seed(seed)
    hidden, layers = config["hidden_size"], len(config["dflash_config"]["target_layer_ids"])
    tensors = stack_tensors(config, "", qk_norm=True)
    tensors["fc.weight"] = torch.randn(hidden, hidden * layers) * (hidden * layers) ** -0.5
    tensors["hidden_norm.weight"] = 1 + torch.randn(hidden) * 0.2
    tensors["norm.weight"] = 1 + torch.randn(hidden) * 0.2
    return tensors


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, shards: int = 1) -> Path:
    """A model folder; with shards > 1, several files and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_tokenizer(folder: Path, vocab: int = VOCAB) -> None:
    """A byte-level tokenizer of one-character tokens: id 0 is "a", id 1 is "b" …"""
    tokenizer = Tokenizer(models.BPE(vocab={chr(97 + i): i for i in range(vocab)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_pair(
    folder: Path, target: dict[str, Any] | None = None, drafter: dict[str, Any] | None = None
) -> tuple[Path, Path]:
    """Folders of a target and a drafter that fit."""
    target, drafter = target or target_config(), drafter or drafter_config()
    target_folder = write_folder(folder / "target", target, target_tensors(target))
    write_tokenizer(target_folder, min(target["vocab_size"], 26))
    return target_folder, write_folder(folder / "drafter", drafter, drafter_tensors(drafter))


def tiny_pair(folder: Path, target: dict[str, Any] | None = None, drafter: dict[str, Any] | None = None) -> Pair:
    """The pair of `write_pair`, loaded in float32."""
    return load_pair(*write_pair(folder, target, drafter))


# -- the reference --------------------------------------------------------------------------------------------------


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _turn(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one head's vector: pair (i, i + dim/2) turns by position · theta^(-2i/dim)."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = torch.tensor(position * theta ** (-2 * i / len(x)), dtype=torch.float64)
        cos, sin = angle.cos().float(), angle.sin().float()
        out[i] = x[i] * cos - x[i + half] * sin
        out[i + half] = x[i + half] * cos + x[i] * sin
    return out


def _linear(x: Tensor, tensors: dict[str, Tensor], name: str) -> Tensor:
    y = x @ tensors[f"{name}.weight"].T
    return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y


def _attention(
    x: Tensor,
    context: Tensor,
    tensors: dict[str, Tensor],
    here: str,
    config: dict[str, Any],
    positions: list[int],
    sees: Any,
) -> Tensor:
    """Rows of x (at the last len(x) positions) attend to context then x; sees(row, column) over all columns."""
    dim, heads, kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    both = torch.cat([context, x])
    own = positions[len(context) :]
    q = _linear(x, tensors, f"{here}q_proj").view(len(x), heads, dim)
    k = _linear(both, tensors, f"{here}k_proj").view(len(both), kv_heads, dim)
    v = _linear(both, tensors, f"{here}v_proj").view(len(both), kv_heads, dim)
    if f"{here}q_norm.weight" in tensors:
        q = _norm(q, tensors[f"{here}q_norm.weight"], config["rms_norm_eps"])
        k = _norm(k, tensors[f"{here}k_norm.weight"], config["rms_norm_eps"])
    theta = config["rope_theta"]
    q = torch.stack([torch.stack([_turn(head, own[r], theta) for head in q[r]]) for r in range(len(x))])
    k = torch.stack([torch.stack([_turn(head, positions[r], theta) for head in k[r]]) for r in range(len(both))])
    out = torch.zeros(len(x), heads * dim)
    for row in range(len(x)):
        columns = [c for c in range(len(both)) if sees(row, c)]
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = torch.stack([q[row, head] @ k[c, group] for c in columns]) / dim**0.5
            mixed = (scores.softmax(-1)[:, None] * v[columns, group]).sum(0)
            out[row, head * dim : (head + 1) * dim] = mixed
    return _linear(out, tensors, f"{here}o_proj")


def _mlp(x: Tensor, tensors: dict[str, Tensor], here: str) -> Tensor:
    gate = _linear(x, tensors, f"{here}gate_proj")
    return _linear(gate / (1 + (-gate).exp()) * _linear(x, tensors, f"{here}up_proj"), tensors, f"{here}down_proj")


def reference_target(tensors: dict[str, Tensor], config: dict[str, Any], ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits [n, V] and the output of every layer (the last one after the final norm), of a plain causal pass."""
    x = tensors["model.embed_tokens.weight"][ids]
    empty = x[:0]
    hidden = []
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}."
        y = _norm(x, tensors[f"{here}input_layernorm.weight"], config["rms_norm_eps"])
        positions = list(range(len(ids)))
        x = x + _attention(y, empty, tensors, f"{here}self_attn.", config, positions, lambda row, column: column <= row)
        y = _norm(x, tensors[f"{here}post_attention_layernorm.weight"], config["rms_norm_eps"])
        x = x + _mlp(y, tensors, f"{here}mlp.")
        hidden.append(x)
    last = _norm(x, tensors["model.norm.weight"], config["rms_norm_eps"])
    hidden[-1] = last
    return last @ tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).T, hidden


def reference_drafter(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    features: Tensor,
    anchor: int,
    rows: int,
    target: dict[str, Tensor],
) -> Tensor:
    """Logits [rows - 1, V] of a block whose context is all of features [n, layers × hidden]."""
    embedding = target["model.embed_tokens.weight"]
    context = _norm(features @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], config["rms_norm_eps"])
    x = embedding[[anchor] + [config["dflash_config"]["mask_token_id"]] * (rows - 1)]
    positions = list(range(len(features) + rows))
    for layer in range(config["num_hidden_layers"]):
        here = f"layers.{layer}."
        y = _norm(x, tensors[f"{here}input_layernorm.weight"], config["rms_norm_eps"])
        x = x + _attention(y, context, tensors, f"{here}self_attn.", config, positions, lambda row, column: True)
        y = _norm(x, tensors[f"{here}post_attention_layernorm.weight"], config["rms_norm_eps"])
        x = x + _mlp(y, tensors, f"{here}mlp.")
    last = _norm(x, tensors["norm.weight"], config["rms_norm_eps"])
    return last[1:] @ target.get("lm_head.weight", embedding).T
