"""Prompts from the command line and from a JSON Lines file, as arguments of the engine's `submit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddscope.cli.errors import CommandError


def prompts_of(texts: Sequence[str] | None, path: Path | None) -> list[dict[str, Any]]:
    """One `{"prompt": …}` or `{"prompt_ids": …}` a request. Raises CommandError naming the line that is wrong."""
    prompts: list[dict[str, Any]] = []
    for text in texts or ():
        if not text.strip():
            raise CommandError("The prompt is empty; give --prompt a text.")
        prompts.append({"prompt": text})
    return prompts + (_from_file(path) if path is not None else [])


def _from_file(path: Path) -> list[dict[str, Any]]:
    import msgspec

    prompts = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise CommandError(f"{path.name}, line {number}: this is no JSON object.") from None
        prompts.append(_checked(item, f"{path.name}, line {number}"))
    if not prompts:
        raise CommandError(f'{path.name} holds no prompts; it takes one object a line with "prompt" or "prompt_ids".')
    return prompts


def _checked(item: object, where: str) -> dict[str, Any]:
    if isinstance(item, dict):
        ids, text = item.get("prompt_ids"), item.get("prompt")
        if ids is not None:
            if isinstance(ids, list) and ids and all(type(i) is int and i >= 0 for i in ids):
                return {"prompt_ids": ids}
            raise CommandError(f"{where}: prompt_ids takes a list of at least one token id.")
        if isinstance(text, str) and text.strip():
            return {"prompt": text}
    raise CommandError(f'{where}: needs "prompt" (a text) or "prompt_ids" (a list of token ids).')
