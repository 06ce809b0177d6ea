"""Tensors of a model folder: one `model.safetensors` or shards with an index; checked by name and shape before use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ddscope.engine.config import TransformerConfig, read_json
from ddscope.engine.errors import EngineError

Shapes = Mapping[str, tuple[int, ...]]
_SHOWN = 3  # names a sentence lists before it counts the rest


def layer_shapes(stack: TransformerConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of all layers of a stack, as Hugging Face names them, each under `prefix`."""
    wide, narrow = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    linear = {
        "self_attn.q_proj": (wide, stack.hidden, stack.attention_bias),
        "self_attn.k_proj": (narrow, stack.hidden, stack.attention_bias),
        "self_attn.v_proj": (narrow, stack.hidden, stack.attention_bias),
        "self_attn.o_proj": (stack.hidden, wide, stack.attention_bias),
        "mlp.gate_proj": (stack.intermediate, stack.hidden, stack.mlp_bias),
        "mlp.up_proj": (stack.intermediate, stack.hidden, stack.mlp_bias),
        "mlp.down_proj": (stack.hidden, stack.intermediate, stack.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(stack.layers):
        here = f"{prefix}layers.{layer}."
        for name, (rows, columns, bias) in linear.items():
            shapes[f"{here}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{here}{name}.bias"] = (rows,)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{here}{norm}.weight"] = (stack.hidden,)
        if stack.qk_norm:
            for norm in ("q_norm", "k_norm"):
                shapes[f"{here}self_attn.{norm}.weight"] = (stack.head_dim,)
    return shapes


def load_tensors(folder: Path, expected: Shapes, *, ignore: Iterable[str] = ()) -> dict[str, Tensor]:
    """The expected tensors of a folder, on the CPU, in the dtype of the file.

    ignore: names that may be there and are not read.
    Raises EngineError, naming tensors, when some are missing, extra or misshapen, or when a file is missing or broken.
    """
    files = _files(folder)
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in files:
        with _opened(path) as handle:
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
                found[name] = (path, tuple(handle.get_slice(name).get_shape()))
    _compare(folder, expected, {name: shape for name, (_, shape) in found.items()}, frozenset(ignore))
    tensors: dict[str, Tensor] = {}
    for path in files:
        with _opened(path) as handle:
            for name, (at, _) in found.items():
                if at == path and name in expected:
                    tensors[name] = handle.get_tensor(name)
    return tensors


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise EngineError(f"{folder} is no folder")
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise EngineError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise EngineError(f"{index} has no weight_map")
    paths = [folder / name for name in sorted({str(shard) for shard in shards.values()})]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise EngineError(f"{folder} has no {path.name}, which its index lists")
    return paths


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise EngineError(f"{path} is no readable safetensors file: {error}") from None


def _compare(folder: Path, expected: Shapes, found: Shapes, ignore: frozenset[str]) -> None:
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected and name not in ignore]
    misshapen = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    faults = [(missing, "missing: "), (extra, "not expected: "), (misshapen, "")]
    said = [lead + _listed(names) for names, lead in faults if names]
    if said:
        raise EngineError(f"{folder}: tensors do not fit config.json; {'; '.join(said)}")


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
