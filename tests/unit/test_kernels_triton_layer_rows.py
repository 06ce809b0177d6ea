"""Rotation into caches and gathering, entry by entry against float64: ragged counts, strided caches, poisoned rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddscope_kernels.batched import layer
from ddscope_kernels.batched.layer_plan import Few, Library, Tiles, Whole, forced
from tests.unit.triton_support import CUDA, DEVICES, examples, reference, run, run_in_place, shapes

EPS = 1e-5
# requests, nodes (or rows), heads of a group, KV heads, half of a head
SHAPES = shapes(
    (st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 20)),
    [(4, 33, 3, 3, 32), (2, 17, 4, 8, 64), (3, 5, 2, 1, 20)],
)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def tables(rows: int, width: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of angles that are no multiple of each other, in the convention of the functions."""
    angles = torch.rand(rows, width // 2, generator=random) * 6.28
    return torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)


def rotated_by_hand(x: Tensor, position: int, table: tuple[Tensor, Tensor]) -> Tensor:
    """x [d] as d / 2 complex numbers, each turned by its angle: what the tables stand for."""
    half = len(x) // 2
    cos, sin = (t[position, half:].double() for t in table)
    turned = torch.complex(x[:half].double(), x[half:].double()) * torch.complex(cos, sin)
    return torch.cat([turned.real, turned.imag])


def test_the_reference_turns_pairs_by_their_angles() -> None:
    random = torch.Generator().manual_seed(1)
    table = tables(9, 8, random)
    qkv = torch.randn(1, 2, 4, 8, generator=random)
    k, v = torch.zeros(2, 1, 1, 6, 8).unbind(0)
    q = reference(
        layer.rotate_into, qkv, table, torch.tensor([[5, 7]]), k, v, torch.tensor([3], dtype=torch.int32), heads=2
    )
    torch.testing.assert_close(q[0, 1, 1].double(), rotated_by_hand(qkv[0, 1, 1], 7, table))
    torch.testing.assert_close(k[0, 0, 3].double(), rotated_by_hand(qkv[0, 0, 2], 5, table))
    assert torch.equal(v[0, 0, 3:5], qkv[0, :, 3])


def strided(requests: int, kv_heads: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """[2, R, H, S, d] of NaN, whose rows lie apart in another order of dimensions."""
    return torch.full((requests, rows, 2, kv_heads, width + 3), math.nan, dtype=dtype)


def cache_views(data: Tensor) -> tuple[Tensor, Tensor]:
    k, v = data.permute(2, 0, 3, 1, 4)[..., :-3].unbind(0)
    return k, v


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, dtype=DTYPES, normed=st.booleans(), counted=st.booleans(), seed=st.integers(0, 2**30))
@examples(16, 12)
def test_queries_and_caches_are_what_float64_makes_them(device, shape, dtype, normed, counted, seed) -> None:
    requests, nodes, group, kv_heads, half = shape
    width, heads = 2 * half, group * kv_heads
    random = torch.Generator().manual_seed(seed)
    qkv = torch.randn(requests, nodes, heads + 2 * kv_heads, width, generator=random).to(dtype)
    table = tables(50, width, random)
    positions = torch.randint(0, 50, (requests, nodes), generator=random)
    capacity = nodes + 4
    base = torch.randint(0, 8, (requests,), generator=random, dtype=torch.int32)  # some rows find no room
    counts = torch.randint(0, nodes, (requests,), generator=random, dtype=torch.int32) if counted else None
    weights = (1 + torch.randn(heads + kv_heads, width, generator=random) * 0.2).to(dtype) if normed else None
    if counts is not None:
        for r in range(requests):
            qkv[r, counts[r] + 1 :] = math.nan
            positions[r, counts[r] + 1 :] = -(2**40)

    def call(
        data: Tensor, qkv: Tensor, weights: Tensor | None, table, positions, base, counts
    ) -> tuple[Tensor, Tensor]:
        q = layer.rotate_into(
            qkv, table, positions, *cache_views(data), base, heads=heads, qk_norm=weights, eps=EPS, counts=counts
        )
        return q, data

    data = strided(requests, kv_heads, capacity, width, dtype)
    others = table, positions, base, counts
    wide = None if weights is None else weights.double()
    exact, exact_data = reference(call, data.double(), qkv.double(), wide, *others)
    mine, after = run(device, call, data, qkv, weights, *others)
    tolerance = TOLERANCE[dtype]
    for r in range(requests):
        real = slice(0, nodes if counts is None else int(counts[r]) + 1)
        torch.testing.assert_close(mine[r, real].double(), exact[r, real], atol=tolerance, rtol=tolerance)
    # Where the one has NaN, so has the other: nothing but the rows was written.
    torch.testing.assert_close(after.double(), exact_data, atol=tolerance, rtol=tolerance, equal_nan=True)
    written = sum(
        max(0, min(nodes if counts is None else int(counts[r]) + 1, capacity - int(base[r]))) for r in range(requests)
    )
    assert int(after.isfinite().sum()) == written * 2 * kv_heads * width


@pytest.mark.parametrize("device", DEVICES)
@given(
    shape=SHAPES,
    dtype=DTYPES,
    how=st.sampled_from([None, Few(4, 32), Tiles(16, 16, 32), Whole(16, 16), Library()]),
    options=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 2**30),
)
@examples(20, 12)
def test_the_product_before_it_may_be_in_the_same_launch(device, shape, dtype, how, options, seed) -> None:
    requests, nodes, group, kv_heads, half = shape
    normed, counted, biased = options
    if isinstance(how, Few) and requests * nodes > 4:
        requests, nodes = 1, nodes % 4 + 1
    if CUDA and dtype == torch.float32:
        how = None  # a compiler takes long over large tiles without a tensor core
    width, heads, hidden = 2 * half, group * kv_heads, 40
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=random) * scale).to(dtype)

    x, norm = normal(requests * nodes, hidden, scale=3.0), 1 + normal(hidden, scale=0.2)
    weight = normal((heads + 2 * kv_heads) * width, hidden, scale=hidden**-0.5)
    bias = normal(len(weight)) if biased else None
    weights = 1 + normal(heads + kv_heads, width, scale=0.2) if normed else None
    table = tables(50, width, random)
    positions = torch.randint(-3, 53, (requests, nodes), generator=random)
    base = torch.randint(0, 8, (requests,), generator=random, dtype=torch.int32)
    counts = torch.randint(0, nodes, (requests,), generator=random, dtype=torch.int32) if counted else None

    def call(data: Tensor, x: Tensor, norm: Tensor, weight: Tensor, bias: Tensor | None, weights: Tensor | None,
             table, positions, base, counts) -> tuple[Tensor, Tensor]:  # fmt: skip
        q = layer.norm_qkv_into(
            x, norm, EPS, weight, table, positions, *cache_views(data), base, heads=heads, bias=bias, qk_norm=weights,
            counts=counts)  # fmt: skip
        return q, data

    data = strided(requests, kv_heads, nodes + 4, width, dtype)
    others = (table, positions, base, counts)
    wide = [None if value is None else value.double() for value in (x, norm, weight, bias, weights)]
    exact, exact_data = reference(call, data.double(), *wide, *others)
    with forced(how):
        mine, after = run(device, call, data, x, norm, weight, bias, weights, *others)
    tolerance = TOLERANCE[dtype]
    for r in range(requests):
        real = slice(0, nodes if counts is None else int(counts[r]) + 1)
        torch.testing.assert_close(mine[r, real].double(), exact[r, real], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(after.double(), exact_data, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, layers=st.integers(1, 3), dtype=DTYPES, normed=st.booleans(), seed=st.integers(0, 2**30))
@examples(10, 12)
def test_a_context_goes_to_all_layers(device, shape, layers, dtype, normed, seed) -> None:
    requests, rows, _, kv_heads, half = shape
    width, capacity = 2 * half, rows + 5
    random = torch.Generator().manual_seed(seed)
    kv = torch.randn(requests, rows, layers, 2, kv_heads, width, generator=random).to(dtype)
    table = tables(rows + 6, width, random)
    base = torch.randint(0, 8, (requests,), generator=random, dtype=torch.int32)
    lengths = torch.randint(0, rows + 1, (requests,), generator=random, dtype=torch.int32)
    weights = (1 + torch.randn(layers, width, generator=random) * 0.2).to(dtype) if normed else None
    for r in range(requests):
        kv[r, lengths[r] :] = math.nan

    def call(data: Tensor, kv: Tensor, weights: Tensor | None, table, base, lengths) -> None:
        k, v = data[..., :-1].unbind(1)
        layer.context_into(kv, table, base, weights, EPS, k, v, lengths)

    data = torch.full((layers, 2, requests, kv_heads, capacity, width + 1), math.nan, dtype=dtype)
    exact = data.double()
    reference(call, exact, kv.double(), None if weights is None else weights.double(), table, base, lengths)
    after = run_in_place(device, call, data, kv, weights, table, base, lengths)
    torch.testing.assert_close(after.double(), exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True)
    for r in range(requests):
        if lengths[r] and base[r] < capacity:
            k = kv[r, 0, 0, 0, 0].double()
            if weights is not None:
                k = k * (k.square().mean() + EPS).rsqrt() * weights[0].double()
            turned = rotated_by_hand(k, min(int(base[r]), rows + 5), table)
            found = after[0, 0, r, 0, base[r], :-1].double()
            torch.testing.assert_close(found, turned, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@given(
    pieces=st.integers(1, 9),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 70)),
    places=st.integers(1, 7),
    dtype=DTYPES,
    seed=st.integers(0, 2**30),
)
@examples(16, 12)
def test_rows_are_gathered_side_by_side(device, pieces, shape, places, dtype, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    taken = tuple(torch.randn(shape, generator=random).to(dtype) for _ in range(pieces))
    path = torch.randint(-2, shape[1] + 2, (shape[0], places), generator=random, dtype=torch.int32)
    mine = run(device, lambda *given: layer.gather_rows(given[:-1], given[-1]), *taken, path)
    for r in range(shape[0]):
        for place in range(places):
            row = min(max(int(path[r, place]), 0), shape[1] - 1)
            assert torch.equal(mine[r, place], torch.cat([piece[r, row] for piece in taken]))


def test_wrong_arguments_are_refused() -> None:
    qkv, cache = torch.zeros(1, 2, 4, 8), torch.zeros(1, 1, 6, 8)
    table, positions, base = (torch.zeros(3, 8), torch.zeros(3, 8)), torch.zeros(1, 2, dtype=torch.int64), torch.ones(1)
    with pytest.raises(ValueError, match="does not hold 3 heads"):
        layer.rotate_into(qkv, table, positions, cache, cache, base, heads=3)
    with pytest.raises(ValueError, match="do not fit"):
        layer.rotate_into(qkv, table, positions, cache.bfloat16(), cache, base, heads=2)
    with pytest.raises(ValueError, match="positions"):
        layer.rotate_into(qkv, table, positions[:, :1], cache, cache, base, heads=2)
    with pytest.raises(ValueError, match="tables"):
        layer.rotate_into(qkv, (table[0], table[1].double()), positions, cache, cache, base, heads=2)
    with pytest.raises(ValueError, match="k_norm"):
        layer.context_into(
            torch.zeros(1, 2, 3, 2, 1, 8), table, base, table[0][:2], EPS, *torch.zeros(2, 3, 1, 1, 6, 8).unbind(0)
        )
    with pytest.raises(ValueError, match="different"):
        layer.gather_rows([qkv[0], qkv[0, :, :1]], torch.zeros(2, 1, dtype=torch.int32))


if CUDA:

    def test_nothing_waits_for_the_host_so_that_a_graph_can_hold_it() -> None:
        requests, nodes, heads, kv_heads, width = 2, 5, 3, 1, 64
        random = torch.Generator().manual_seed(3)
        qkv = torch.randn(requests, nodes, heads + 2 * kv_heads, width, generator=random).cuda()
        table = tuple(t.cuda() for t in tables(20, width, random))
        positions = torch.arange(nodes).expand(requests, nodes).contiguous().cuda()
        k, v = torch.zeros(2, requests, kv_heads, 12, width, device="cuda").unbind(0)
        base = torch.zeros(requests, dtype=torch.int32, device="cuda")
        layer.rotate_into(qkv, table, positions, k, v, base, heads=heads)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer.rotate_into(qkv, table, positions, k, v, base, heads=heads)
        base.fill_(6)
        k.zero_()
        graph.replay()
        assert k[:, :, :6].abs().max() == 0
        assert k[:, :, 6 : 6 + nodes].abs().amin(-1).max() > 0
