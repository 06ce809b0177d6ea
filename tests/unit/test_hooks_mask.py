"""The mask that the target was given, cut out of whatever a server keeps it in."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ddscope_hooks.config import Config
from ddscope_hooks.taps import universal
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.place import Place
from tests.unit.emit_support import Pumped
from tests.unit.hooks_support import device, host

N, LENGTHS = 3, (4, 0, 7)
TREES = torch.tensor(
    [[[1, 0, 0], [1, 1, 0], [1, 0, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 0, 1]]]
)


class Mode(enum.Enum):
    FULL_MASK = 0
    QLEN_ONLY = 1
    QLEN_ONLY_BITPACKING = 2


def full(dtype: Any, spare: int = 0) -> Any:
    """Rows of context and nodes, one request behind another, and what a larger buffer has behind them."""
    rows = [
        torch.cat([torch.ones(N, length, dtype=torch.int64), tree], 1).reshape(-1)
        for length, tree in zip(LENGTHS, TREES, strict=True)
    ]
    return torch.cat([*rows, torch.ones(spare, dtype=torch.int64)]).to(dtype)


@pytest.fixture
def core() -> Iterator[Core]:
    pumped = Pumped()
    core = Core(Config(), pumped.emitter, Place(), "STANDALONE")
    core.passes = universal.MASK_EVERY
    yield core
    pumped.close()


def found(core: Core, mask: Any, mode: Mode | None = None, is_read: bool = True) -> Any:
    kept = None if mode is None else types.SimpleNamespace(mode=mode, is_read=is_read)
    worker = types.SimpleNamespace(
        model_runner=types.SimpleNamespace(attn_backend=types.SimpleNamespace(verify_mask=kept))
    )
    info = types.SimpleNamespace(custom_mask=None if mask is None else device(mask, mask.dtype))
    forward = types.SimpleNamespace(seq_lens=device(list(LENGTHS)))
    got = universal._mask(core, info, N, len(LENGTHS), forward, worker)
    return None if got is None else host(got).reshape(-1).to(torch.int64).tolist()


@pytest.mark.parametrize("spare", [0, 50])
@pytest.mark.parametrize(
    ("dtype", "mode"), [(torch.bool, Mode.FULL_MASK), (torch.uint8, Mode.FULL_MASK), (torch.bool, None)]
)
def test_a_mask_over_the_whole_context_is_cut_to_the_nodes(
    core: Core, dtype: Any, mode: Mode | None, spare: int
) -> None:
    assert found(core, full(dtype, spare), mode) == TREES.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("dtype", "mode", "spare"),
    [(torch.bool, None, 0), (torch.bool, Mode.QLEN_ONLY, 9), (torch.uint8, Mode.QLEN_ONLY, 9)],
)
def test_a_mask_over_the_nodes_is_taken_as_it_is(core: Core, dtype: Any, mode: Mode | None, spare: int) -> None:
    mask = torch.cat([TREES.reshape(-1), torch.zeros(spare, dtype=torch.int64)]).to(dtype)
    assert found(core, mask, mode) == TREES.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("mask", "mode", "is_read"),
    [
        (None, None, True),
        (full(torch.bool), Mode.FULL_MASK, False),
        (torch.zeros(9, dtype=torch.uint8), Mode.QLEN_ONLY_BITPACKING, True),
        (full(torch.uint8), None, True),
        (torch.ones(5, dtype=torch.bool), Mode.FULL_MASK, True),
    ],
)
def test_what_is_not_read_or_not_known_is_left_out(core: Core, mask: Any, mode: Mode | None, is_read: bool) -> None:
    assert found(core, mask, mode, is_read) is None


def test_lengths_that_lie_never_reach_outside_of_the_buffer(core: Core) -> None:
    """On a GPU an index outside would stop the server."""
    info = types.SimpleNamespace(custom_mask=device(full(torch.bool), torch.bool))
    forward = types.SimpleNamespace(seq_lens=device([10_000, 10_000, 10_000]))
    worker = types.SimpleNamespace(model_runner=types.SimpleNamespace(attn_backend=None))
    assert universal._mask(core, info, N, 3, forward, worker).numel() == 27


def test_it_is_cut_out_now_and_then_only(core: Core) -> None:
    core.passes += 1
    assert found(core, full(torch.bool), Mode.FULL_MASK) is None
