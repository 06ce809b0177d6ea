"""By what a product of a decoder layer is computed on a CUDA device, from its sizes: which kernel with which tiles.

All such decisions are here. Measured by benchmarks/layer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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

_forced: Plan | None = None
_pdl = False


def plan(rows: int, columns: int, depth: int, dtype: torch.dtype, pairs: bool = False) -> Plan:
    """For a product [rows, depth] @ [columns, depth]ᵀ (of twice as many columns, two of which make one, for pairs)."""
    if _forced is not None:
        return _forced
    if rows <= FEW:
        wide = 512 if rows == 1 else 256
        return Few(4 if pairs or columns < 1024 else 8, min(power_of_two(depth, 16), wide * 2))
    if dtype == torch.float32:
        return Tiles(16, 16, 32, stages=2)  # no tensor core for it: for tests of exactness, not for speed
    if depth * columns * (2 if pairs else 1) > 1 << 21 or rows > 160:
        return Library()
    if depth <= 2048:
        return Whole(16 if rows <= 64 else 32, 16, 4 if depth <= 1024 else 8)
    return Tiles(32, 32, 64, stages=4)


def pdl() -> bool:
    """Whether kernels are launched before the one before them ends (`early`)."""
    return _pdl


@contextmanager
def early(on: bool = True) -> Iterator[None]:
    """Within it, kernels start before the one before them ends, bring their weights in, and then wait for it.

    For sm_90 and newer (programmatic dependent launch), also while a graph is captured, which keeps it. Weights, norms'
    weights and biases must not be written by kernels of the same stream meanwhile.
    """
    global _pdl
    before, _pdl = _pdl, on
    try:
        yield
    finally:
        _pdl = before


@contextmanager
def forced(how: Plan | None) -> Iterator[None]:
    """Within it, every product is computed as given, whatever its sizes; for benchmarks and tests."""
    global _forced
    before, _forced = _forced, how
    try:
        yield
    finally:
        _forced = before
