"""Models for the tests: a tiny random family made from a seed, and the real pair in folders that SGLang can read.

The tiny target is nearly a bigram model (its layers add little to the embedding), so drafters made from parts of it, or
by hand, agree with it often but not always, and greedy text falls into loops that NGRAM finds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS = 512, 64, 128, 4, 2, 16, 4
SEED = 20260
EAGLE3_LAYERS = [0, 1, 2]
"""Of the target: SGLang captures the output of each, before the next layer."""

DSPARK_LAYERS, DSPARK_BLOCK = [0, 2], 4

LETTERS = "etaoinshrdlucmfwyp"


def tiny_target(folder: Path) -> Path:
    """4 layers, float32, untied head."""
    weights = _llama(LAYERS)
    return _write(folder, _config(LAYERS), weights)


def tiny_standalone_draft(folder: Path) -> Path:
    """The target's first 2 layers with its embedding and head."""
    return _write(folder, _config(2), {k: v for k, v in _llama(LAYERS).items() if _layer(k) < 2})


def tiny_eagle3_draft(folder: Path, layer_ids: list[int] | None = None, given: int | None = None) -> Path:
    """One layer that looks at the token before and tells the target's nearly-bigram successor.

    layer_ids: captured layers of the target, as the checkpoint says; given: how many features `fc` is made for.
    The attention reads the embedding's half of its input: q = k = 1.5 · e, so each position sees itself; its value is
    e − h, and with the residual h the output is e again, at every depth of the draft.
    """
    layer_ids = EAGLE3_LAYERS if layer_ids is None else layer_ids
    given = given or len(layer_ids)
    eye, none = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    generator = torch.Generator().manual_seed(SEED + 1)
    target = _llama(LAYERS)
    weights = {
        "fc.weight": torch.cat([eye] + [none] * (given - 1), dim=1),
        "midlayer.self_attn.q_proj.weight": 1.5 * torch.cat([eye, none], dim=1),
        "midlayer.self_attn.k_proj.weight": 1.5 * torch.cat([eye, none], dim=1),
        "midlayer.self_attn.v_proj.weight": torch.cat([eye, -eye], dim=1),
        "midlayer.self_attn.o_proj.weight": eye,
        "midlayer.mlp.gate_proj.weight": _random(generator, INNER, HIDDEN, scale=0.05),
        "midlayer.mlp.up_proj.weight": _random(generator, INNER, HIDDEN, scale=0.05),
        "midlayer.mlp.down_proj.weight": _random(generator, HIDDEN, INNER, scale=0.05),
        "lm_head.weight": target["lm_head.weight"],
    }
    for norm in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        weights[f"{norm}.weight"] = torch.ones(HIDDEN)
    config = _config(1) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_key_value_heads": HEADS,
        "draft_vocab_size": VOCAB,
        "num_aux_hidden_states": given,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids, "use_aux_hidden_state": True},
    }
    return _write(folder, config, weights)


def tiny_dspark_draft(folder: Path, *, confidence: bool = False) -> Path:
    """A block of drafts from the token before each alone: the Markov head tells the target's nearly-bigram successor.

    The weights of the last norm are 0, so what the backbone makes of the target's layers adds nothing to the logits.
    confidence: with a head that is never sure, 0.5 for each draft.
    """
    generator = torch.Generator().manual_seed(SEED + 3)
    target = _llama(LAYERS)
    weights = {name.removeprefix("model."): weight for name, weight in target.items() if _layer(name) == 0}
    weights |= {
        "fc.weight": _random(generator, HIDDEN, len(DSPARK_LAYERS) * HIDDEN, scale=0.05),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.zeros(HIDDEN),
        "layers.0.self_attn.q_norm.weight": torch.ones(HEAD),
        "layers.0.self_attn.k_norm.weight": torch.ones(HEAD),
        "markov_head.markov_w1.weight": target["model.embed_tokens.weight"],
        "markov_head.markov_w2.weight": target["lm_head.weight"],
    }
    if confidence:
        weights["confidence_head.proj.weight"] = torch.zeros(1, 2 * HIDDEN)
        weights["confidence_head.proj.bias"] = torch.zeros(1)
    config = _config(1) | {
        "architectures": ["DSparkDraftModel"],
        "model_type": "qwen3",
        "layer_types": ["full_attention"],
        "num_target_layers": LAYERS,
        "block_size": DSPARK_BLOCK,
        "markov_rank": HIDDEN,
        "markov_head_type": "vanilla",
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": DSPARK_LAYERS},
    }
    return _write(folder, config, weights)


def tiny_gemma4(folder: Path) -> Path:
    """A target of the one family whose drafters read its cache. Full attention in every layer, untied head."""
    config = _gemma4(LAYERS) | {"architectures": ["Gemma4ForCausalLM"], "per_layer_config": {}}
    return _write(folder, config, _gemma4_weights(LAYERS))


def tiny_gemma4_assistant(folder: Path) -> Path:
    """One layer that sees the last token's embedding and tells the target's nearly-bigram successor."""
    eye, none = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    weights = _gemma4_weights(1) | {
        "pre_projection.weight": torch.cat([eye, none], dim=1),
        "post_projection.weight": eye,
    }
    text = _gemma4(1) | {"per_layer_config": {}, "num_kv_shared_layers": 1, "vocab_size_per_layer_input": 0}
    config = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "text_config": text,
        "backbone_hidden_size": HIDDEN,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    return _write(folder, config, weights)


def real_draft(folder: Path, *, target_layer_ids: list[int] | None = None) -> Path:
    """A copy of the shipped drafter, with other target layers in its configuration where they are given."""
    import ddscope.engine

    source = Path(ddscope.engine.__file__).parent / "data" / "smollm2-dflash"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    if target_layer_ids is not None:
        config["dflash_config"]["target_layer_ids"] = target_layer_ids
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def real_target() -> Path:
    """SmolLM2-135M-Instruct, converted once into ddscope's cache."""
    from ddscope.engine.convert import default_target

    return default_target()


def heldout_prompts(count: int) -> list[list[int]]:
    """Token ids of prompts that the drafter was not trained on."""
    import ddscope.engine

    lines = (Path(ddscope.engine.__file__).parent / "data" / "smollm2-dflash" / "heldout-prompts.jsonl").read_text()
    return [json.loads(line)["prompt_ids"] for line in lines.splitlines()[:count]]


def tiny_prompts(count: int) -> list[list[int]]:
    """Random token ids, of different lengths."""
    generator = torch.Generator().manual_seed(SEED + 2)
    return [torch.randint(0, VOCAB - 2, (8 + 5 * i,), generator=generator).tolist() for i in range(count)]


# -- how they are made -------------------------------------------------------------------------------------------------


def _random(generator: torch.Generator, *shape: int, scale: float) -> Tensor:
    return torch.randn(*shape, generator=generator) * scale


def _llama(layers: int) -> dict[str, Tensor]:
    """Weights of the target. Embeddings of root mean square 1; each layer adds a tenth or so of that."""
    generator = torch.Generator().manual_seed(SEED)
    weights = {
        "model.embed_tokens.weight": _random(generator, VOCAB, HIDDEN, scale=1.0),
        "lm_head.weight": _random(generator, VOCAB, HIDDEN, scale=0.3),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for i in range(layers):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN, 0.2),
            "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN, 0.2),
            "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN, 0.12),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD, 0.04),
            "mlp.gate_proj": (INNER, HIDDEN, 0.12),
            "mlp.up_proj": (INNER, HIDDEN, 0.12),
            "mlp.down_proj": (HIDDEN, INNER, 0.03),
        }
        for name, (rows, columns, scale) in shapes.items():
            weights[f"model.layers.{i}.{name}.weight"] = _random(generator, rows, columns, scale=scale)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{norm}.weight"] = torch.ones(HIDDEN)
    return weights


def _gemma4_weights(layers: int) -> dict[str, Tensor]:
    """The other target's weights with the norms of this family: a layer adds a tenth of the scaled embedding."""
    weights = {name: weight for name, weight in _llama(layers).items() if not name.endswith("layernorm.weight")}
    for i in range(layers):
        for norm in ("input", "pre_feedforward", "post_attention", "post_feedforward"):
            small = 0.1 * HIDDEN**0.5 if norm.startswith("post") else 1.0
            weights[f"model.layers.{i}.{norm}_layernorm.weight"] = torch.full((HIDDEN,), small)
        for norm in ("q_norm", "k_norm"):
            weights[f"model.layers.{i}.self_attn.{norm}.weight"] = torch.ones(HEAD)
        weights[f"model.layers.{i}.layer_scalar"] = torch.ones(1)
    return weights


def _layer(name: str) -> int:
    """Number of the layer a weight belongs to; −1 outside."""
    return int(name.split(".")[2]) if name.startswith("model.layers.") else -1


def _config(layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": VOCAB - 2,
        "eos_token_id": VOCAB - 1,
    }


def _gemma4(layers: int) -> dict[str, Any]:
    return {
        "model_type": "gemma4_text",
        "layer_types": ["full_attention"] * layers,
        "hidden_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        **{name: value for name, value in _config(layers).items() if name not in ("architectures", "model_type")},
    }


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    _tokenizer().save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **tokens})
    )
    return folder


def _tokenizer() -> Tokenizer:
    """512 ids: all bytes, pairs of frequent letters, two specials. Any text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in LETTERS for b in LETTERS][: VOCAB - 2 - len(alphabet)]
    vocab = {text: i for i, text in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer
