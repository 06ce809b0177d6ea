"""What is known of a server from its arguments and files: the header's fields and the first facts. No tensors."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ddscope_hooks import __version__
from ddscope_hooks.taps.place import Place

SETTINGS = (
    "attention_backend", "chunked_prefill_size", "context_length", "disable_cuda_graph", "disable_overlap_schedule",
    "disable_radix_cache", "dtype", "enable_dp_attention", "enable_mixed_chunk", "grammar_backend", "kv_cache_dtype",
    "max_running_requests", "mem_fraction_static", "page_size", "quantization", "sampling_backend", "device",
)  # fmt: skip
"""Arguments that are told, besides all that begin with `speculative_`. None of them can hold a key or a password."""


def header(args: Any, place: Place, algorithm: str, environ: Mapping[str, str], redact: str = "") -> dict[str, Any]:
    """Fields of the header record. args: the server's arguments; paths are cut to their last part."""
    config: dict[str, Any] = {
        name: getattr(place, name) for name in ("rank", "tp", "tp_size", "pp", "pp_size", "dp", "dp_size")
    }
    names = {name for name in getattr(args, "__dict__", {}) if name.startswith("speculative_")}
    for name in sorted(names.union(SETTINGS)):
        value = getattr(args, name, None)
        if isinstance(value, str):
            config[name] = os.path.basename(value.rstrip("/")) if name.endswith("path") else value
        elif isinstance(value, (bool, int, float)):
            config[name] = value
    if redact:
        config["redacted"] = redact
    simulated = {name: value for name, value in environ.items() if "SIMULATE_ACC" in name}
    if simulated:
        config["environment"] = simulated
    draft = getattr(args, "speculative_draft_model_path", None)
    model = {"target": _name(getattr(args, "model_path", None)), "draft": _name(draft) if draft else None}
    return {
        "engine": {
            "name": "sglang",
            "version": version("sglang") or "",
            "algorithm": algorithm.lower(),
            "config": config,
        },
        "model": {
            name: value for name, value in {**model, **_sizes(getattr(args, "model_path", None))}.items() if value
        },
    }


def versions() -> dict[str, str]:
    """Value of the fact `versions`."""
    found = {"python": platform.python_version(), "ddscope_hooks": __version__}
    for name in ("sglang", "torch"):
        told = version(name)
        if told:
            found[name] = told
    return found


def version(name: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _sizes(path: Any) -> dict[str, Any]:
    """Sizes of a model that lies in a folder, by its own configuration; nothing for a name on a hub."""
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config = config.get("text_config") or config
        wanted = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers"}
        return {ours: config[theirs] for ours, theirs in wanted.items() if isinstance(config.get(theirs), int)}
    except (OSError, TypeError, ValueError, AttributeError):
        return {}


def _name(path: Any) -> str:
    """Last part of a folder's path; the whole of a name on a hub."""
    text = str(path or "")
    return os.path.basename(text.rstrip("/")) if os.path.isabs(text) or os.path.isdir(text) else text
