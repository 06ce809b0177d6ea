"""The Triton tree builder against the reference builder: node set, order, masks and padding, entry by entry."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ddscope_kernels.batched import build_tree, empty_trees, unpack_bits
from ddscope_kernels.batched.tree import MERGE_ABOVE
from tests.unit.triton_support import CUDA, DEVICES, assert_same, examples, poison, poisoned, reference, run, shapes

INF, NAN = math.inf, math.nan
SHAPES = shapes(
    (st.integers(1, 4), st.integers(1, 31), st.integers(1, 12), st.integers(0, 33)),
    [(8, 15, 64, 64), (3, 15, 16, 256), (2, 31, 64, 1024), (4, 31, 3, 700), (5, 1, 9, 1), (2, 15, 64, 0)],
)
WIDE = shapes(
    (st.integers(1, 8), st.integers(1, 31), st.integers(1, 12), st.integers(0, 1024)),
    [(8, 31, 12, 1024), (8, 15, 64, 129), (1, 31, 64, 1024), (8, 1, 3, 0)],
)
MASKS = st.sampled_from([torch.bool] if CUDA else [torch.bool, torch.float32])
KINDS = st.sampled_from(["plain", "ties", "certain", "holes"])
MERGE = st.booleans()  # both ways of growing, whatever the budget


def marginals(shape: tuple[int, ...], kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, D, k] log-probabilities and ids. ties: few different values; certain: many zeros; holes: NaN and ±inf."""
    random = torch.Generator().manual_seed(seed)
    requests, depths, k, _ = shape
    logits = torch.randn(requests, depths, k + 3, generator=random) * 2
    logprobs = logits.log_softmax(-1).sort(-1, descending=True).values[..., :k]
    if kind in ("ties", "holes"):
        logprobs = (logprobs * 2).round() / 2
    if kind == "certain":
        logprobs = torch.where(torch.rand(requests, depths, k, generator=random) < 0.5, 0.0, logprobs.round())
        logprobs = logprobs.sort(-1, descending=True).values
    if kind == "holes":
        bad = torch.tensor([NAN, -INF, INF])[torch.randint(0, 3, (requests, depths, k), generator=random)]
        logprobs = torch.where(torch.rand(requests, depths, k, generator=random) < 0.2, bad, logprobs)
    ids = torch.randint(0, 2**31 - 1, (requests, depths, k), generator=random)
    return logprobs, ids


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, kind=KINDS, seed=st.integers(0, 2**30), merge=MERGE)
@example(shape=(2, 3, 2, 33), kind="ties", seed=1, merge=False)  # more room than candidates, two words of bits
@example(shape=(2, 3, 2, 33), kind="ties", seed=1, merge=True)
@examples(16, 16)
def test_a_batch_is_what_the_reference_builds_for_each_request(device, shape, kind, seed, merge) -> None:
    logprobs, ids = marginals(shape, kind, seed)
    mine = run(device, build_tree, logprobs, ids, shape[3], merge=merge)
    assert_same(mine, reference(build_tree, logprobs, ids, shape[3]))


@pytest.mark.parametrize("device", DEVICES)
@given(shape=WIDE, kind=KINDS, seed=st.integers(0, 2**30))
@example(shape=(8, 31, 12, 1024), kind="ties", seed=2)
@examples(6, 8)
def test_any_budget_up_to_1024_is_grown_for_a_ragged_batch(device, shape, kind, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    requests, depths, _, budget = shape
    ragged = {
        "budgets": torch.randint(0, budget + 1, (requests,), generator=random, dtype=torch.int32),
        "lengths": torch.randint(0, depths + 1, (requests,), generator=random, dtype=torch.int32),
    }
    logprobs, ids = marginals(shape, kind, seed)
    mine = run(device, build_tree, logprobs, ids, budget, **ragged)
    assert_same(mine, reference(build_tree, logprobs, ids, budget, **ragged))


@pytest.mark.parametrize("device", DEVICES)
@given(shape=SHAPES, kind=KINDS, seed=st.integers(0, 2**30), mask=MASKS, merge=MERGE)
@examples(12, 12)
def test_ragged_requests_fill_poisoned_buffers_wholly(device, shape, kind, seed, mask, merge) -> None:
    random = torch.Generator().manual_seed(seed)
    requests, depths, _, budget = shape
    options = {
        "base": torch.randint(0, 5000, (requests,), generator=random),
        "budgets": torch.randint(0, budget + 1, (requests,), generator=random, dtype=torch.int32),
        "lengths": torch.randint(0, depths + 1, (requests,), generator=random, dtype=torch.int32),
        "min_scores": -torch.rand(requests, generator=random, dtype=torch.float64) * 12,
    }
    logprobs, ids = marginals(shape, kind, seed)
    buffers = poison(empty_trees(requests, budget, torch.device("cpu"), mask))
    with poisoned():
        mine = run(device, build_tree, logprobs, ids, budget, out=buffers, merge=merge, **options)
    assert_same(mine, reference(build_tree, logprobs, ids, budget, mask=mask, **options))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("value", [-1.0, 0.0])
def test_a_large_budget_over_equal_candidates_keeps_the_total_order(device, merge, value) -> None:
    # All scores of a depth are equal: the order is decided by depth, rank and parent alone.
    shape = (1, 4, 24, 1024 if CUDA else 90)
    logprobs = torch.full(shape[:3], value)
    ids = torch.arange(24).expand(1, 4, 24)
    mine = run(device, build_tree, logprobs, ids, shape[3], merge=merge)
    assert_same(mine, reference(build_tree, logprobs, ids, shape[3]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["plain", "ties"])
def test_budgets_above_the_pointers_are_grown_by_merges(device, kind) -> None:
    budget = MERGE_ABOVE + 172
    logprobs, ids = marginals((1, 6, 64, budget), kind, 4)
    mine = run(device, build_tree, logprobs, ids, budget)
    assert_same(mine, reference(build_tree, logprobs, ids, budget))
    assert_same(mine, run(device, build_tree, logprobs, ids, budget, merge=True))


@pytest.mark.parametrize("device", DEVICES)
def test_scores_are_summed_in_float64(device) -> None:
    # In float32 both paths score -1; in float64 the second candidate of depth 1 is the better second node.
    logprobs = torch.tensor([[[-1.0, -1.0 - 2**-23], [-(2.0**-30), -9.0]]])
    ids = torch.tensor([[[1, 2], [3, 4]]])
    tree = run(device, build_tree, logprobs, ids, 3)
    assert tree.tokens.tolist() == [[1, 3, 2]]
    assert tree.scores[0, 2].item() == -1.0 - 2.0**-30


@pytest.mark.parametrize("device", DEVICES)
def test_a_shorter_budget_is_a_prefix_and_bits_are_the_closure(device) -> None:
    logprobs, ids = marginals((1, 5, 4, 0), "plain", 3)
    dtype = torch.float32 if CUDA else torch.bool
    large, small = (run(device, build_tree, logprobs, ids, budget, mask=dtype) for budget in (35, 9))
    assert torch.equal(large.tokens[:, :9], small.tokens)
    assert torch.equal(large.parents[:, :9], small.parents)
    seen = large.mask[0] if large.mask.dtype == torch.bool else large.mask[0] == 0
    assert torch.equal(seen, unpack_bits(large.bits)[0])
    for node, parent in enumerate(large.parents[0].tolist(), start=1):
        expected = seen[parent].clone()
        expected[node] = True
        assert torch.equal(seen[node], expected)


def test_shapes_that_do_not_fit_are_refused() -> None:
    two = torch.zeros(2, 3, 4)
    for call, words in [
        (lambda: build_tree(two, torch.zeros(2, 3, 5), 4), "not both"),
        (lambda: build_tree(two, two.long(), -1), "≥ 0"),
        (lambda: build_tree(two, two.long(), 4, base=torch.zeros(3)), "one entry a request"),
        (lambda: build_tree(two, two.long(), 4, out=empty_trees(2, 5, two.device)), "do not fit"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
