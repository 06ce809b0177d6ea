"""A trained drafter as a folder in the z-lab DFlash layout, with a model card that says how to make it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from ddscope.engine.config import Rope, read_json
from ddscope.engine.training.card import FACTS, SCORES, write_card
from ddscope.engine.training.common import TargetFolder
from ddscope.engine.training.model import DrafterModule
from ddscope.engine.training.shape import megabytes, parameters
from ddscope.engine.training.shards import HELD_OUT, write_whole


def export(
    folder: Path, drafter: DrafterModule, target: TargetFolder, facts: dict[str, Any], data: Path | None = None
) -> Path:
    """Write config.json, model.safetensors (bfloat16), training.json, the held-out prompts of `data`, and the card.

    Scores that another drafter got in this folder are removed. Raises EngineError when the folder cannot be written.
    """
    config = drafter.config
    raw = read_json(target.folder / "config.json")
    stack = config.stack
    content: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": stack.hidden,
        "intermediate_size": stack.intermediate,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_dim,
        "rms_norm_eps": stack.norm_eps,
        **_rope(stack.rope),
        "vocab_size": stack.vocab,
        "max_position_embeddings": stack.max_positions,
        "hidden_act": "silu",
        "attention_bias": stack.attention_bias,
        "mlp_bias": stack.mlp_bias,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
        "layer_types": ["full_attention"] * stack.layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
    }
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in drafter.state_dict().items()
    }
    facts = facts | {"parameters": parameters(config), "megabytes": round(megabytes(config), 1)}
    model, content_of_it = folder / "model.safetensors", save(tensors, metadata={"format": "pt"})
    if not model.is_file() or model.read_bytes() != content_of_it:
        (folder / SCORES).unlink(missing_ok=True)
        write_whole(model, content_of_it)
    write_whole(folder / "config.json", (json.dumps(content, indent=2) + "\n").encode())
    write_whole(folder / FACTS, (json.dumps(facts, indent=1) + "\n").encode())
    if data is not None and (data / HELD_OUT).is_file():
        write_whole(folder / HELD_OUT, (data / HELD_OUT).read_bytes())
    write_card(folder)
    return folder


def _rope(rope: Rope) -> dict[str, Any]:
    if rope.factor == 1.0:
        return {"rope_theta": rope.theta}
    scaling = {
        "rope_type": "llama3",
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_positions,
    }
    return {"rope_theta": rope.theta, "rope_scaling": scaling}
