"""The Triton tree attention against float64: contiguous and paged caches, grouped heads, splits, poisoned rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddscope_kernels.batched import build_tree, tree_attention
from ddscope_kernels.batched.layer_plan import early
from tests.unit.triton_support import CUDA, DEVICES, examples, poisoned, reference, run, shapes

from ddscope_kernels.jit import attention  # isort: skip  # after the support, which chooses the interpreter

# requests, budget, KV heads, heads of a group, head size, longest prefix
SHAPES = shapes(
    (
        st.integers(1, 8),
        st.integers(0, 20) | st.integers(0, 150),
        st.integers(1, 2),
        st.integers(1, 3),
        st.integers(16, 80),
        st.integers(0, 90),
    ),
    [(4, 64, 3, 3, 64, 3000), (2, 40, 2, 4, 128, 700), (1, 16, 1, 2, 256, 500)],
)
# A device has no fast product of float32, and a compiler takes long over a slow one: small heads only, below.
DTYPES = st.sampled_from([torch.bfloat16] if CUDA else [torch.float32, torch.bfloat16, torch.float16])
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("device", DEVICES)
@given(
    shape=SHAPES,
    dtype=DTYPES,
    page=st.sampled_from([0, 16] if CUDA else [0, 1, 16]),
    splits=st.sampled_from([None, 1, 3]),
    arrivals=st.booleans(),
    seed=st.integers(0, 2**30),
)
@examples(12, 16)
def test_every_node_reads_the_prefix_and_its_ancestors(device, shape, dtype, page, splits, arrivals, seed) -> None:
    requests, budget, kv_heads, group, width, prefix = shape
    random = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(requests, 7, 4, generator=random).log_softmax(-1).sort(-1, descending=True).values
    trees = reference(build_tree, logprobs, torch.zeros(requests, 7, 4, dtype=torch.int64), budget)
    lengths = torch.randint(0, prefix + 1, (requests,), generator=random, dtype=torch.int32)
    counts = torch.minimum(trees.counts, torch.randint(0, budget + 1, (requests,), generator=random))
    counts = counts.to(torch.int32)
    q = torch.randn(requests, budget + 1, kv_heads * group, width, generator=random).to(dtype)
    rows = prefix + budget + 9
    k, v = (torch.randn(requests, kv_heads, rows, width, generator=random).to(dtype) for _ in range(2))
    for r in range(requests):  # rows that nobody may read
        k[r, :, lengths[r] + counts[r] + 1 :] = v[r, :, lengths[r] + counts[r] + 1 :] = math.nan
    options = {"counts": counts}
    if arrivals:  # one launch, not two
        options["arrivals"] = torch.zeros(1024, dtype=torch.int32)
    expected = reference(tree_attention, q.double(), k.double(), v.double(), trees.bits, lengths, counts=counts)
    if page:
        per_request = -(-rows // page)
        options["pages"] = torch.randperm(requests * per_request, generator=random).view(requests, -1).to(torch.int32)
        k, v = (paged(x, page, options["pages"]) for x in (k, v))
    with poisoned():
        mine = run(device, tree_attention, q, k, v, trees.bits, lengths, splits=splits, **options)
    for r in range(requests):
        real = slice(0, int(counts[r]) + 1)
        torch.testing.assert_close(mine[r, real].double(), expected[r, real], atol=TOLERANCE[dtype], rtol=0.0)


def paged(cache: torch.Tensor, page: int, pages: torch.Tensor) -> torch.Tensor:
    """[R, H, S, d] → [pages, page, H, d], NaN in what no row needs."""
    requests, heads, rows, width = cache.shape
    pool = torch.full((pages.numel(), page, heads, width), math.nan, dtype=cache.dtype)
    for r in range(requests):
        for row in range(rows):
            pool[pages[r, row // page], row % page] = cache[r, :, row]
    return pool


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("splits", "page"), [(1, 16), (3, 0)])
def test_warps_with_rows_of_their_own_read_the_same(device, splits, page) -> None:
    random = torch.Generator().manual_seed(8)
    nodes, rows = 35, 420
    q, k, v = (torch.randn(2, *shape, generator=random) for shape in ((nodes, 6, 64), (2, rows, 64), (2, rows, 64)))
    q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
    bits = torch.randint(-(2**31), 2**31 - 1, (2, nodes, 2), generator=random, dtype=torch.int32)
    lengths, counts = torch.tensor([350, 3], dtype=torch.int32), torch.tensor([34, 17], dtype=torch.int32)
    expected = reference(tree_attention, q.double(), k.double(), v.double(), bits, lengths, counts=counts)
    pages = None
    if page:
        pages = torch.randperm(2 * -(-rows // page), generator=random).view(2, -1).to(torch.int32)
        k, v = (paged(x, page, pages) for x in (k, v))
    arrivals = torch.zeros(64, dtype=torch.int32, device=device)
    all_tiles = [attention.Tiles(16, 64, 8, 1, splits, apart=True), attention.Tiles(16, 32, 4, 1, splits, 2, True)]
    for tiles in all_tiles if CUDA else all_tiles[:1]:
        with poisoned():
            mine = run(device, attention.launch, q, k, v, bits, lengths, counts, pages, 0.125, splits, arrivals, tiles)
        for r in range(2):
            real = slice(0, int(counts[r]) + 1)
            torch.testing.assert_close(mine[r, real].double(), expected[r, real], atol=3e-2, rtol=0.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("splits", [1, 4])
def test_a_node_that_sees_nothing_reads_zeros(device, splits) -> None:
    q, k = torch.ones(1, 2, 1, 16), torch.ones(1, 1, 8, 16)
    bits = torch.tensor([[[0], [2]]], dtype=torch.int32)
    out = run(device, tree_attention, q, k, k, bits, torch.zeros(1, dtype=torch.int32), splits=splits)
    assert out[0, 0].abs().max() == 0
    torch.testing.assert_close(out[0, 1], torch.ones(1, 16))


@pytest.mark.parametrize("device", DEVICES)
def test_arrivals_are_zeros_again_and_change_nothing(device) -> None:
    random = torch.Generator().manual_seed(3)
    q, k = (torch.randn(2, *shape, generator=random).to(torch.bfloat16) for shape in ((33, 2, 64), (1, 400, 64)))
    bits = torch.full((2, 33, 2), -1, dtype=torch.int32)
    lengths = torch.tensor([350, 0], dtype=torch.int32)
    arrivals = torch.zeros(64, dtype=torch.int32, device=device)
    given = [q, k, k, bits, lengths]
    apart = run(device, tree_attention, *given, splits=4)
    for _ in range(2):
        assert torch.equal(run(device, tree_attention, *given, splits=4, arrivals=arrivals), apart)
        assert not arrivals.any()
    with early():  # as part of a chain whose launches overlap
        assert torch.equal(run(device, tree_attention, *given, splits=4, arrivals=arrivals), apart)
        assert torch.equal(run(device, tree_attention, *given, splits=4), apart)


def test_wrong_arguments_are_refused() -> None:
    q, k, one = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 9, 16), torch.zeros(1, dtype=torch.int32)
    bits = torch.zeros(1, 2, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="3 heads of size 16"):
        tree_attention(q, k, k, bits, one)
    with pytest.raises(ValueError, match="do not fit"):
        tree_attention(q, k, k[..., :8], bits, one)
    with pytest.raises(ValueError, match="do not fit q"):
        tree_attention(q, k[:, :1], k[:, :1], bits[:, :1], one)
