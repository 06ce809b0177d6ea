"""The two configurations: a target of the Llama or Qwen3 family, and a z-lab DFlash drafter, read from `config.json`.

Only what the decoder uses. What it cannot do is refused here, by name, before any weight is read.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddscope.engine.errors import EngineError

TARGET_FAMILIES = ("llama", "qwen3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the base, and Llama 3's long-context scaling where factor > 1."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """[head_dim / 2] radians a position, in float64. Scaling as in Llama 3.1: long wavelengths are stretched."""
        plain = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        return plain if self.factor == 1.0 else [self._stretch(frequency) for frequency in plain]

    def _stretch(self, frequency: float) -> float:
        turns = self.original_positions * frequency / (2 * math.pi)
        if turns >= self.high_freq_factor:
            return frequency
        if turns <= self.low_freq_factor:
            return frequency / self.factor
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return frequency * (share + (1 - share) / self.factor)


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of a stack of pre-norm decoder layers. Sizes in elements."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    rope: Rope
    qk_norm: bool
    attention_bias: bool
    mlp_bias: bool
    vocab: int
    max_positions: int


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A target: its stack, whether the head shares the embedding, and the ids that end a text."""

    stack: TransformerConfig
    tied: bool
    eos_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter: its stack, its block (rows, the anchor included), and which layers of the target feed it.

    target_layer_ids: 0-based layers of the target whose OUTPUT is taken (entry id + 1 of a list that starts with the
    embedding), in the order in which they are concatenated.
    """

    stack: TransformerConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises EngineError when it is missing or is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise EngineError(f"{path} holds a {type(value).__name__} where a JSON object is expected")
    return value


def read_target_config(folder: Path) -> TargetConfig:
    """The target's configuration. Raises EngineError, in one sentence, for a family or feature the decoder lacks."""
    raw = read_json(folder / "config.json")
    family = raw.get("model_type")
    if family not in TARGET_FAMILIES:
        raise EngineError(f"{folder}: model_type is {family!r}, and the engine knows {' and '.join(TARGET_FAMILIES)}")
    stack = _stack(folder, raw, qk_norm=family == "qwen3")
    eos = raw.get("eos_token_id")
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos = read_json(generation).get("eos_token_id", eos)
    ids = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return TargetConfig(stack, tied=bool(raw.get("tie_word_embeddings", False)), eos_ids=ids)


def read_drafter_config(folder: Path) -> DrafterConfig:
    """The drafter's configuration in the z-lab layout. Raises EngineError when something needed is missing or odd."""
    raw = read_json(folder / "config.json")
    own = raw.get("dflash_config")
    if not isinstance(own, dict):
        raise EngineError(f"{folder}: config.json has no dflash_config, so this is no DFlash drafter")
    stack = _stack(folder, raw, qk_norm=True)
    targets = _whole(folder, raw, "num_target_layers")
    block = _whole(folder, raw, "block_size")
    if block < 2:
        raise EngineError(f"{folder}: block_size is {block}, and a block needs the anchor and at least one mask")
    mask = own.get("mask_token_id")
    if not isinstance(mask, int) or not 0 <= mask < stack.vocab:
        raise EngineError(f"{folder}: mask_token_id is {mask!r}, outside the vocabulary of {stack.vocab}")
    layers = own.get("target_layer_ids") or default_layer_ids(targets, stack.layers)
    if any(not isinstance(layer, int) or not 0 <= layer < targets for layer in layers):
        raise EngineError(f"{folder}: target_layer_ids {list(layers)} leave the target's layers 0 … {targets - 1}")
    return DrafterConfig(stack, block, mask, tuple(layers), targets)


def default_layer_ids(target_layers: int, count: int) -> list[int]:
    """Layers that a drafter without target_layer_ids was trained on: `count` of them, evenly from 1 to layers - 3."""
    if count == 1:
        return [target_layers // 2]
    span = target_layers - 4
    return [round(1 + i * span / (count - 1)) for i in range(count)]


def check_pair(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Raises EngineError with the numbers that disagree when the drafter was not made for this target."""
    pairs = (
        ("hidden_size", drafter.stack.hidden, target.stack.hidden),
        ("vocab_size", drafter.stack.vocab, target.stack.vocab),
        ("num_target_layers", drafter.num_target_layers, target.stack.layers),
    )
    wrong = [f"{name} {ours} in the drafter, {theirs} in the target" for name, ours, theirs in pairs if ours != theirs]
    if wrong:
        raise EngineError(f"The drafter was not made for this target: {'; '.join(wrong)}")


def _stack(folder: Path, raw: dict[str, Any], *, qk_norm: bool) -> TransformerConfig:
    if raw.get("hidden_act", "silu") != "silu":
        raise EngineError(f"{folder}: hidden_act is {raw['hidden_act']!r}, and the engine knows silu")
    if raw.get("use_sliding_window"):
        raise EngineError(f"{folder}: use_sliding_window is set, and the engine attends to everything")
    hidden, heads = _whole(folder, raw, "hidden_size"), _whole(folder, raw, "num_attention_heads")
    kv_heads = raw.get("num_key_value_heads") or heads
    head_dim = raw.get("head_dim") or hidden // heads
    if heads % kv_heads or head_dim % 2:
        raise EngineError(f"{folder}: {heads} heads, {kv_heads} KV heads and head_dim {head_dim} do not fit together")
    return TransformerConfig(
        hidden=hidden,
        layers=_whole(folder, raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=_whole(folder, raw, "intermediate_size"),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(folder, raw),
        qk_norm=qk_norm,
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        vocab=_whole(folder, raw, "vocab_size"),
        max_positions=int(raw.get("max_position_embeddings") or 1 << 30),
    )


def _rope(folder: Path, raw: dict[str, Any]) -> Rope:
    # Files of transformers 5 hold everything in rope_parameters; older ones rope_theta beside rope_scaling.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise EngineError(f"{folder}: rope scaling {kind!r} is not supported (none and llama3 are)")
    try:
        return Rope(
            theta,
            float(scaling["factor"]),
            float(scaling["low_freq_factor"]),
            float(scaling["high_freq_factor"]),
            int(scaling["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise EngineError(f"{folder}: rope scaling llama3 lacks {error.args[0]}") from None


def _whole(folder: Path, raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise EngineError(f"{folder}: {name} is {value!r} in config.json, where a positive whole number is expected")
    return value
