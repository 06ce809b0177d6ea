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
