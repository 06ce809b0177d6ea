"""A training run on disk: one checkpoint, whole or not there, and a log that never runs ahead of it.

Draws depend on the seed and the step alone (`common.draws`) and so does the order of the data, so the step is the whole
state of both.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from ddscope.engine.errors import EngineError
from ddscope.engine.training.shards import refuse_difference, write_whole

CHECKPOINT = "checkpoint.pt"
LOG = "log.jsonl"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """step: optimizer steps done; seconds: spent on them; model, optimizer: state dicts."""

    step: int
    seconds: float
    model: dict[str, Any]
    optimizer: dict[str, Any]


class Run:
    """The folder of one run; `options` are those that decide its course."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.folder, self._options = folder, dict(options)

    def save(self, state: Checkpoint) -> None:
        """Replace the checkpoint."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, "options": json.dumps(self._options), **vars(state)}, buffer)
        write_whole(self.folder / CHECKPOINT, buffer.getvalue())

    def load(self, device: torch.device) -> Checkpoint | None:
        """The checkpoint, None when there is none; the log is cut back to it, the folder made where it is not there.

        Raises EngineError when it cannot be read or written, or was begun with other options.
        """
        path = self.folder / CHECKPOINT
        if not path.exists():
            write_whole(self.folder / LOG, b"")
            return None
        try:
            raw = torch.load(path, map_location=device, weights_only=True)
            options = json.loads(raw["options"])
            state = Checkpoint(raw["step"], raw["seconds"], raw["model"], raw["optimizer"])
        except (OSError, RuntimeError, UnpicklingError, ValueError, KeyError, EOFError) as error:
            raise EngineError(
                f"{path} is no readable checkpoint ({type(error).__name__}); delete it to start anew"
            ) from None
        refuse_difference(self.folder, options, self._options)
        lines = [line for line in self.log() if line["step"] <= state.step]
        write_whole(self.folder / LOG, "".join(json.dumps(line) + "\n" for line in lines).encode())
        return state

    def log(self) -> list[dict[str, Any]]:
        """Lines of the log; a last line that was cut off is not there."""
        path = self.folder / LOG
        if not path.exists():
            return []
        whole = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in whole]

    def note(self, line: Mapping[str, Any]) -> None:
        """One line more."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
