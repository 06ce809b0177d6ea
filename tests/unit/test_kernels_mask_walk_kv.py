"""The mask's bits, the walk, the compaction and the noise, each by hand-made cases."""

from __future__ import annotations

import pytest
import torch

from ddscope_kernels import (
    ancestor_mask,
    ancestor_rows,
    build_tree,
    causal_rows,
    compact_kv,
    gumbel,
    perturbed_argmax,
    visibility,
    walk,
)


def test_a_node_sees_its_ancestors_and_itself() -> None:
    #  0 ─ 1 ─ 3
    #    └ 2
    assert ancestor_rows([0, 0, 1]) == [0b0001, 0b0011, 0b0101, 0b1011]
    assert visibility(ancestor_rows([0, 0, 1])).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 1, 0, 1],
    ]


def test_a_chain_of_any_length_is_the_plain_causal_mask() -> None:
    for count in (1, 2, 7, 8, 9, 63, 64, 65, 257):
        rows = ancestor_rows(list(range(count - 1)))
        assert rows == causal_rows(count)
        plain = torch.ones(count, count, dtype=torch.bool).tril()
        assert torch.equal(visibility(rows), plain)
        assert torch.equal(ancestor_mask(list(range(count - 1))), plain)


def test_a_trees_own_rows_are_its_ancestor_closure() -> None:
    torch.manual_seed(3)
    logprobs = torch.log_softmax(torch.randn(6, 40), -1).sort(-1, descending=True).values[:, :9]
    tree = build_tree(logprobs, torch.arange(54).view(6, 9), 80)
    assert tree.rows == ancestor_rows(tree.parents)
    assert torch.equal(ancestor_mask(tree.parents), visibility(tree.rows))


def test_a_mask_of_nothing_and_a_bit_outside_it() -> None:
    assert visibility([]).shape == (0, 0)
    with pytest.raises(ValueError, match="beyond column 1"):
        visibility([1, 4])
    with pytest.raises(ValueError, match="parents must come before"):
        ancestor_rows([0, 2])
    with pytest.raises(ValueError, match="parents must come before"):
        ancestor_mask([0, 2])


def test_the_walk_follows_the_targets_choices_and_ends_at_the_first_that_no_child_carries() -> None:
    #  0 ─ 1(a=7) ─ 3(9)
    #    └ 2(8)   └ 4(5)
    tokens, parents = [7, 8, 9, 5], [0, 0, 1, 1]
    assert walk(tokens, parents, [7, 5, 0, 0, 3]) == ([0, 1, 4], 3)
    assert walk(tokens, parents, [8, 0, 9, 0, 0]) == ([0, 2], 9)  # 9 is a child of node 1, not of node 2
    assert walk(tokens, parents, [6, 0, 0, 0, 0]) == ([0], 6)
    assert walk([], [], [4]) == ([0], 4)


def test_the_walk_accepts_token_zero() -> None:
    assert walk([0, 0], [0, 1], [0, 0, 5]) == ([0, 1, 2], 5)


def test_the_walk_refuses_lengths_that_disagree() -> None:
    with pytest.raises(ValueError, match="do not fit one tree"):
        walk([1, 2], [0, 0], [1, 2])


def _numbered(rows: int) -> torch.Tensor:
    return torch.arange(rows, dtype=torch.float32).view(1, rows, 1).expand(2, rows, 3).clone()


def test_compaction_keeps_the_paths_rows_in_order() -> None:
    cache = _numbered(10)
    assert compact_kv(cache, 4, [0, 2, 5]) == 7
    assert cache[1, :, 2].tolist() == [0, 1, 2, 3, 4, 6, 9, 7, 8, 9]


def test_compaction_reads_everything_before_it_writes() -> None:
    cache = _numbered(6)
    compact_kv(cache, 0, [0, 3, 1, 2])  # each target row is also a source
    assert cache[0, :, 0].tolist() == [0, 3, 1, 2, 4, 5]


def test_a_path_already_in_place_moves_nothing() -> None:
    cache = _numbered(6)
    cache.requires_grad_(True)  # an in-place write to a leaf would raise
    assert compact_kv(cache, 2, [0, 1, 2]) == 5
    assert compact_kv(cache, 2, []) == 2


@pytest.mark.parametrize(("base", "path"), [(4, [0, 6]), (-1, [0]), (0, [0, -2]), (0, [10])])
def test_rows_outside_the_cache_are_refused(base: int, path: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit a cache of 10 rows"):
        compact_kv(_numbered(10), base, path)


def test_noise_is_a_function_of_seed_and_position() -> None:
    assert torch.equal(gumbel(3, 17, 100), gumbel(3, 17, 100))
    others = [gumbel(3, 18, 100), gumbel(4, 17, 100), gumbel(17, 3, 100), gumbel(-3, 17, 100), gumbel(2**70, 17, 100)]
    assert all(not torch.equal(gumbel(3, 17, 100), other) for other in others)
    assert torch.isfinite(gumbel(0, 0, 100_000)).all()


def test_noise_has_the_gumbel_distribution_and_neighbours_are_uncorrelated() -> None:
    noise = torch.stack([gumbel(5, position, 2000) for position in range(50)])
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(1.6449, abs=0.05)
    table = torch.corrcoef(noise)
    assert (table - torch.eye(50)).abs().max().item() < 0.12


def test_a_perturbed_argmax_is_a_draw_at_the_given_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    noise = gumbel(1, 1, 4 * 40_000).view(40_000, 4)
    drawn = perturbed_argmax(logits.expand(40_000, 4), noise, 0.7)
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.softmax(logits[0] / 0.7, -1), atol=0.01, rtol=0)
    with pytest.raises(ValueError, match="above 0"):
        perturbed_argmax(logits, noise[:1], 0.0)
