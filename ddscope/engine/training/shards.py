"""Training data on disk: shards of conversations in safetensors files, a manifest, and the held-out prompts.

A shard is whole or not there: files are written beside their place and renamed, the manifest after them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ddscope.engine.config import read_json
from ddscope.engine.errors import EngineError

FORMAT = 1
MANIFEST = "manifest.json"
HELD_OUT = "heldout-prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Conversations:
    """S conversations. tokens: [N] int32, one after another; lengths, prompts: [S] int32 tokens in all and before the
    answer; temperatures: [S] of the answers."""

    tokens: Tensor
    lengths: Tensor
    prompts: Tensor
    temperatures: Tensor

    def __len__(self) -> int:
        """How many conversations."""
        return len(self.lengths)

    def each(self) -> Iterator[tuple[list[int], int]]:
        """Tokens and prompt length of one after another."""
        for text, prompt in zip(torch.split(self.tokens, self.lengths.tolist()), self.prompts.tolist(), strict=True):
            yield text.tolist(), prompt


def pack(texts: Sequence[Sequence[int]], prompts: Sequence[int], temperatures: Sequence[float]) -> Conversations:
    """Conversations from lists."""
    return Conversations(
        torch.tensor([token for text in texts for token in text], dtype=torch.int32),
        torch.tensor([len(text) for text in texts], dtype=torch.int32),
        torch.tensor(list(prompts), dtype=torch.int32),
        torch.tensor(list(temperatures), dtype=torch.float32),
    )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all. Raises EngineError when it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise EngineError(f"{path} cannot be written: {error}") from None


class DataFolder:
    """A folder of shards. `made` is what its manifest says about how they were made; it must not change."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._manifest = manifest

    @classmethod
    def open(cls, folder: Path) -> DataFolder:
        """An existing folder. Raises EngineError when it is none."""
        manifest = read_json(folder / MANIFEST)
        if manifest.get("format") != FORMAT or not isinstance(manifest.get("shards"), list):
            raise EngineError(f"{folder / MANIFEST} is no manifest of training data in format {FORMAT}")
        return cls(folder, manifest)

    @classmethod
    def create(cls, folder: Path, made: Mapping[str, Any], command: str = "") -> DataFolder:
        """An existing folder that was made like this, or a new one. command: what was typed, kept for the model card.

        Raises EngineError, naming the first difference, when an existing one was made otherwise.
        """
        if not (folder / MANIFEST).exists():
            new = cls(folder, {"format": FORMAT, "command": command, "made": dict(made), "shards": []})
            new._save()
            return new
        found = cls.open(folder)
        refuse_difference(folder, found.made, made)
        return found

    @property
    def made(self) -> dict[str, Any]:
        """How the shards were made."""
        return dict(self._manifest.get("made", {}))

    @property
    def command(self) -> str:
        """What was typed to make it."""
        return str(self._manifest.get("command", ""))

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self._manifest["shards"])

    def count(self, what: str) -> int:
        """Over all shards: `sequences`, `tokens`, or what else a shard was noted with."""
        return sum(int(shard.get(what, 0)) for shard in self._manifest["shards"])

    def add(self, data: Conversations, **noted: int) -> None:
        """One shard more."""
        name = f"shard-{self.shards:05}.safetensors"
        tensors = {
            "tokens": data.tokens,
            "lengths": data.lengths,
            "prompts": data.prompts,
            "temperatures": data.temperatures,
        }
        write_whole(self.folder / name, save(tensors))
        self._manifest["shards"].append({"file": name, "sequences": len(data), "tokens": len(data.tokens), **noted})
        self._save()

    def read(self, shard: int) -> Conversations:
        """One shard. Raises EngineError when its file is missing, broken, or not what the manifest says."""
        entry = self._manifest["shards"][shard]
        path = self.folder / Path(str(entry["file"])).name
        try:
            tensors = load_file(path)
            data = Conversations(*(tensors[name] for name in ("tokens", "lengths", "prompts", "temperatures")))
        except (OSError, SafetensorError, KeyError) as error:
            raise EngineError(f"{path} is no readable shard of training data: {error}") from None
        whole = int(data.lengths.sum()) == len(data.tokens) == entry["tokens"]
        if not whole or len(data) != entry["sequences"] or len(data.prompts) != len(data):
            raise EngineError(f"{path} does not hold what {MANIFEST} says it holds")
        return data

    def read_all(self) -> Conversations:
        """All shards as one. Raises EngineError when there are none or one is broken."""
        parts = [self.read(shard) for shard in range(self.shards)]
        if not parts or not sum(len(part) for part in parts):
            raise EngineError(f"{self.folder} holds no conversations yet")
        return Conversations(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.lengths for part in parts]),
            torch.cat([part.prompts for part in parts]),
            torch.cat([part.temperatures for part in parts]),
        )

    def _save(self) -> None:
        write_whole(self.folder / MANIFEST, (json.dumps(self._manifest, indent=1) + "\n").encode())


def refuse_difference(where: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises EngineError when what is there was begun with other options than are wanted now."""
    # Through JSON, as what was found has been: a tuple has become a list.
    wanted = json.loads(json.dumps(wanted))
    for name in wanted:
        if found.get(name) != wanted[name]:
            raise EngineError(
                f"{where} was begun with {name.replace('_', '-')} {found.get(name)!r}, not {wanted[name]!r}; "
                "go on with the same options, or give another folder"
            )


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A prompt that no drafter is trained on. text: the user's message; ids: the whole chat prompt."""

    text: str
    ids: list[int]


def read_held_out(path: Path) -> list[HeldOut]:
    """Prompts from JSON lines with `prompt` and `prompt_ids`. Raises EngineError for a file that is something else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.strip()]
        prompts = [HeldOut(str(entry["prompt"]), [int(token) for token in entry["prompt_ids"]]) for entry in entries]
    except FileNotFoundError:
        raise EngineError(f"{path} does not exist; it should hold prompts as JSON lines") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} cannot be read as prompts in JSON lines ({type(error).__name__}: {error})") from None
    if not prompts:
        raise EngineError(f"{path} holds no prompts")
    return prompts


def write_held_out(path: Path, prompts: Sequence[HeldOut]) -> None:
    """The file that `read_held_out` reads."""
    lines = [json.dumps({"prompt": prompt.text, "prompt_ids": prompt.ids}, ensure_ascii=False) for prompt in prompts]
    write_whole(path, ("\n".join(lines) + "\n").encode())
