"""`build_tree` against a brute-force oracle, nesting, and the other kernels against their definitions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddscope_kernels import (
    ancestor_rows,
    build_tree,
    chain_tree,
    compact_kv,
    ordered_topk,
    topk_logprobs,
    visibility,
    walk,
)

# Multiples of 1/8 sum without rounding, so that ties are ties for the oracle too.
EIGHTHS = st.integers(-24, 0).map(lambda n: n / 8)
ODD = st.sampled_from([math.nan, -math.inf])


@st.composite
def marginals(draw: st.DrawFn, max_depth: int = 4, max_k: int = 4, odd: bool = False):
    depths, k = draw(st.integers(0, max_depth)), draw(st.integers(1, max_k))
    rows = [sorted((draw(EIGHTHS) for _ in range(k)), reverse=True) for _ in range(depths)]
    if odd:
        for row in rows:
            for place in range(draw(st.integers(0, k))):
                row[k - 1 - place] = draw(ODD)
    ids = [draw(st.permutations(range(100, 100 + k))) for _ in range(depths)]
    return rows, ids


def every_node(rows: list[list[float]]) -> list[tuple[int, ...]]:
    """All possible nodes, each as the ranks on its path."""
    kept = [[value for value in row if math.isfinite(value)] for row in rows]
    nodes: list[tuple[int, ...]] = []
    for depth in range(1, len(kept) + 1):
        nodes += itertools.product(*(range(len(row)) for row in kept[:depth]))
    return nodes


def oracle(rows: list[list[float]], budget: int) -> list[tuple[int, ...]]:
    """The tree by its definition: sort ALL nodes by score down, depth up, rank up, parent up; take the first `budget`.

    The parent's place is known when a node is placed, because a parent always sorts before its children.
    """
    placed: dict[tuple[int, ...], int] = {(): 0}

    def key(node: tuple[int, ...]) -> tuple[Fraction, int, int]:
        score = sum((Fraction(rows[depth][rank]) for depth, rank in enumerate(node)), Fraction(0))
        return -score, len(node), node[-1]

    order: list[tuple[int, ...]] = []
    left = sorted(every_node(rows), key=key)
    while left and len(order) < budget:
        tied = [node for node in left if key(node) == key(left[0])]
        first = min(tied, key=lambda node: placed[node[:-1]])
        left.remove(first)
        order.append(first)
        placed[first] = len(order)
    return order


def paths(tree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for rank, parent in zip(tree.ranks, tree.parents, strict=True):
        found.append((*found[parent], rank))
    return found[1:]


@settings(max_examples=200, deadline=None)
@given(marginals(), st.integers(0, 30))
def test_the_tree_is_the_one_that_its_definition_says_in_the_same_order(given_rows, budget: int) -> None:
    rows, ids = given_rows
    assert paths(build_tree(rows, ids, budget)) == oracle(rows, budget)


@settings(max_examples=100, deadline=None)
@given(marginals(odd=True), st.integers(0, 30))
def test_candidates_that_are_no_numbers_change_nothing_but_the_count(given_rows, budget: int) -> None:
    rows, ids = given_rows
    tree = build_tree(rows, ids, budget)
    assert paths(tree) == oracle(rows, budget)
    assert tree.dropped == sum(not math.isfinite(value) for row in rows for value in row)
    assert all(math.isfinite(value) for value in tree.logprobs)


@settings(max_examples=150, deadline=None)
@given(marginals(max_depth=6, max_k=8), st.integers(0, 60), st.integers(0, 60))
def test_a_smaller_budget_gives_the_first_nodes_of_a_larger_one(given_rows, one: int, two: int) -> None:
    rows, ids = given_rows
    small, large = sorted((one, two))
    a, b = build_tree(rows, ids, small), build_tree(rows, ids, large)
    assert (a.tokens, a.parents, a.ranks, a.rows[1:]) == (
        b.tokens[: len(a)], b.parents[: len(a)], b.ranks[: len(a)], b.rows[1 : len(a) + 1],
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(marginals(max_depth=4, max_k=8), st.integers(0, 8))
def test_as_many_candidates_as_the_budget_are_always_enough(given_rows, budget: int) -> None:
    rows, ids = given_rows
    cut = max(budget, 1)
    narrow = build_tree([row[:cut] for row in rows], [row[:cut] for row in ids], budget)
    assert narrow == build_tree(rows, ids, budget)


@settings(max_examples=100, deadline=None)
@given(marginals(max_depth=5, max_k=5), st.integers(0, 40), EIGHTHS)
def test_a_least_score_keeps_exactly_the_nodes_that_reach_it(given_rows, budget: int, least: float) -> None:
    whole, some = build_tree(*given_rows, budget), build_tree(*given_rows, budget, least)
    reach = sum(score >= least for score in whole.scores[1:])
    assert (some.tokens, some.parents) == (whole.tokens[:reach], whole.parents[:reach])
    assert some.scores == whole.scores[: reach + 1]


@settings(max_examples=100, deadline=None)
@given(marginals(max_depth=5, max_k=6), st.integers(0, 60))
def test_a_tree_is_well_formed(given_rows, budget: int) -> None:
    rows, ids = given_rows
    tree = build_tree(rows, ids, budget)
    assert all(parent <= node for node, parent in enumerate(tree.parents))
    assert tree.rows == ancestor_rows(tree.parents)
    assert all(later <= earlier for earlier, later in itertools.pairwise(tree.scores))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)
    for node, (token, rank) in enumerate(zip(tree.tokens, tree.ranks, strict=True), start=1):
        depth = tree.depths[node] - 1
        assert (token, tree.logprobs[node - 1]) == (ids[depth][rank], rows[depth][rank])


@settings(max_examples=60, deadline=None)
@given(marginals(max_depth=6, max_k=3), st.integers(0, 8))
def test_the_chain_is_the_tree_of_one_candidate_a_depth(given_rows, length: int) -> None:
    rows, ids = given_rows
    assert chain_tree(rows, ids, length) == build_tree([r[:1] for r in rows], [r[:1] for r in ids], length)


@settings(max_examples=100, deadline=None)
@given(marginals(max_depth=4, max_k=3), st.integers(0, 20), st.data())
def test_the_walk_is_the_longest_path_that_the_choices_spell(given_rows, budget: int, data: st.DataObject) -> None:
    tree = build_tree(*given_rows, budget)
    choices = data.draw(st.lists(st.integers(99, 103), min_size=len(tree) + 1, max_size=len(tree) + 1))
    path, bonus = walk(tree.tokens, tree.parents, choices)
    for parent, node in itertools.pairwise(path):
        assert tree.parents[node - 1] == parent
        assert tree.tokens[node - 1] == choices[parent]
    assert bonus == choices[path[-1]]
    children = [node for node in range(1, len(tree) + 1) if tree.parents[node - 1] == path[-1]]
    assert all(tree.tokens[node - 1] != bonus for node in children)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_candidates_come_in_the_total_order_of_all_finite_logits(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 30))
    few = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0, math.nan, math.inf, -math.inf])
    row = data.draw(st.lists(few, min_size=size, max_size=size))
    k = data.draw(st.integers(0, 33))
    got = topk_logprobs(torch.tensor([row]), k)
    finite = [token for token in range(size) if math.isfinite(row[token])]
    want = sorted(finite, key=lambda token: (-row[token], token))[:k]
    assert got.ids[0, : len(want)].tolist() == want
    assert torch.isneginf(got.logprobs[0, len(want) :]).all()
    assert got.nonfinite == size - len(finite)
    assert (got.logprobs <= 0).all()
    assert not got.entropy.isnan().any()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5), st.lists(st.integers(0, 12), unique=True, max_size=8))
def test_compaction_is_a_gather_and_leaves_the_rest_alone(base: int, path: list[int]) -> None:
    cache = torch.arange(20.0).view(1, 20, 1).repeat(2, 1, 2)
    want = [*range(base), *(base + node for node in path), *range(base + len(path), 20)]
    compact_kv(cache, base, path)
    assert cache[1, :, 0].tolist() == want


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_masks_tensor_says_what_its_bits_say(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    rows = data.draw(st.lists(st.integers(0, 2**count - 1), min_size=count, max_size=count))
    mask = visibility(rows)
    assert [[bool(row >> j & 1) for j in range(count)] for row in rows] == mask.tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 20), st.sampled_from([6, 40, 10_000]))
def test_candidates_found_through_chunks_are_those_of_a_full_sort(seed: int, k: int, levels: int) -> None:
    # Wide enough for the chunked search; few levels make ties everywhere, also across the cut.
    x = torch.randint(levels, (3, 64 * 100), generator=torch.Generator().manual_seed(seed)).float()
    values, ids = ordered_topk(x, k)
    for row in range(3):
        want = sorted(range(x.shape[1]), key=lambda token: (-x[row, token].item(), token))[:k]
        assert ids[row].tolist() == want
        assert values[row].tolist() == [x[row, token].item() for token in want]
