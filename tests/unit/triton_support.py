"""How the Triton kernels are run: on a CUDA device where there is one, else by Triton's interpreter, in this process.

What is compiled or interpreted is decided when a kernel's module is imported, so it is imported here, at collection,
with the variable set for that moment only. On a CUDA machine TRITON_INTERPRET=1 chooses the interpreter there too.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st

CUDA = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
SWITCH = "TRITON_INTERPRET"
PHASES = (Phase.explicit, Phase.generate)  # a failing case is not made smaller: that would take minutes here

if CUDA:
    pytest.importorskip("triton")
else:
    with patch.dict(os.environ, {SWITCH: "1"}):
        pytest.importorskip("triton")
        import triton.language as tl

        if type(tl.standard.sum).__name__ != "InterpretedFunction":
            raise RuntimeError("something imported triton before its interpreter was asked for: " + __name__)
        import ddscope_kernels.jit.advance
        import ddscope_kernels.jit.attention
        import ddscope_kernels.jit.choose
        import ddscope_kernels.jit.judge
        import ddscope_kernels.jit.kv
        import ddscope_kernels.jit.topk
        import ddscope_kernels.jit.tree
        import ddscope_kernels.jit.walk  # noqa: F401

DEVICES = [
    pytest.param("cpu", id="interpreter", marks=pytest.mark.skipif(CUDA, reason="this process compiles for CUDA")),
    pytest.param("cuda", id="cuda", marks=pytest.mark.skipif(not CUDA, reason="no CUDA device in use")),
]


def examples(interpreted: int, compiled: int) -> settings:
    """How many cases; the interpreter is slow, and a compiler is on new shapes."""
    return settings(max_examples=compiled if CUDA else interpreted, deadline=None, derandomize=True, phases=PHASES)


def shapes(interpreted: Iterable[st.SearchStrategy[int]], compiled: list[tuple[int, ...]]) -> st.SearchStrategy[Any]:
    """Any shape for the interpreter; for a device one of a few, since every one is compiled."""
    return st.sampled_from(compiled) if CUDA else st.tuples(*interpreted)


def run(device: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a batched function with its tensors on the device and the Triton kernels in use; results on the CPU.

    A tensor among the arguments that the function writes to is not copied back: use `run_in_place` for that.
    """
    with patch.dict(os.environ, {SWITCH: "1" if device == "cpu" else "0"}):
        return _to("cpu", function(*_to(device, args), **_to(device, options)))


def run_in_place(device: str, function: Callable[..., Any], changed: torch.Tensor, *args: Any, **options: Any) -> Any:
    """As `run`, for a function that changes its first argument; returns what that became."""
    with patch.dict(os.environ, {SWITCH: "1" if device == "cpu" else "0"}):
        mine = changed.clone().to(device)
        function(mine, *_to(device, args), **_to(device, options))
        return mine.cpu()


def reference(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a batched function on the CPU without Triton."""
    with patch.dict(os.environ, {SWITCH: "0"}):
        return function(*args, **options)


def assert_same(mine: Any, other: Any) -> None:
    """Every tensor of two results is equal, entry by entry, padding and -inf included."""
    for field in dataclasses.fields(mine):
        a, b = getattr(mine, field.name), getattr(other, field.name)
        if a is None and b is None:
            continue
        assert a.dtype == b.dtype, field.name
        assert torch.equal(a, b), f"{field.name}: {a} against {b}"


def poison(buffers: Any) -> Any:
    """Fill all buffers with what no result holds, so that an entry that is not written is seen."""
    for field in dataclasses.fields(buffers):
        tensor = getattr(buffers, field.name)
        if tensor is not None:
            tensor.view(torch.uint8).fill_(0xA5 if tensor.dtype != torch.bool else 1)
    return buffers


@contextmanager
def poisoned() -> Iterator[None]:
    """What a launch allocates, results and scratch, holds what no result does until a kernel writes it."""
    empty, empty_like = torch.empty, torch.empty_like

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel():
            tensor.view(torch.uint8).fill_(0xA5 if tensor.dtype != torch.bool else 1)
        return tensor

    with (
        patch.object(torch, "empty", lambda *size, **options: spoil(empty(*size, **options))),
        patch.object(torch, "empty_like", lambda like, **options: spoil(empty_like(like, **options))),
    ):
        yield


def _to(device: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        moved = {field.name: _to(device, getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **moved)
    if isinstance(value, tuple):
        return tuple(_to(device, entry) for entry in value)
    if isinstance(value, dict):
        return {key: _to(device, entry) for key, entry in value.items()}
    return value
