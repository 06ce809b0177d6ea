"""`build_tree` and `chain_tree` at their edges; the general case is checked against an oracle in tests/property."""

from __future__ import annotations

import math

import pytest
import torch

from ddscope_kernels import build_tree, chain_tree

INF, NAN = math.inf, math.nan
PROBS = [[-0.5, -1.0], [-0.2, -2.0]]
IDS = [[10, 11], [20, 21]]


def test_the_budget_does_not_count_the_root() -> None:
    tree = build_tree(PROBS, IDS, 3)
    assert len(tree) == 3
    # -0.5, then its child at -0.7, then the second candidate at -1.0
    assert tree.tokens == [10, 20, 11]
    assert tree.parents == [0, 1, 0]
    assert tree.depths == [0, 1, 2, 1]
    assert tree.ranks == [0, 0, 1]
    assert tree.logprobs == [-0.5, -0.2, -1.0]
    assert tree.scores == pytest.approx([0, -0.5, -0.7, -1.0])
    assert tree.rows == [0b0001, 0b0011, 0b0111, 0b1001]


def test_tensors_and_lists_give_the_same_tree() -> None:
    exact = torch.tensor(PROBS)
    assert build_tree(exact, torch.tensor(IDS), 6) == build_tree(exact.tolist(), IDS, 6)


@pytest.mark.parametrize("spread", [0.0, 0.02, 1.0])
def test_a_wide_tensor_of_which_few_columns_are_read_gives_the_tree_of_its_lists(spread: float) -> None:
    # Without spread every candidate is as good as any, so that a row is read to its end.
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(5)) * spread
    logprobs = logits.log_softmax(-1).sort(-1, descending=True).values
    ids = torch.arange(2100).view(3, 700)
    for budget in (0, 1, 63, 64, 65, 300, 900):
        tree = build_tree(logprobs, ids, budget)
        assert tree == build_tree(logprobs.tolist(), ids.tolist(), budget)
        assert len(tree) == budget
    assert spread or max(tree.ranks) == 699


def test_a_wide_tensor_of_no_depth_or_with_a_number_that_is_none_is_built_as_any_other() -> None:
    assert len(build_tree(torch.empty(0, 100), torch.empty(0, 100, dtype=torch.int64), 5)) == 0
    logprobs = torch.full((2, 100), -4.0)
    logprobs[0, 80] = NAN
    ids = torch.arange(200).view(2, 100)
    tree = build_tree(logprobs, ids, 150)
    assert tree == build_tree(logprobs.tolist(), ids.tolist(), 150)
    assert tree.dropped == 1
    with pytest.raises(ValueError, match="disagree"):
        build_tree(logprobs, ids[:, :90], 5)


@pytest.mark.parametrize(("probs", "ids"), [(PROBS, IDS), ([], []), ([[], []], [[], []])])
@pytest.mark.parametrize("build", [build_tree, chain_tree])
def test_no_budget_no_depth_or_no_candidate_leaves_the_root_alone(probs, ids, build) -> None:
    tree = build(probs, ids, 0 if probs is PROBS else 5)
    assert (tree.tokens, tree.parents, tree.depths, tree.rows, tree.scores) == ([], [], [0], [1], [0.0])


def test_fewer_candidates_than_the_budget_make_a_smaller_tree() -> None:
    assert len(build_tree(PROBS, IDS, 100)) == 2 + 2 * 2


@pytest.mark.parametrize("bad", [NAN, -INF, INF])
def test_a_candidate_that_is_no_number_is_dropped_and_counted(bad: float) -> None:
    tree = build_tree([[-0.5, bad], [bad, bad], [-0.1, -0.2]], [[1, 2], [3, 4], [5, 6]], 50)
    assert tree.tokens == [1]  # nothing can follow a depth without candidates
    assert tree.dropped == 3
    assert chain_tree([[-0.5], [bad], [-0.1]], [[1], [3], [5]], 3).tokens == [1]


def test_equal_scores_go_by_depth_then_rank_then_parent() -> None:
    # Probability-1 candidates: every node below node 1 has its parent's score.
    tree = build_tree([[-1.0, -1.0], [0.0, 0.0], [0.0, 0.0]], [[1, 2], [3, 4], [5, 6]], 14)
    assert tree.depths[1:] == [1] * 2 + [2] * 4 + [3] * 8
    assert list(zip(tree.ranks, tree.parents, strict=True))[:6] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
    # At depth 3 all rank-0 children come first, in order of their parents' numbers.
    assert tree.ranks[6:] == [0] * 4 + [1] * 4
    assert tree.parents[6:10] == [3, 4, 5, 6]


def test_a_chain_takes_each_depths_likeliest_token() -> None:
    chain = chain_tree(PROBS, IDS, 5)
    assert (chain.tokens, chain.parents, chain.depths, chain.rows) == ([10, 20], [0, 1], [0, 1, 2], [1, 3, 7])


def test_token_zero_is_a_token_like_any_other() -> None:
    assert build_tree([[-0.1, -3.0]], [[0, 5]], 2).tokens == [0, 5]


@pytest.mark.parametrize("build", [build_tree, chain_tree])
def test_shapes_that_disagree_and_a_negative_budget_are_refused(build) -> None:
    with pytest.raises(ValueError, match="disagree"):
        build([[-1.0]], [[1, 2]], 3)
    with pytest.raises(ValueError, match="disagree"):
        build([[-1.0], [-2.0]], [[1]], 3)
    with pytest.raises(ValueError, match="≥ 0"):
        build(PROBS, IDS, -1)
