"""By what a product of a decoder layer is computed on a CUDA device, from its sizes: which kernel with which tiles.

All such decisions are here. Measured by benchmarks/layer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import torch

from ddscope_kernels.batched.backend import power_of_two


@dataclass(frozen=True, slots=True)
class Few:
    """All rows in each program, no tensor core: block_n columns at a time, block_k terms of their sums."""

    block_n: int
    block_k: int
    warps: int = 4


@dataclass(frozen=True, slots=True)
class Tiles:
    """block_m rows by block_n columns a program, block_k terms of a sum at a time; a norm has a launch of its own."""

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class Whole:
    """block_m rows by block_n columns a program, all terms of their sums at once, shared by its warps."""

    block_m: int
    block_n: int
    warps: int = 4


@dataclass(frozen=True, slots=True)
class Library:
    """The product is the device's library's (torch), norm and gate are kernels of their own."""


Plan = Few | Tiles | Whole | Library

FEW = 4
"""Rows up to which a tensor core, which takes 16, is no gain."""
MOST = 160
"""Rows above which a product is the library's. Ours were measured up to 129, and faster (docs/performance.md)."""

_forced: Plan | None = None
_on = False
_when: Early | None = None


def plan(rows: int, columns: int, depth: int, dtype: torch.dtype, pairs: bool = False, into: bool = False) -> Plan:
    """For a product [rows, depth] @ [columns, depth]ᵀ (of twice as many columns, two of which make one, for pairs).

    into: what comes out is rotated, by the same launch where this is Few or Whole.
    """
    if _forced is not None:
        return _forced
    if rows <= FEW:
        return Few(4 if pairs or columns < 1024 else 8, min(power_of_two(depth, 16), 1024 // power_of_two(rows)))
    if dtype == torch.float32:
        return Tiles(16, 16, 32, stages=2)  # no tensor core for it: for tests of exactness, not for speed
    if depth * columns * (2 if pairs else 1) > 1 << 21 or rows > MOST:
        return Library()
    if depth <= 2048 and rows <= (64 if into else 16):
        return Whole(16, 16, 4 if depth <= 1024 else 8)
    if pairs or columns > 768:
        return Tiles(64, 64 if rows > 64 and not pairs else 32, 64, stages=4)
    return Tiles(64, 16, 64, stages=6) if depth <= 1024 else Tiles(64, 16, 128, stages=4)


class Early(IntEnum):
    """When a kernel lets the next one start, which brings its weights in and then waits for the end of this one."""

    AT_ONCE = 1
    AFTER_WAIT = 2
    """When the kernel before this one has ended, so that no more than two are under way."""


def pdl() -> bool:
    """Whether kernels start before the one before them ends (`early`)."""
    return _on


def early_launch(rows: int) -> int:
    """0, or when a kernel for so many rows lets the next one start.

    Kernels for few rows are small, and many of them may wait; of larger ones those that wait are in the way.
    """
    return (_when or (Early.AT_ONCE if rows <= FEW else Early.AFTER_WAIT)) if _on else 0


@contextmanager
def early(on: bool = True, when: Early | None = None) -> Iterator[None]:
    """Within it, kernels start before the one before them ends, bring their weights in, and then wait for it.

    For sm_90 and newer (programmatic dependent launch), also while a graph is captured, which keeps it. Weights, those
    of norms among them, must not be written by kernels before them in the stream. when: by the rows where it is None.
    """
    global _on, _when
    before = _on, _when
    _on, _when = on, when
    try:
        yield
    finally:
        _on, _when = before


@contextmanager
def forced(how: Plan | None) -> Iterator[None]:
    """Within it, every product is computed as given, whatever its sizes; for benchmarks and tests."""
    global _forced
    before, _forced = _forced, how
    try:
        yield
    finally:
        _forced = before
