"""From the engine's values to the fields of trace records. Shapes and meaning are in docs/trace-format.md."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddscope import __version__

if TYPE_CHECKING:
    from ddscope.engine.errors import DraftShapeError
    from ddscope.engine.pair import Pair
    from ddscope.engine.step import Params, StepResult


def header(pair: Pair, params: Params) -> dict[str, Any]:
    """Fields of the header record that the emitter does not know by itself."""
    return {
        "producer": {"name": "ddscope.engine", "version": __version__},
        "engine": {
            "name": "ddscope",
            "version": __version__,
            "algorithm": params.algorithm,
            "config": {
                "budget": params.budget,
                "topk": params.topk,
                "draft_rows": params.draft_rows,
                "draft_vocab": params.draft_vocab,
                "cut": params.cut,
                "temperature": params.temperature,
                "seed": params.seed,
                "max_new_tokens": params.max_new_tokens,
                "dtype": pair.dtype_name,
                "device": pair.device_name,
            },
        },
        "model": pair.describe(),
    }


def versions() -> dict[str, str]:
    """Versions of what computes."""
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "ddscope": __version__}


def step(rid: str, number: int, result: StepResult, params: Params) -> dict[str, Any]:
    """Fields of a step record. Before its commit (at a breakpoint) a step has neither `commit` nor `total` time."""
    times = dict(result.times)
    if "commit" in times:
        times["total"] = sum(times.values())
    flags: dict[str, Any] = {"graph": result.graph, "overlap": False, "sampled": params.temperature > 0}
    counts = {place: count for place, count in result.nonfinite.items() if count}
    if counts:
        flags["nonfinite"] = counts
    if result.truncated:
        flags["truncated"] = True
    fields: dict[str, Any] = {
        "rid": rid,
        "step": number,
        "batch": [0, 1],
        "algorithm": params.algorithm,
        "rank": 0,
        "base": result.base,
        "root": result.root,
        "tree": _tree(result),
        "target": _target(result),
        "path": result.path,
        "bonus": result.bonus,
        "emitted": result.emitted,
        "time": times,
        "time_domain": "cuda_event" if result.graph else "host",
        "flags": flags,
    }
    if result.draft is not None:
        fields["draft"] = {
            "k": len(result.draft.ids[0]) if result.draft.ids else 0,
            "ids": result.draft.ids,
            "logprobs": result.draft.logprobs,
            "logz": result.draft.logz,
            "entropy": result.draft.entropy,
        }
    return fields


def _tree(result: StepResult) -> dict[str, Any]:
    choice = result.choice
    chosen = {"most": choice.most, "emitted": round(choice.emitted, 3), "us": round(choice.us)} if choice else None
    return {
        "budget": result.budget,
        "tokens": result.tokens,
        "parents": result.parents,
        "logprobs": result.logprobs,
        "positions": result.positions,
        "mask": [format(row, "x") for row in result.mask],
        **({"auto": chosen} if chosen else {}),
    }


def _target(result: StepResult) -> dict[str, Any]:
    return {
        "ids": result.target.ids,
        "logprobs": result.target.logprobs,
        "gap": result.target.gap,
        "topk": {"ids": result.target.topk_ids, "logprobs": result.target.topk_logprobs},
    }


def misfit(problem: DraftShapeError, pair: Pair) -> dict[str, Any]:
    """Fields of the tensor record for a tensor that the drafter cannot take."""
    return {
        "name": problem.name,
        "shape": problem.got,
        "dtype": pair.dtype_name,
        "device": pair.device_name,
        "expect": problem.expected,
        "ok": False,
        "owner": "drafter",
    }


class TensorBook:
    """Says when a tensor is worth a record: once a name, and again when a dimension that should be fixed changes."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[object, ...]] = {}

    def news(self, fields: Mapping[str, Any]) -> bool:
        """Whether `fields` (of a tensor record) tell something new. Rows, where any number fits, are no news."""
        expect = fields.get("expect")
        shape = fields["shape"]
        if expect is not None and len(expect) == len(shape):
            shape = [size if wanted is not None else None for size, wanted in zip(shape, expect, strict=True)]
        key = (tuple(shape), fields.get("dtype"), fields.get("ok"), tuple(expect or ()))
        if self._told.get(fields["name"]) == key:
            return False
        self._told[fields["name"]] = key
        return True
