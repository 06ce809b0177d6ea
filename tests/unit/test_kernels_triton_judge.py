"""The Triton judgement of rows of logits against its reference and float64, with ties, NaN, ±inf and empty rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddscope_kernels.batched import choose, judge, topk_logprobs
from tests.unit.triton_support import CUDA, DEVICES, examples, poisoned, reference, run, shapes

SHAPES = shapes((st.integers(1, 3), st.integers(1, 5), st.integers(1, 9000)), [(2, 33, 49152), (3, 1, 70), (1, 4, 1)])
DTYPES = st.sampled_from([torch.bfloat16] if CUDA else [torch.float32, torch.bfloat16, torch.float16])


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, dtype=DTYPES, kind=st.sampled_from(["plain", "ties", "holes"]), seed=st.integers(0, 2**30))
@examples(15, 12)
def test_a_row_is_judged_as_float64_does(device, shape, dtype, kind, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=random) * 4
    logits = (logits.round() if kind == "ties" else logits).to(dtype)
    if kind == "holes":
        bad = torch.tensor([math.nan, -math.inf, math.inf])[torch.randint(0, 3, shape, generator=random)]
        logits = torch.where(torch.rand(shape, generator=random) < 0.3, bad, logits).to(dtype)
        logits[0, 0] = math.nan
        logits[-1, -1, 1:] = -math.inf  # one is left at most
    with poisoned():
        mine = run(device, judge, logits)
    other = reference(judge, logits)
    for name in ("ids", "gap", "nonfinite"):
        assert torch.equal(getattr(mine, name), getattr(other, name)), name
    exact = torch.where(logits.isfinite(), logits.double(), -math.inf)
    logz = exact.logsumexp(-1)
    torch.testing.assert_close(mine.logz.double(), logz, rtol=1e-6, atol=1e-5)
    best = exact.amax(-1)
    expected = torch.where(best.isneginf(), -math.inf, best - logz)
    torch.testing.assert_close(mine.logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    top = reference(topk_logprobs, logits, 2)
    assert torch.equal(other.ids, torch.where(best.isneginf(), 0, top.ids[..., 0]))
    if kind != "holes":
        assert torch.equal(other.ids, reference(choose, logits))


@pytest.mark.parametrize("device", DEVICES)
def test_a_tie_across_slices_has_no_gap_and_the_lower_id(device) -> None:
    logits = torch.zeros(1, 2, 9000)
    logits[0, 0, [8999, 4097, 70]] = 5.0
    logits[0, 1, [10, 8999]] = torch.tensor([2.0, 3.5])
    mine = run(device, judge, logits)
    assert mine.ids.tolist() == [[70, 8999]]
    assert mine.gap.tolist() == [[0.0, 1.5]]


def test_wrong_arguments_are_refused_and_nothing_is_judged_as_nothing() -> None:
    with pytest.raises(ValueError, match=r"\[R, N, V\]"):
        judge(torch.zeros(3, 4))
    assert judge(torch.zeros(0, 3, 40)).ids.shape == (0, 3)
