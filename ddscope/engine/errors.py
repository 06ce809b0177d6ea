"""What the engine refuses, as sentences a person can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class EngineError(ValueError):
    """The engine cannot do what it was asked. The message is one sentence."""


class DraftShapeError(EngineError):
    """A tensor that entered the drafter has a shape that its weights cannot take.

    name: the tensor; got: its shape; expected: the shape that fits, None where any size does.
    tensors: fields of `tensor` records for what had entered the drafter by then, filled in by who knows them.
    """

    def __init__(self, name: str, got: Sequence[int], expected: Sequence[int | None], cause: str) -> None:
        self.name = name
        self.got = list(got)
        self.expected = list(expected)
        self.tensors: list[dict[str, Any]] = []
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        super().__init__(f"{name} has shape {self.got} where [{wanted}] is expected: {cause}")
