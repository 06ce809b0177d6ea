"""The machine: kernel, C library, Python, GPUs, driver, and the torch build as its files say (nothing is imported)."""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from typing import Any

from ddscope.remote.doctor.probe.commands import named, read_text, tool

_GPU = ("index", "name", "driver_version", "compute_cap", "memory.total")


def machine() -> dict[str, Any]:
    """System and interpreter."""
    release = read_text("/etc/os-release") or ""
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.M)
    return named(
        {
            "node": platform.node(),
            "system": pretty[1] if pretty else platform.system(),
            "kernel": platform.release(),
            "arch": platform.machine(),
            "libc": " ".join(platform.libc_ver()) or None,
            "python": platform.python_version(),
            "executable": sys.executable,
            "prefix": sys.prefix,
            "user": os.geteuid(),
            "boot_id": (read_text("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        }
    )


def gpus() -> dict[str, Any]:
    """GPUs and driver by nvidia-smi; `why` says why there are none."""
    out, why = tool(["nvidia-smi", "--query-gpu=" + ",".join(_GPU), "--format=csv,noheader"], 20.0)
    found = []
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_GPU):
            row = dict(zip((name.replace(".", "_") for name in _GPU), cells))  # noqa: B905 (Python 3.8)
            found.append(row)
    answer: dict[str, Any] = {"gpus": found}
    if found:
        answer["driver"] = found[0]["driver_version"]
        banner, _ = tool(["nvidia-smi"], 20.0)
        cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", banner)
        answer["driver_cuda"] = cuda[1] if cuda else None
    else:
        answer["why"] = why or "nvidia-smi lists no GPU"
        loaded = read_text("/proc/driver/nvidia/version") or ""
        version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", loaded)
        answer["driver"] = version[1] if version else None
    return named(answer)


def torch_build(folders: list[str]) -> dict[str, Any] | None:
    """version, cuda, hip of the torch in one of these folders, as `torch/version.py` assigns them."""
    for folder in folders:
        path = os.path.join(folder, "torch", "version.py")
        source = read_text(path)
        if source is None:
            continue
        try:
            body = ast.parse(source).body
        except (SyntaxError, ValueError):
            return {"path": path, "why": "version.py cannot be parsed"}
        found: dict[str, Any] = {"path": path}
        for node in body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            name = target.id if isinstance(target, ast.Name) else ""
            if isinstance(value, ast.Constant) and name in ("__version__", "cuda", "hip", "git_version"):
                found["version" if name == "__version__" else name] = value.value
        return found
    return None
