"""The Triton walk and KV compaction against the references."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddscope_kernels.batched import compact_kv, empty_walks, walk
from tests.unit.triton_support import CUDA, DEVICES, assert_same, examples, poison, reference, run, run_in_place, shapes

TREES = shapes(
    (st.integers(1, 8), st.integers(0, 40) | st.integers(0, 1024), st.integers(0, 31)),
    [(8, 64, 15), (3, 1024, 31), (1, 0, 3)],
)
CACHES = shapes(
    (st.integers(1, 3), st.integers(1, 8), st.integers(1, 32), st.integers(1, 20)),
    [(60, 3, 16, 64), (2, 1, 5, 80)],
)
DTYPES = st.sampled_from([torch.bfloat16] if CUDA else [torch.float32, torch.bfloat16, torch.int8])


@pytest.mark.parametrize("device", DEVICES)
@given(shape=TREES, limits=st.booleans(), seed=st.integers(0, 2**30))
@examples(30, 20)
def test_paths_bonus_and_cuts_are_the_references(device, shape, limits, seed) -> None:
    requests, budget, depth = shape
    random = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(low, high, size, generator=random, dtype=dtype)

    # Deep trees, and few different tokens: long paths, siblings with equal tokens, paths longer than the depth allows.
    parents = (torch.arange(budget) - integers(0, 4, requests, budget)).clamp(min=0).to(torch.int32)
    tokens, choices = integers(0, 3, requests, budget), integers(0, 3, requests, budget + 1)
    choices[:, : budget // 2] = 1
    tokens[:, : budget // 2] = 1
    counts = integers(0, budget + 1, requests, dtype=torch.int32)
    options = {}
    if limits:
        options = {"eos": torch.tensor([2, 77, 0]), "room": integers(-1, depth + 3, requests, dtype=torch.int32)}
    buffers = poison(empty_walks(requests, depth + 1, torch.device("cpu")))
    assert_same(
        run(device, walk, tokens, parents, counts, choices, depth, out=buffers, **options),
        reference(walk, tokens, parents, counts, choices, depth, **options),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_behind_an_end_of_text_or_the_last_free_place_is_emitted(device) -> None:
    tokens = torch.tensor([[5, 6, 7]]).expand(4, 3)
    parents = torch.tensor([[0, 1, 2]], dtype=torch.int32).expand(4, 3)
    choices = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8], [5, 9, 7, 8], [5, 6, 7, 8]])
    counts = torch.full((4,), 3, dtype=torch.int32)
    room = torch.tensor([9, 2, 2, 4], dtype=torch.int32)
    out = run(device, walk, tokens, parents, counts, choices, 3, eos=torch.tensor([6]), room=room)
    assert out.emitted.tolist() == [[5, 6, 0, 0], [5, 6, 0, 0], [5, 9, 0, 0], [5, 6, 0, 0]]
    assert out.lengths.tolist() == [4, 4, 2, 4]
    assert out.bonus.tolist() == [8, 8, 9, 8]
    assert out.counts.tolist() == [2, 2, 2, 2]
    assert out.reasons.tolist() == [1, 1, 2, 1]


def paths(requests: int, places: int, nodes: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Any distinct nodes in any order, and for one request 0, 1, 2, …; how many of them count."""
    path = torch.stack([torch.randperm(nodes, generator=random)[:places] for _ in range(requests)]).to(torch.int32)
    path[0] = torch.arange(places)
    return path, torch.randint(1, places + 1, (requests,), generator=random, dtype=torch.int32)


@pytest.mark.parametrize("device", DEVICES)
@given(shape=CACHES, dtype=DTYPES, pooled=st.booleans(), seed=st.integers(0, 2**30))
@examples(20, 16)
def test_accepted_rows_move_and_nothing_else_does(device, shape, dtype, pooled, seed) -> None:
    layers, requests, places, width = shape
    random = torch.Generator().manual_seed(seed)
    nodes = places + 5
    path, lengths = paths(requests, places, nodes, random)
    rows = 2 * nodes * requests
    size = (layers, rows, 2, width) if pooled else (layers, requests, 2, rows, width)
    cache = torch.randint(-100, 100, size, generator=random).to(dtype)
    if pooled:
        where = {"slots": torch.randperm(rows, generator=random)[: requests * nodes].view(requests, nodes)}
    else:
        where = {"base": torch.randint(0, rows - nodes, (requests,), generator=random)}
    expected = cache.clone()
    for r in range(requests):
        for i, node in enumerate(path[r, : lengths[r]].tolist()):
            if pooled:
                expected[:, where["slots"][r, i]] = cache[:, where["slots"][r, node]]
            else:
                first = int(where["base"][r])
                expected[:, r, :, first + i] = cache[:, r, :, first + node]
    assert torch.equal(run_in_place(device, compact_kv, cache, path, lengths, **where), expected)
    plain = cache.clone()
    reference(compact_kv, plain, path, lengths, **where)
    assert torch.equal(plain, expected)


def test_wrong_arguments_are_refused() -> None:
    path, one = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="needs base"):
        compact_kv(torch.zeros(1, 2, 1, 9, 4), path, one)
    with pytest.raises(ValueError, match="do not fit 2 requests"):
        compact_kv(torch.zeros(1, 3, 1, 9, 4), path, one, base=one)
    with pytest.raises(ValueError, match="64"):
        compact_kv(torch.zeros(1, 2, 1, 9, 4), torch.zeros(2, 65, dtype=torch.int32), one, base=one)
    with pytest.raises(ValueError, match="one batch"):
        walk(torch.zeros(2, 3), torch.zeros(2, 3), one, torch.zeros(2, 3), 4)


def test_the_package_is_imported_without_triton() -> None:
    program = "import sys, ddscope_kernels, ddscope_kernels.batched; sys.exit('triton' in sys.modules)"
    paths = os.pathsep.join(path for path in sys.path if path)
    assert subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}).returncode == 0
