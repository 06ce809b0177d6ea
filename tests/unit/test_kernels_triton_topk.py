"""The Triton top-k, logsumexp and entropy against float64, with ties, NaN and ±inf."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ddscope_kernels.batched import MarginalsBatch, topk_logprobs
from tests.unit.triton_support import CUDA, DEVICES, examples, poisoned, reference, run, shapes

from ddscope_kernels.jit import topk  # isort: skip  # after the support, which chooses the interpreter

DTYPES = st.sampled_from([torch.float32, torch.bfloat16] if CUDA else [torch.float32, torch.bfloat16, torch.float16])
SHAPES = shapes(
    (st.integers(1, 8), st.integers(1, 9), st.integers(1, 500), st.integers(1, 64)),
    [(3, 15, 49152, 64), (2, 3, 70, 5)],
)


def logits(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    requests, depths, size, _ = shape
    x = torch.randn(requests, depths, size, generator=random) * 4
    if kind == "ties":
        x = x.round()
        x[0, 0] = 0.0
        x[0, 0, ::2] = -0.0  # equal to 0.0
    if kind == "holes":
        bad = torch.tensor([math.nan, -math.inf, math.inf])[torch.randint(0, 3, x.shape, generator=random)]
        x = torch.where(torch.rand(x.shape, generator=random) < 0.3, bad, x)
        x[-1, -1] = -math.inf
    return x.to(dtype)


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, dtype=DTYPES, kind=st.sampled_from(["plain", "ties", "holes"]), seed=st.integers(0, 2**30))
@example(shape=(1, 31, 200, 64), dtype=torch.bfloat16, kind="holes", seed=3)
@examples(10, 10)
def test_candidates_are_exact_and_sums_are_right(device, shape, dtype, kind, seed) -> None:
    x = logits(shape, dtype, kind, seed)
    k = min(shape[2:])
    with poisoned():
        mine = run(device, topk_logprobs, x, shape[3])
    other = reference(topk_logprobs, x, shape[3])
    assert mine.ids.shape == (*shape[:2], k)
    assert torch.equal(mine.ids, other.ids)
    assert torch.equal(mine.nonfinite, other.nonfinite)
    exact = x.double()
    exact = torch.where(exact.isfinite(), exact, -math.inf)
    logz = exact.logsumexp(-1)
    torch.testing.assert_close(mine.logz.double(), logz, rtol=1e-6, atol=1e-5)
    expected = exact.gather(-1, mine.ids) - logz[..., None]
    expected = torch.where(logz[..., None].isneginf(), -math.inf, expected)
    torch.testing.assert_close(mine.logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    p = torch.where(logz[..., None].isneginf(), 0.0, exact - logz[..., None]).exp()
    entropy = -torch.where(exact.isneginf(), 0.0, p * (exact - logz[..., None])).nan_to_num(0.0).sum(-1)
    torch.testing.assert_close(mine.entropy.double(), entropy, rtol=1e-4, atol=1e-4)
    assert (mine.logprobs <= 0).all()
    assert (mine.logprobs[..., 1:] <= mine.logprobs[..., :-1]).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16] if CUDA else [torch.float32, torch.bfloat16])
def test_the_fused_product_gives_what_float32_sums_of_it_give(device, dtype) -> None:
    # Small integers: every order of summation gives the same sums, with many ties.
    random = torch.Generator().manual_seed(5)
    width, size, k = (576, 49152, 64) if CUDA else (70, 300, 20)
    hidden = torch.randint(-3, 4, (2, 15 if CUDA else 2, width), generator=random).to(dtype)
    head = torch.randint(-3, 4, (size, width), generator=random).to(dtype)
    with poisoned():
        mine = run(device, topk_logprobs, hidden, k, head)
    other = reference(topk_logprobs, hidden, k, head)
    assert torch.equal(mine.ids, other.ids)
    torch.testing.assert_close(mine.logprobs, other.logprobs, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mine.logz, other.logz, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_no_candidates_are_no_error(device) -> None:
    nothing = run(device, topk_logprobs, torch.zeros(2, 3, 40), 0)
    assert nothing.ids.shape == nothing.logprobs.shape == (2, 3, 0)
    torch.testing.assert_close(nothing.logz, torch.full((2, 3), math.log(40)))
    assert run(device, topk_logprobs, torch.zeros(0, 3, 40), 5).ids.shape == (0, 3, 5)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="64"):
        topk_logprobs(torch.zeros(1, 1, 100), 65)
    with pytest.raises(ValueError, match="do not fit"):
        topk_logprobs(torch.zeros(1, 1, 8), 5, torch.zeros(100, 9))


@pytest.mark.parametrize("device", DEVICES)
def test_very_many_slices_are_narrowed_down_first(device) -> None:
    x = logits((1, 2, 5000 if not CUDA else 600_000, 8), torch.float32, "ties", 1)
    mine = run(device, lambda x: MarginalsBatch(*topk.launch(x, 8, None, most=16 if not CUDA else 64)), x)
    assert torch.equal(mine.ids, reference(topk_logprobs, x, 8).ids)
