"""The policy behind `--budget auto`: what it chooses for given costs and marginals, and what it learns from steps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddscope.engine import calibrate as calibrating
from ddscope.engine.budget import TRUST, AutoBudget, Trust, VerifyCost
from ddscope.engine.calibrate import calibrate, sizes
from ddscope.engine.faults import Faults
from ddscope.engine.generate import Generator, Params
from ddscope.engine.records import step as step_record
from ddscope_kernels import DraftTree, build_tree
from tests.engine_models import tiny_pair

ROWS = [1, 2, 4, 8, 16, 32]
CHEAP = [1000.0 + rows for rows in ROWS]
DEAR = [1000.0 * rows for rows in ROWS]
PROMPT = [3, 1, 4, 1, 5]


def tree(first: float, depths: int = 8, budget: int = 31) -> DraftTree:
    """Marginals whose likeliest token has the probability `first` at every depth; seven others share the rest."""
    row = [math.log(first), *[math.log((1 - first) / 7)] * 7]
    return build_tree([row] * depths, [list(range(8))] * depths, budget)


def auto(us: list[float], fixed: float = 500.0) -> AutoBudget:
    return AutoBudget(VerifyCost(ROWS, us), fixed)


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_free_nodes_are_all_taken_and_dear_ones_are_not() -> None:
    easy = tree(0.9)
    assert auto([1000.0] * len(ROWS)).choose(easy, 99).budget == 31
    assert auto(DEAR, fixed=0.001).choose(tree(0.4), 99).budget == 0
    assert auto(DEAR).choose(easy, 99).budget < auto(CHEAP).choose(easy, 99).budget


def test_harder_marginals_get_a_smaller_tree_where_nodes_cost_something() -> None:
    us = [1000.0 + 300 * rows for rows in ROWS]
    assert auto(us).choose(tree(0.3), 99).budget < auto(us).choose(tree(0.9), 99).budget


def test_a_dearer_rest_of_the_step_makes_the_tree_larger() -> None:
    us = [1000.0 + 60 * rows for rows in ROWS]
    assert auto(us, fixed=5000).choose(tree(0.7), 99).budget > auto(us, fixed=10).choose(tree(0.7), 99).budget


def test_the_choice_is_the_best_rate_of_all_budgets_and_says_what_it_expects() -> None:
    policy, drafted = auto([1000.0 + 60 * rows for rows in ROWS]), tree(0.6)
    rates = []
    for budget in range(len(drafted) + 1):
        expected = 1 + sum(math.exp(score) for score in drafted.scores[1 : budget + 1])
        rates.append(expected / (policy.fixed_us + 1000 + 60 * (budget + 1)))
    choice = policy.choose(drafted, 99)
    assert choice.budget == rates.index(max(rates)) > 0
    assert choice.emitted / choice.us == pytest.approx(max(rates))
    assert choice.most == 31


def test_tokens_that_may_not_be_emitted_are_worth_nothing() -> None:
    policy, easy = auto(CHEAP), tree(0.95)
    assert policy.choose(easy, 1).budget == 0
    assert 0 < policy.choose(easy, 2).budget < policy.choose(easy, 99).budget
    assert policy.choose(easy, 2).emitted <= 2


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(1, 1e6), min_size=len(ROWS), max_size=len(ROWS)),
    st.floats(0.05, 0.99),
    st.integers(0, 40),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(1, 32), st.floats(1, 1e9)), max_size=20),
)
def test_no_costs_choose_more_than_there_is_and_equal_ones_choose_equally(us, first, budget, room, seen) -> None:
    drafted = tree(first, budget=budget)
    choices = []
    for _ in range(2):
        policy = auto(us)
        for rows, took in seen:
            policy.cost.observe(rows, took)
        assert all(a <= b for a, b in zip(policy.cost.curve, policy.cost.curve[1:], strict=False))
        choices.append(policy.choose(drafted, room))
    assert choices[0] == choices[1]
    assert 0 <= choices[0].budget <= min(len(drafted), policy.most)


# -- costs ------------------------------------------------------------------------------------------------------------


def test_costs_are_lines_between_the_measured_sizes() -> None:
    cost = VerifyCost([1, 3, 7], [10.0, 20.0, 60.0])
    assert cost.curve == pytest.approx([10, 15, 20, 30, 40, 50, 60])


def test_a_size_that_took_longer_than_a_larger_one_was_disturbed() -> None:
    assert VerifyCost([1, 2, 4], [10.0, 50.0, 16.0]).curve == pytest.approx([10, 12, 14, 16])
    assert VerifyCost([1, 2, 4], [70.0, 50.0, 60.0]).curve == pytest.approx([50, 50, 55, 60])


def test_a_size_that_took_longer_than_its_neighbours_let_expect_was_disturbed_too() -> None:
    assert VerifyCost([1, 2, 4, 8], [10.0, 14.0, 13.0, 17.0]).curve == pytest.approx([10, 11, 12, 13, 14, 15, 16, 17])
    assert VerifyCost([1, 2, 4], [10.0, 10.0, 16.0]).curve == pytest.approx([10, 10, 13, 16])  # dearer and dearer stays


def test_a_slower_machine_slows_every_size_and_one_hiccup_hardly_any() -> None:
    cost = VerifyCost(ROWS, CHEAP)
    before = list(cost.curve)
    cost.observe(8, 1e9)
    assert all(b < a < 1.3 * b for a, b in zip(cost.curve, before, strict=True))
    for _ in range(100):
        cost.observe(8, 3 * before[7])
    assert cost.curve[7] == pytest.approx(3 * before[7], rel=0.02)
    assert all(a > 1.4 * b for a, b in zip(cost.curve, before, strict=True))


def test_a_size_beyond_the_measured_ones_teaches_nothing() -> None:
    cost = VerifyCost(ROWS, CHEAP)
    before = list(cost.curve)
    cost.observe(33, 1.0)
    assert cost.curve == before


@pytest.mark.parametrize(("rows", "us"), [([], []), ([2, 4], [1.0, 2.0]), ([1, 1], [1.0, 2.0]), ([1, 2], [1.0, 0.0])])
def test_costs_that_cannot_be_are_refused(rows: list[int], us: list[float]) -> None:
    with pytest.raises(ValueError, match="costs need"):
        VerifyCost(rows, us)


# -- trust ------------------------------------------------------------------------------------------------------------


def test_marginals_that_promise_too_much_are_believed_less_and_choose_a_smaller_tree() -> None:
    us = [1000.0 + 300 * rows for rows in ROWS]
    policy, drafted = auto(us), tree(0.9)
    before = policy.choose(drafted, 99)
    for _ in range(50):
        policy.trust.observe(drafted.depths, drafted.scores, 0)
    after = policy.choose(drafted, 99)
    assert after.budget < before.budget
    assert after.emitted < before.emitted


def test_trust_is_one_without_evidence_right_in_the_long_run_and_bounded() -> None:
    trust = Trust()
    assert trust.factor(3) == 1.0
    depths, scores = [0, 1], [0.0, math.log(0.8)]
    for number in range(600):
        trust.observe(depths, scores, 1 if number % 2 else 0)
    assert trust.factor(1) == pytest.approx(0.5 / 0.8, rel=0.05)
    for _ in range(600):
        trust.observe(depths, scores, 0)
    assert trust.factor(1) == TRUST[0]
    for _ in range(600):
        trust.observe(depths, [0.0, math.log(0.01)], 1)
    assert trust.factor(1) == TRUST[1]
    assert trust.factor(2) == 1.0


# -- in the engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_auto_writes_the_text_of_plain_decoding_and_tells_what_it_chose(tmp_path: Path, temperature: float) -> None:
    pair = tiny_pair(tmp_path)
    params = Params(algorithm="autoregressive", temperature=temperature, seed=11, max_new_tokens=40)
    plain = Generator(pair, PROMPT, params)
    plain.start()
    while not plain.done:
        plain.commit(plain.draft_and_verify())
    policy = AutoBudget(VerifyCost([1, 2, 4, 8, 16, 32, 64], [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06]), 1.0)
    chosen = []
    params = Params(budget="auto", temperature=temperature, seed=11, max_new_tokens=40)
    generator = Generator(pair, PROMPT, params, policy)
    generator.start()
    while not generator.done:
        result = generator.draft_and_verify()
        # What a step took is the machine's; here every verify costs what it was said to.
        result.times = {"draft": 1, "verify": round(policy.cost.curve[len(result.tokens)])}
        generator.commit(result)
        assert result.choice is not None
        assert result.budget == result.choice.budget >= len(result.tokens)
        told = step_record("r1", 0, result, params)["tree"]
        assert (told["budget"], told["auto"]["most"]) == (result.budget, 63)
        chosen.append(result.budget)
    assert generator.output == plain.output
    assert max(chosen) > 0
    assert policy.as_fact()["trust"], "the steps taught nothing"


def test_a_budget_may_become_auto_and_a_number_again_between_steps(tmp_path: Path) -> None:
    generator = Generator(tiny_pair(tmp_path), PROMPT, Params(budget=3, max_new_tokens=30))
    generator.start()
    seen = []
    for budget in (3, "auto", 5):
        generator.params = Params(budget=budget, max_new_tokens=30)
        result = generator.draft_and_verify()
        generator.commit(result)
        seen.append((result.choice is not None, result.budget))
    assert seen[0] == (False, 3)
    assert seen[1][0]
    assert seen[2] == (False, 5)


def test_calibration_times_every_size_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "ROUNDS", 2)
    told: list[tuple[str, int, int]] = []
    policy = calibrate(tiny_pair(tmp_path), Params(), lambda *what: told.append(what))
    assert policy.cost.rows == sizes(63) == [1, 2, 4, 8, 16, 32, 64]
    assert min(policy.cost.calibrated) > 0 < policy.fixed_us
    assert told[-1] == (calibrating.MEASURING, 2, 2)
    assert policy.most == 63


def test_a_drafter_that_cannot_draft_does_not_stop_the_calibration(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path).with_faults(Faults("final-layer-only"))
    assert calibrate(pair, Params()).most == 63


def test_a_smaller_budget_is_the_first_nodes_of_a_larger_tree() -> None:
    logprobs = torch.randn(5, 12).log_softmax(-1).sort(-1, descending=True).values
    ids = torch.arange(60).view(5, 12)
    whole = build_tree(logprobs, ids, 40)
    for budget in (0, 1, 17, 40, 50):
        assert whole.first(budget) == build_tree(logprobs, ids, min(budget, 40))
