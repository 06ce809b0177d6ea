"""Server arguments: what was asked for on the command line against what the server says is in force."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddscope.remote.doctor.collected import Collected

ALIASES = {
    "tensor_parallel_size": "tp_size", "tp": "tp_size", "data_parallel_size": "dp_size", "dp": "dp_size",
    "pipeline_parallel_size": "pp_size", "pp": "pp_size", "expert_parallel_size": "ep_size", "ep": "ep_size",
    "model": "model_path",
    "speculative_draft_model": "speculative_draft_model_path", "context_len": "context_length",
}  # fmt: skip
TELLING = re.compile(
    r"speculative|attention_backend|^sampling_backend|graph|overlap|^dtype|quantization|kv_cache|page_size"
    r"|^[tdp]p_size|max_running|mem_fraction|context_length|chunked_prefill|radix|mamba|deterministic|hidden_states|compile"
)
"""Arguments that say how speculation and the engine run; of others only those asked for are compared."""
NO_ARGUMENTS = ("startup_time", "version", "frontend", "launch_command", "kv_events")
"""What a server tells beside its arguments."""
_EQUAL = ({"true", "1"}, {"false", "0"}, {"none", "null", ""})
_PYTHONIC = re.compile(r"(^|/)(python[\d.]*|sglang|vllm)$")


@dataclass(frozen=True)
class ArgumentChange:
    """An argument that is not in force as it was asked for. benign: why that is as it should be, "" where it is not."""

    name: str
    requested: str
    effective: str
    benign: str = ""


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Arguments of a server's command line: {name_with_underscores: text, True for a bare flag, list for several}."""
    found: dict[str, Any] = {}
    name: str | None = None
    for word in _after_program(argv):
        if word.startswith("--") and len(word) > 2:
            bare, equals, value = word[2:].partition("=")
            name = ALIASES.get(bare.replace("-", "_"), bare.replace("-", "_"))
            found[name] = value if equals else True
            name = None if equals else name
        elif re.fullmatch(r"-[A-Za-z]{1,2}", word):
            name = ALIASES.get(word[1:], word[1:])
            found[name] = True
        elif name is not None:
            before = found[name]
            found[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return found


def _after_program(argv: Sequence[str]) -> list[str]:
    """Without the interpreter's own options: `python -m sglang.launch_server …`."""
    words = list(argv)
    if words and _PYTHONIC.search(words[0]):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "--"):
            words = words[2:] if words[0] in ("-X", "-W") else words[1:]
        words = words[2:] if words and words[0] in ("-m", "-c") else words[1:]
    return words


def requested(found: Collected) -> dict[str, Any]:
    """What the process was started with."""
    return parse(found.process.argv) if found.process is not None else {}


def effective(found: Collected) -> dict[str, Any]:
    """What the server says is in force, of its own arguments: plain values only."""
    settings = found.server_info.settings if found.server_info is not None else None
    if not isinstance(settings, dict):
        return {}
    plain = {name: value for name, value in settings.items() if isinstance(value, str | int | float | bool | None)}
    return {name: value for name, value in plain.items() if name not in NO_ARGUMENTS}


def changes(found: Collected) -> list[ArgumentChange]:
    """Arguments that were asked for and are not in force so."""
    asked, given = requested(found), effective(found)
    rows = []
    for name, value in asked.items():
        if name in given and not _same(value, given[name]):
            was, now = text(value), text(given[name])
            rows.append(ArgumentChange(name, was, now, _benign(name, was, now)))
    return sorted(rows, key=lambda row: (bool(row.benign), not TELLING.search(row.name), row.name))


def text(value: Any) -> str:
    """A value as a person writes it on a command line."""
    return " ".join(map(text, value)) if isinstance(value, list) else str(value)


def _benign(name: str, was: str, now: str) -> str:
    if name == "speculative_algorithm" and was.upper() == "NEXTN" and now.upper() == "EAGLE":
        return "NEXTN is another name of EAGLE"
    if was.lower() in ("auto", "default"):
        return "it was left to the server"
    if now == "(hidden)" or was == "(hidden)":
        return "secret"
    return ""


def _same(asked: Any, given: Any) -> bool:
    one, other = text(asked).strip(), text(given).strip()
    if one == other or one.rstrip("/") == other.rstrip("/"):
        return True
    low = one.lower(), other.lower()
    if any(low[0] in group and low[1] in group for group in _EQUAL):
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return low[0] == low[1]
