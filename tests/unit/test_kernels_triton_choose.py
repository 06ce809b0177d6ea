"""The Triton argmax and Gumbel-max draw against their references, and the draws against the distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddscope_kernels.batched import choose, gumbel_noise
from tests.unit.triton_support import CUDA, DEVICES, examples, poisoned, reference, run, shapes

SHAPES = shapes((st.integers(1, 4), st.integers(1, 5), st.integers(1, 300)), [(4, 9, 49152), (3, 1, 70)])
DTYPES = st.sampled_from([torch.bfloat16] if CUDA else [torch.float32, torch.bfloat16, torch.float16])


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, dtype=DTYPES, ties=st.booleans(), seed=st.integers(0, 2**30))
@examples(10, 8)
def test_choices_are_the_references(device, shape, dtype, ties, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    requests, nodes, size = shape
    logits = torch.randn(shape, generator=random) * 3
    logits = (logits.round() if ties else logits).to(dtype)
    logits[torch.rand(shape, generator=random) < 0.1] = math.nan
    logits[0, 0] = math.nan
    assert torch.equal(run(device, choose, logits), reference(choose, logits))
    options = {
        "temperatures": torch.tensor([0.7, 0.0, 1.0, 2.5])[:requests],
        "seeds": torch.randint(-(2**62), 2**62, (requests,), generator=random),
        "positions": torch.randint(0, 2**17, (requests, nodes), generator=random),
    }
    with poisoned():
        mine = run(device, choose, logits, **options)
    other = reference(choose, logits, **options)
    # Where the two differ, the last bit of a logarithm decided: the scores must be as good as equal.
    warm = options["temperatures"][:, None, None]
    noise = torch.where(warm > 0, gumbel_noise(options["seeds"], options["positions"], size), 0.0)
    scores = logits.float() * (1.0 / torch.where(warm > 0, warm, 1.0)) + noise
    scores = torch.where(scores.isnan(), -1e30, scores)
    torch.testing.assert_close(
        scores.gather(-1, mine[..., None]), scores.gather(-1, other[..., None]), rtol=1e-5, atol=1e-5
    )
    assert (mine != other).sum() <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_draws_follow_the_softmax(device) -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    count = 4000
    logits = (probabilities.log() * 0.7).expand(1, count, 5)
    drawn = reference(
        choose,
        logits,
        temperatures=torch.tensor([0.7]),
        seeds=torch.tensor([11]),
        positions=torch.arange(count)[None],
    )
    share = torch.bincount(drawn[0], minlength=5) / count
    # Five standard deviations of the largest share are 0.04.
    assert (share - probabilities).abs().max() < 0.04
    few = {"temperatures": torch.tensor([0.7]), "seeds": torch.tensor([11]), "positions": torch.arange(40)[None]}
    assert torch.equal(run(device, choose, logits[:, :40], **few), drawn[:, :40])


def test_the_noise_of_a_position_does_not_depend_on_the_tree() -> None:
    seeds = torch.tensor([5])
    one = gumbel_noise(seeds, torch.tensor([[7]]), 50)
    assert torch.equal(gumbel_noise(seeds, torch.tensor([[3, 7, 7]]), 50)[:, 1:], one.expand(1, 2, 50))
    assert not torch.equal(gumbel_noise(seeds + 1, torch.tensor([[7]]), 50), one)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="draws need"):
        choose(torch.zeros(1, 1, 3), temperatures=torch.ones(1))
    with pytest.raises(ValueError, match="do not fit"):
        choose(torch.zeros(1, 2, 3), temperatures=torch.ones(1), seeds=torch.ones(1), positions=torch.ones(1, 1))
