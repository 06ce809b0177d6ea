"""The products of a decoder layer against float64: few and many rows, odd sizes, biases, every kernel there is."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddscope_kernels.batched import layer
from ddscope_kernels.batched.layer_plan import Early, Few, Library, Tiles, Whole, early, early_launch, forced, plan
from tests.unit.triton_support import CUDA, DEVICES, examples, reference, run, shapes

EPS = 1e-5
# rows, columns (of a half, where it is gated), terms of a sum
SHAPES = shapes(
    (st.integers(1, 40), st.integers(1, 50), st.integers(1, 90)),
    [(1, 960, 576), (4, 576, 1536), (16, 1536, 576), (33, 576, 1536), (65, 50, 90), (170, 576, 576)],
)
PLANS = [
    None,
    Few(4, 64),
    Tiles(16, 16, 32, stages=2),
    Tiles(64, 32, 64),
    Whole(16, 16),
    Whole(32, 16, 8),
    Library(),
]
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


class Operands:
    """Values of the size they have in a decoder: outputs are near 1."""

    def __init__(self, rows: int, columns: int, depth: int, dtype: torch.dtype, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=random) * scale).to(dtype)

        self.x = normal(rows, depth, scale=3.0)
        self.norm = 1 + normal(depth, scale=0.2)
        self.weight = normal(columns, depth, scale=depth**-0.5)
        self.gate_up = normal(2 * columns, depth, scale=depth**-0.5)
        self.bias, self.bias2 = normal(columns), normal(2 * columns)
        self.y = normal(rows, depth)
        self.added = normal(rows, columns)


def calls(o: Operands, biased: bool) -> list[tuple[object, ...]]:
    bias, bias2 = (o.bias, o.bias2) if biased else (None, None)
    return [
        (layer.norm_linear, o.x, o.norm, EPS, o.weight, bias),
        (layer.norm_gated_linear, o.x, o.norm, EPS, o.gate_up, bias2),
        (layer.linear_add, o.y, o.weight, o.added, bias),
    ]


def double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) else value


def assert_near(mine: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert mine.dtype == dtype
    scale = TOLERANCE[dtype]
    torch.testing.assert_close(mine.double(), exact, atol=scale, rtol=scale)


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, dtype=DTYPES, how=st.sampled_from(PLANS), biased=st.booleans(), seed=st.integers(0, 2**30))
@examples(20, 12)
def test_a_product_is_what_float64_makes_it(device, shape, dtype, how, biased, seed) -> None:
    if isinstance(how, Few) and shape[0] > 4:
        shape = (shape[0] % 4 + 1, *shape[1:])
    if CUDA and dtype == torch.float32:
        how = None  # a compiler takes long over large tiles without a tensor core
    o = Operands(*shape, dtype, seed)
    with forced(how):
        for function, *args in calls(o, biased):
            exact = reference(function, *map(double, args))
            assert_near(run(device, function, *args), exact, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", PLANS[1:], ids=repr)
def test_a_row_of_zeros_and_a_row_beside_nan_are_their_own(device, how) -> None:
    o = Operands(3, 20, 40, torch.float32, 1)
    o.x[0], o.x[1] = 0.0, math.nan
    o.y[1], o.added[1] = math.nan, math.nan
    with forced(how):
        for function, *args in calls(o, True):
            mine = run(device, function, *args)
            exact = reference(function, *map(double, args))
            assert torch.isnan(mine[1]).all()
            torch.testing.assert_close(mine[[0, 2]].double(), exact[[0, 2]], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", PLANS[1:-1], ids=repr)
def test_a_row_does_not_depend_on_the_rows_beside_it(device, how) -> None:
    many = 3 if isinstance(how, Few) else 39
    o = Operands(many, 20, 70, torch.float32, 2)
    with forced(how):
        for function, *args in calls(o, True):
            alone = [value[:1] if isinstance(value, Tensor) and value.shape[:1] == (many,) else value for value in args]
            assert torch.equal(run(device, function, *args)[:1], run(device, function, *alone))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_and_weights_may_lie_apart_and_nothing_else_is_touched(device) -> None:
    o = Operands(5, 24, 32, torch.bfloat16, 3)
    wide = torch.full((5, 50), math.nan, dtype=torch.bfloat16)
    wide[:, 3:35] = o.x
    rows = torch.full((24, 64), math.nan, dtype=torch.bfloat16)
    rows[:, :32] = o.weight
    for how in PLANS[:2]:
        with forced(how):
            few = slice(0, 4 if how else 5)
            mine = run(device, layer.norm_linear, wide[few, 3:35], o.norm, EPS, rows[:, :32])
        exact = reference(layer.norm_linear, o.x[few].double(), o.norm.double(), EPS, o.weight.double())
        assert_near(mine, exact, torch.bfloat16)
    assert torch.isnan(wide[:, 35:]).all()


@pytest.mark.parametrize("device", DEVICES)
@given(rows=st.sampled_from([(1,), (7,), (2, 5)]), size=st.integers(1, 300), dtype=DTYPES, seed=st.integers(0, 99))
@examples(20, 20)
def test_a_norm_alone(device, rows, size, dtype, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    x = (torch.randn(*rows, size, generator=random) * 30).to(dtype)
    norm = torch.randn(size, generator=random).to(dtype)
    exact = reference(layer.rms_norm, x.double(), norm.double(), EPS)
    assert_near(run(device, layer.rms_norm, x, norm, EPS), exact, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_and_empty_ones_go_to_torch(device, dtype) -> None:
    o = Operands(2, 8, 16, dtype, 4)
    for function, *args in calls(o, True):
        torch.testing.assert_close(run(device, function, *args), reference(function, *args))
    empty = Operands(0, 8, 16, torch.float32, 4)
    for function, *args in calls(empty, True):
        assert run(device, function, *args).shape == (0, 8)


def test_rows_and_sizes_choose_the_kernel_and_large_products_are_the_librarys() -> None:
    def chosen(*sizes: int, **options: bool) -> type:
        return type(plan(*sizes, torch.bfloat16, **options))

    assert chosen(1, 960, 576) is Few
    assert chosen(16, 960, 576) is Whole
    assert chosen(33, 960, 576) is Tiles
    assert chosen(33, 480, 576, pairs=True, into=True) is Whole
    assert chosen(65, 14336, 4096, pairs=True) is Library
    assert chosen(8224, 576, 576) is Library
    assert type(plan(33, 960, 576, torch.float32)) is Tiles
    with forced(Library()):
        assert chosen(1, 960, 576) is Library
    assert chosen(1, 960, 576) is Few


def test_large_kernels_let_the_next_start_only_when_they_have_waited_themselves() -> None:
    assert early_launch(1) == early_launch(99) == 0
    with early():
        assert (early_launch(1), early_launch(99)) == (Early.AT_ONCE, Early.AFTER_WAIT)
        with early(when=Early.AT_ONCE):
            assert early_launch(99) == Early.AT_ONCE
        with early(False):
            assert early_launch(1) == 0
    assert early_launch(1) == 0


def test_wrong_arguments_are_refused() -> None:
    o = Operands(3, 8, 16, torch.float32, 5)
    with pytest.raises(ValueError, match="weight"):
        layer.norm_linear(o.x, o.norm, EPS, o.weight[:, :9])
    with pytest.raises(ValueError, match="norm"):
        layer.norm_linear(o.x, o.norm[:9], EPS, o.weight)
    with pytest.raises(ValueError, match="bias"):
        layer.norm_linear(o.x, o.norm, EPS, o.weight, o.bias2)
    with pytest.raises(ValueError, match="halves"):
        layer.norm_gated_linear(o.x, o.norm, EPS, o.gate_up[:7])
    with pytest.raises(ValueError, match=r"is not \[3, 8\]"):
        layer.linear_add(o.y, o.weight, o.added[:2])
    with pytest.raises(ValueError, match="bfloat16"):
        layer.rms_norm(o.x, o.norm.bfloat16(), EPS)


@pytest.mark.skipif(not CUDA, reason="no CUDA device in use")
def test_kernels_that_start_before_the_one_before_them_ends_give_the_same() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(576, 576, device="cuda", dtype=torch.bfloat16) / 24 for _ in range(40)]
    gates = [torch.randn(1152, 576, device="cuda", dtype=torch.bfloat16) / 24 for _ in range(40)]
    norm = torch.ones(576, device="cuda", dtype=torch.bfloat16)

    def chain(x: Tensor) -> Tensor:
        for weight, gate_up in zip(weights, gates, strict=True):
            y = layer.norm_gated_linear(x, norm, EPS, gate_up)
            x = layer.linear_add(layer.rms_norm(layer.norm_linear(y, norm, EPS, weight), norm, EPS), weight, x)
        return x

    for rows, when in itertools.product((1, 16, 33, 65, 129), (None, *Early)):
        x = torch.randn(rows, 576, device="cuda", dtype=torch.bfloat16)
        expected = chain(x)
        with early(when=when):
            chain(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                mine = chain(x)
        for _ in range(20):
            mine.zero_()
            graph.replay()
            assert torch.equal(mine, expected)
