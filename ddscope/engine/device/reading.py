"""From the device to the host, one step behind: all that is told of a step in one buffer, one copy, one event.

The device packs tensors into bytes; here they become arrays again, and per request the values of a trace record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddscope.engine.device.plan import Plan
from ddscope.engine.drafting import finite
from ddscope.engine.step import DraftStep, StepResult, TargetStep
from ddscope_kernels.batched.walk import LENGTH, STOP

Arrays = Mapping[str, NDArray[Any]]
REASONS = {STOP: "stop", LENGTH: "length"}
_NUMPY: dict[torch.dtype, type[np.generic]] = {
    torch.int64: np.int64,
    torch.float64: np.float64,
    torch.int32: np.int32,
    torch.float32: np.float32,
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: type[np.generic]
    shape: tuple[int, ...]
    start: int
    stop: int


class Packing:
    """The layout of what one plan tells: made from the tensors, wide ones first, so that every one lies aligned."""

    def __init__(self, told: Mapping[str, Tensor]) -> None:
        self._fields: list[_Field] = []
        at = 0
        for name, tensor in sorted(told.items(), key=lambda item: -_told_dtype(item[1]).itemsize):
            dtype = _told_dtype(tensor)
            size = tensor.numel() * dtype.itemsize
            self._fields.append(_Field(name, _NUMPY[dtype], tuple(tensor.shape), at, at + size))
            at += size
        self.size = at

    def pack(self, told: Mapping[str, Tensor], out: Tensor) -> None:
        """Write all tensors into out [size] uint8."""
        torch.cat([_bytes(told[field.name]) for field in self._fields], out=out)

    def arrays(self, packed: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The tensors as arrays over `packed`, which is not copied."""
        return {
            field.name: packed[field.start : field.stop].view(field.kind).reshape(field.shape) for field in self._fields
        }


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.to(_told_dtype(tensor)).reshape(-1)
    if flat.stride(0) != 1:  # one entry of a wider tensor counts as contiguous, but has no bytes view
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _told_dtype(tensor: Tensor) -> torch.dtype:
    """Activations travel as float32; everything else as it is."""
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


@dataclass(frozen=True, slots=True)
class Told:
    """A step of all requests, on the host. us: device time since the step before it ended, 0 where nothing measured.

    graph: whether it was one CUDA graph.
    """

    plan: Plan
    arrays: Arrays
    us: int
    graph: bool

    def copied(self) -> Told:
        """The same, in memory of its own."""
        return replace(self, arrays={name: array.copy() for name, array in self.arrays.items()})

    def emitted(self, request: int) -> list[int]:
        """Tokens that the step emitted; none for a request that had ended."""
        count = int(self.arrays["counts"][request])
        tokens: list[int] = self.arrays["emitted"][request, :count].tolist()
        return tokens

    def accepted(self, request: int) -> int:
        """Drafted tokens on the path."""
        return int(self.arrays["lengths"][request]) - 1

    def reason(self, request: int) -> str | None:
        """Why the text ended with this step, None where it goes on."""
        return REASONS.get(int(self.arrays["reasons"][request]))

    def result(self, request: int, budget: int) -> StepResult:
        """The step of one request as values of a trace record; only of a plan that is traced.

        budget: nodes that were allowed. Hidden states and logits stay on the device, so there is no replay check.
        """
        a, plan = self.arrays, self.plan
        count = int(a["tree.counts"][request])
        length = int(a["lengths"][request])
        path: list[int] = a["path"][request, :length].tolist()
        emitted = self.emitted(request)
        bits = a["tree.bits"][request, : count + 1].astype(np.uint32)
        return StepResult(
            algorithm=plan.algorithm,
            base=int(a["base"][request]),
            root=int(a["root"][request]),
            budget=budget,
            draft=self._draft(request),
            tokens=a["tree.tokens"][request, :count].tolist(),
            parents=a["tree.parents"][request, :count].tolist(),
            depths=a["tree.depths"][request, : count + 1].tolist(),
            logprobs=finite(a["tree.logprobs"][request, :count].tolist()),
            scores=a["tree.scores"][request, : count + 1].tolist(),
            positions=a["tree.positions"][request, : count + 1].tolist(),
            mask=[_bits(row) for row in bits],
            target=self._target(request, count, length),
            path=path,
            bonus=int(a["bonus"][request]),
            emitted=emitted,
            reason=self.reason(request),
            truncated=len(emitted) < length,
            times={"total": self.us} if self.us else {},
            nonfinite={
                "draft": int(a["draft.nonfinite"][request].sum()) if plan.depths else 0,
                "target": int(a["target.nonfinite"][request, : count + 1].sum()),
            },
            tensors=[],
            logits=None,
            hidden=[],
            graph=self.graph,
        )

    def _draft(self, request: int) -> DraftStep | None:
        if not self.plan.depths:
            return None
        a = self.arrays
        whole = self.plan.draft_vocab is None
        return DraftStep(
            a["draft.ids"][request].tolist(),
            [finite(row) for row in a["draft.logprobs"][request].tolist()],
            finite(a["draft.logz"][request].tolist()) if whole else None,
            finite(a["draft.entropy"][request].tolist()) if whole else None,
        )

    def _target(self, request: int, count: int, length: int) -> TargetStep:
        a = self.arrays
        return TargetStep(
            a["target.choices"][request, : count + 1].tolist(),
            finite(a["target.logprobs"][request, : count + 1].tolist()),
            finite(a["target.gaps"][request, : count + 1].tolist()),
            a["path.ids"][request, :length].tolist(),
            [finite(row) for row in a["path.logprobs"][request, :length].tolist()],
        )


def _bits(words: NDArray[np.uint32]) -> int:
    return int.from_bytes(words.tobytes(), "little")
