"""A function of tensors as a CUDA graph, once it has run as it is a few times."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM = 3


class Graphed:
    """Calls a function as it is `_WARM` times, then captures it and replays it: no work of the host but one launch.

    The function takes and returns tensors whose shapes never change, asks the device for nothing, and may change what
    it holds (weights, an optimizer's state) in place. What it returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._function = function
        self._calls = 0
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """As the function."""
        if self._calls < _WARM:
            self._calls += 1
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                outputs = self._function(*inputs)
            torch.cuda.current_stream().wait_stream(self._side)
            return outputs
        if self._graph is None:
            self._inputs = [tensor.clone() for tensor in inputs]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # runs nothing
                self._outputs = self._function(*self._inputs)
            self._graph = graph
        for mine, tensor in zip(self._inputs, inputs, strict=True):
            mine.copy_(tensor)
        self._graph.replay()
        return self._outputs
