"""What must not leave a host: values of keys, tokens and passwords, in arguments, variables and unit files."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
_NAME = re.compile(
    r"(^|[_.-])(api[_-]?keys?|keys?|token|(api|access|auth)[_-]?tokens|secrets?|passwords?|passwd|pass|credentials?|auth|cookies?)\d*$",
    re.I,
)
_NO_SECRET = re.compile(r"(mask|eos|bos|pad|unk|stop|image|think\w*|sort|group|cache)[_-](token|key)$", re.I)
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_-][A-Za-z0-9_.-]*)\s*=\s*")
_OPTION = re.compile(r"(?P<name>--[A-Za-z][A-Za-z0-9_.-]*)\s+(?=[^\s-])")
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+")
_URL = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")
TOLD = re.compile(
    r"^(CUDA|SGLANG|SGL_|VLLM|NCCL|TORCH|PYTORCH|TRITON|FLASHINFER|DDSCOPE|OMP_|MKL_|HIP_|ROCM|NVIDIA_|NVTE|HF_HUB_OFFLINE"
    r"|TRANSFORMERS_OFFLINE|LD_LIBRARY_PATH$|LD_PRELOAD$|PYTHONPATH$|PYTHONHOME$|VIRTUAL_ENV$|CONDA_PREFIX$|PATH$)"
)
"""Variables whose values are told; of all others not even the name."""


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name holds a secret: `HF_TOKEN`, `--api-key`; not `--max-total-tokens`."""
    bare = name.lstrip("-")
    return bool(_NAME.search(bare)) and not _NO_SECRET.search(bare)


def arguments(argv: list[str]) -> list[str]:
    """A command line without the values of its secret options."""
    told, hide = [], False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide:
            told.append(HIDDEN)
            hide = False
        elif equals and is_secret(name):
            told.append(name + "=" + HIDDEN)
        else:
            told.append(text(word) if " " in word else _URL.sub(r"\1" + HIDDEN + "@", word))
            hide = word.startswith("-") and is_secret(word)
    return told


def text(lines: str) -> str:
    """A unit file, or another text, without the values of what is named like a secret."""
    return _URL.sub(r"\1" + HIDDEN + "@", _hide(_ASSIGNED, _hide(_OPTION, lines)))


def _hide(pattern: re.Pattern[str], lines: str) -> str:
    told: list[str] = []
    at = 0
    while True:
        match = pattern.search(lines, at)
        if match is None:
            return "".join(told) + lines[at:]
        told.append(lines[at : match.end()])
        at = match.end()
        if is_secret(match["name"]):
            at = _value_end(lines, match.start(), at)
            told.append(HIDDEN)


def _value_end(lines: str, name: int, begin: int) -> int:
    """Where a value ends that begins at `begin`; its name begins at `name`, maybe behind a quote that holds both."""
    quote = lines[name - 1] if name else ""
    if quote in ("'", '"'):
        found = re.compile(rf"[{quote}\n]").search(lines, begin)
        return found.start() if found else len(lines)
    value = _VALUE.match(lines, begin)
    return value.end() if value else begin


def environment(values: dict[str, str]) -> dict[str, str]:
    """Those variables that say how a server runs."""
    return {
        name: HIDDEN if is_secret(name) else _URL.sub(r"\1" + HIDDEN + "@", value)
        for name, value in sorted(values.items())
        if TOLD.match(name)
    }


def settings(value: Any) -> Any:
    """Settings as a server tells them (nested), without the values of what is named like a secret."""
    if isinstance(value, dict):
        return {
            str(name): HIDDEN if is_secret(str(name)) and inner not in (None, "", False) else settings(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        # A list of words may be a command line.
        words = all(isinstance(inner, str) for inner in value)
        return arguments(value) if words else [settings(inner) for inner in value]
    return text(value) if isinstance(value, str) else value
