"""Test support: tiny targets with a chat template, and data that they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ddscope.engine.training.data import write_data
from ddscope.engine.training.forward import BatchTarget
from ddscope.engine.training.options import DataOptions, TrainOptions
from ddscope.engine.training.shards import DataFolder
from tests.engine_models import drafter_config, target_config, target_tensors, write_folder, write_pair, write_tokenizer

TEMPLATE = "ab{{ messages[0]['content'] }}cd"
"""Ids 0, 1 before a message; 2, 3 after it: 2 ends a message."""
EOS = 15


class Silent:
    """Progress that nobody watches; what was told is kept."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, float, str]] = []

    def at(self, what: str, done: float, total: float, note: str = "") -> None:
        self.told.append((what, done, total, note))

    def close(self) -> None:
        pass


def chat_target(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A tiny random target whose chats can be written."""
    config = target_config(family, eos_token_id=EOS, **changes)
    write_folder(folder, config, target_tensors(config))
    return _chat(folder)


def chat_pair(folder: Path) -> tuple[Path, Path]:
    """Folders of such a target and of a random drafter for it."""
    target, drafter = write_pair(folder, target_config(eos_token_id=EOS), drafter_config())
    return _chat(target), drafter


def _chat(folder: Path) -> Path:
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def load(folder: Path) -> BatchTarget:
    """In float32 on the CPU."""
    return BatchTarget.load(folder, torch.float32, torch.device("cpu"))


def data_options(target: Path, out: Path, **changes: Any) -> DataOptions:
    """Small batches of short conversations."""
    small = {"sequences": 24, "batch": 16, "prompt_tokens": 9, "answer_tokens": 20, "held_out": 3, "device": "cpu"}
    return DataOptions(target=target, out=out, **(small | changes))


def train_options(target: Path, data: Path, run: Path, **changes: Any) -> TrainOptions:
    """A drafter of two layers, few blocks."""
    small: dict[str, Any] = {"steps": 12, "layers": 2, "block": 5, "features": 2, "batch": 4, "anchors": 6}
    small |= {"max_tokens": 48, "warmup": 2, "log_every": 2, "checkpoint_every": 4, "device": "cpu"}
    return TrainOptions(target=target, data=data, run=run, **(small | changes))


def written(target: Path, out: Path, **changes: Any) -> DataFolder:
    """Data in a folder."""
    return write_data(data_options(target, out, **changes), Silent())
