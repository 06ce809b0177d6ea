"""Measuring one call on a CUDA device: replays of a graph or the wall, and rows that are shown and kept at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any, TextIO

import torch
from torch import Tensor

CALLS = 20
"""Calls in one graph, so that a launch of the graph itself counts for little."""
L2_BYTES = 50e6
"""What calls that read less than this together find in the second-level cache of an H100 or H200."""


@dataclass
class Row:
    """One measured line. us: µs a call, median over replays; bytes and flops: what a call must move and do."""

    kernel: str
    shape: str
    variant: str
    us: float
    bytes: int = 0
    flops: int = 0
    note: str = ""


class Lost(Exception):
    """The device takes no more work in this process; what was measured stands."""


@dataclass
class Bench:
    """What is measured, with how many replays; every row is shown and written as soon as there is one."""

    quick: bool
    device: torch.device
    file: TextIO | None = None
    dtype: torch.dtype = torch.bfloat16
    copied: float = 0.0
    product: float = 0.0

    def graph(self, *calls: Callable[[], Any]) -> float:
        """µs of one call, captured; the median over replays of a graph of CALLS calls, which take turns."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in (*calls, *calls):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(CALLS):
                calls[i % len(calls)]()
        times = []
        for replay in range(9 if self.quick else 27):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if replay > 1:  # the first ones upload the graph and wake the clocks
                times.append(start.elapsed_time(end) * 1000 / CALLS)
        return median(times)

    def wall(self, call: Callable[[], Any]) -> float:
        """µs of one call and of the device's work that it starts."""
        times = []
        for _ in range(10 if self.quick else 50):
            torch.cuda.synchronize()
            began = perf_counter()
            call()
            torch.cuda.synchronize()
            times.append((perf_counter() - began) * 1e6)
        return median(times)

    def add(self, kernel: str, shape: str, variant: str, *calls: Callable[[], Any], **counted: Any) -> None:
        """Measure one variant; one that cannot run here is a row with its reason. Several calls take turns.

        Raises Lost after an error that the device does not recover from.
        """
        host = counted.pop("host", False)
        notes = ["host, by the wall"] if host else []
        if 0 < counted.get("bytes", 0) * len(calls) < L2_BYTES:
            notes.append("from L2")
        row = Row(kernel, shape, variant, 0.0, note=", ".join(notes), **counted)
        try:
            row.us = self.wall(calls[0]) if host else self.graph(*calls)
        except Exception as error:  # an alternative of another version may fail in any way
            words = " ".join(str(error).split())
            row.note = f"failed: {type(error).__name__}: {words}"[:160]
        self.show(row)
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise Lost(f"the device is lost after {kernel}, {shape}, {variant}: {error}") from error

    def show(self, row: Row) -> None:
        """Print the row, and write it where rows are kept."""
        line = f"{row.kernel:26} {row.shape:26} {row.variant:38} {row.us:9.2f}"
        for amount, ceiling, unit, width in (
            (row.bytes, self.copied, 1e9, "7.0f"),
            (row.flops, self.product, 1e12, "8.2f"),
        ):
            if row.us and amount:
                rate = amount / row.us * 1e6
                line += f" {rate / unit:{width}} {rate / ceiling if ceiling else 0.0:6.1%}"
            else:
                line += " " * (15 if unit == 1e9 else 16)
        print(f"{line} {row.note}".rstrip(), flush=True)
        self.write(asdict(row))

    def write(self, entry: dict[str, Any]) -> None:
        """One line of JSON, at once."""
        if self.file is not None:
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()

    def random(self, *shape: int) -> Tensor:
        """Standard normal, in the benchmark's dtype."""
        return torch.randn(*shape, device=self.device, dtype=self.dtype)


def ceilings(bench: Bench) -> tuple[float, float]:
    """Bytes/s of a large copy (read and written) and FLOP/s of a large product."""
    source = torch.empty(1 << 29, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / (bench.graph(lambda: target.copy_(source)) * 1e-6)
    size = 4096 if bench.quick else 8192
    a, b = bench.random(size, size), bench.random(size, size)
    return copied, 2 * size**3 / (bench.graph(lambda: a @ b) * 1e-6)
