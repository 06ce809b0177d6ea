"""`topk_logprobs`: values, the total order of candidates, and logits that are no numbers."""

from __future__ import annotations

import math

import pytest
import torch

from ddscope_kernels import count_nonfinite, topk_logprobs

INF, NAN = math.inf, math.nan


def test_log_probabilities_are_against_the_whole_vocabulary() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 300) * 4
    got = topk_logprobs(logits, 7)
    want = torch.log_softmax(logits, dim=-1)
    torch.testing.assert_close(got.logprobs, want.sort(dim=-1, descending=True).values[:, :7])
    torch.testing.assert_close(got.logprobs, want.gather(-1, got.ids))
    torch.testing.assert_close(got.logz, logits.logsumexp(-1))
    torch.testing.assert_close(got.entropy, torch.distributions.Categorical(logits=logits).entropy())
    assert got.nonfinite == 0


def test_equal_logits_come_in_order_of_their_ids_and_the_lowest_ids_make_the_cut() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 3.0, 1.0]])
    assert topk_logprobs(logits, 3).ids.tolist() == [[1, 2, 4]]
    assert topk_logprobs(logits, 5).ids.tolist() == [[1, 2, 4, 5, 0]]


def test_bfloat16_logits_full_of_ties_give_the_same_candidates_as_their_float32_copies() -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, 4000).to(torch.bfloat16)
    assert len(set(logits[0].tolist())) < 2000  # ties indeed
    assert topk_logprobs(logits, 64).ids.tolist() == topk_logprobs(logits.float(), 64).ids.tolist()


def test_a_vocabulary_smaller_than_k_gives_all_of_it() -> None:
    got = topk_logprobs(torch.tensor([[0.0, 2.0, 1.0]]), 10)
    assert got.ids.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(("depths", "k"), [(0, 4), (3, 0)])
def test_no_depths_or_no_candidates_are_no_error(depths: int, k: int) -> None:
    got = topk_logprobs(torch.zeros(depths, 9), k)
    assert got.ids.shape == (depths, k)
    assert got.logz.shape == (depths,)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_logit_that_is_no_number_is_counted_and_takes_no_part(bad: float) -> None:
    got = topk_logprobs(torch.tensor([[1.0, bad, 2.0], [0.0, 0.0, 5.0]]), 3)
    assert got.nonfinite == 1
    assert got.ids[0, :2].tolist() == [2, 0]
    assert got.logprobs[0].tolist() == pytest.approx([-math.log1p(math.exp(-1)), -1 - math.log1p(math.exp(-1)), -INF])
    assert got.logz[0].item() == pytest.approx(math.log(math.exp(1) + math.exp(2)))
    assert torch.isfinite(got.logprobs[1]).all()


def test_a_row_without_a_finite_logit_has_no_candidate_and_no_entropy() -> None:
    got = topk_logprobs(torch.full((1, 4), NAN), 2)
    assert got.logprobs.tolist() == [[-INF, -INF]]
    assert (got.logz.item(), got.entropy.item(), got.nonfinite) == (-INF, 0.0, 4)


def test_no_log_probability_is_above_zero() -> None:
    logits = torch.full((1, 1000), -80.0)
    logits[0, 17] = 40.123
    assert topk_logprobs(logits, 2).logprobs[0, 0].item() <= 0.0


def test_a_tensor_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[D, V\]"):
        topk_logprobs(torch.zeros(3), 1)


def test_every_kind_of_non_finite_number_is_counted() -> None:
    assert count_nonfinite(torch.tensor([1.0, NAN, INF, -INF, 2.0])) == 3
    assert count_nonfinite(torch.tensor([INF, -INF])) == 2
    assert count_nonfinite(torch.full((10,), 3e38)) == 0  # the sum overflows, the terms do not
