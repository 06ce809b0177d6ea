"""`accept.curve`, `accept.low_from_start`, `config.requested_vs_effective`: what is wrong with the drafter."""

from __future__ import annotations

from typing import Any

import pytest

from ddscope.diagnose.accept_curve import AcceptCurve
from ddscope.diagnose.accept_low import AcceptLow
from ddscope.diagnose.stats import binomial_at_most
from tests.diagnosing import CHECKPOINT, DEPTH_1_ONLY, HARD, HEALTHY, NOTHING, SAMPLED_HARD, Stream, grave, only

REVERSED = {"target_layer_ids": [27, 20, 14, 8, 1]}


def fed(accepted: list[int], in_force: dict[str, Any] | None = None, distinct: int = 5, **request: Any) -> Stream:
    stream = Stream().header()
    stream.drafter(in_force, distinct)
    return stream.run(accepted, **request)


def sampled(fields: dict[str, Any]) -> None:
    fields["flags"] = {"sampled": True}


# -- accept.curve ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_force", "distinct", "kind", "words"),
    [
        ({"mask_token_id": 2}, 5, "mask_token", "the mask token in force is 2, the drafter's checkpoint says 0"),
        (
            REVERSED,
            5,
            "layer_order",
            "in reverse order: in force [27, 20, 14, 8, 1], in the drafter's checkpoint [1, 8, 14, 20, 27]",
        ),
        ({"target_layer_ids": [8, 1, 14, 20, 27]}, 5, "layer_order", "in another order"),
        ({"target_layer_ids": [2, 9, 15, 21, 28]}, 5, "layer_ids", "off by +1"),
        ({"target_layer_ids": [2, 9, 15, 21, 29]}, 5, "layer_ids", "other target layers are captured"),
        ({"hidden_size": 2048}, 5, "hidden_size", "the hidden size in force is 2,048"),
        (None, 1, "identical_layers", "the five captured layers are all identical"),
        (None, 3, "identical_layers", "the five captured layers are only three different ones"),
    ],
)
def test_the_cause_is_named_from_the_facts(
    in_force: dict[str, Any] | None, distinct: int, kind: str, words: str
) -> None:
    finding = only(fed(DEPTH_1_ONLY, in_force, distinct).findings())
    assert (finding.id, finding.kind, finding.severity) == ("accept.curve", kind, "high")
    assert finding.title.startswith("Acceptance ends after depth 1: ")
    assert words in finding.title
    assert finding.evidence[0].record in (1, 2, 3)  # the facts first, then steps
    assert any(text.startswith("config.requested_vs_effective") for text in finding.consequences)
    assert "P(accepted ≥ 1..5) .40 .01 0 0 0" in finding.detail


def test_two_wrong_inputs_are_both_named() -> None:
    finding = only(fed(DEPTH_1_ONLY, {"mask_token_id": 2} | REVERSED).findings())
    assert finding.kind == "mask_token+layer_order"
    assert "mask token" in finding.title and "reverse order" in finding.title


def test_a_cause_that_the_curve_does_not_show_clearly_is_less_sure() -> None:
    finding = only(fed(HARD, {"mask_token_id": 2}).findings())
    assert (finding.id, finding.confidence) == ("accept.curve", 0.75)
    assert finding.title.startswith("Acceptance is low: the mask token in force is 2")


def test_a_named_cause_needs_only_a_few_steps() -> None:
    finding = only(fed(DEPTH_1_ONLY[:12], {"mask_token_id": 2}).findings())
    assert finding.id == "accept.curve"
    assert finding.confidence == 0.95


def test_without_a_named_cause_the_curve_speaks_of_the_block_inputs() -> None:
    finding = only(fed(DEPTH_1_ONLY).findings())
    assert (finding.id, finding.kind) == ("accept.curve", "block_inputs")
    ruled_out = {r.what: r.why for r in finding.ruled_out}
    assert "all 140 greedy steps" in ruled_out["wrong text"]
    assert "56 steps had nodes below the accepted one; 2 took one" in ruled_out["a small budget"]
    assert "4%" in ruled_out["hard text or a weak drafter"]
    assert "another mask token or other target layers" in ruled_out


def test_without_facts_nothing_is_said_about_the_configuration() -> None:
    finding = only(Stream().header().run(DEPTH_1_ONLY).findings())
    assert all("mask token" not in r.what for r in finding.ruled_out)


def test_nothing_accepted_at_all_is_the_head_the_vocabulary_or_the_weights() -> None:
    finding = only(fed(NOTHING).findings())
    assert (finding.id, finding.kind) == ("accept.curve", "nothing")
    assert [text.split(":")[0] for text in finding.consequences] == ["accept.low_from_start"]
    assert "τ 1.00" in finding.detail


def test_hard_text_falls_smoothly_and_is_no_finding() -> None:
    assert grave(fed(HARD * 5).findings()) == []


def test_a_weak_drafter_is_an_info_that_says_so() -> None:
    weak = [0, 0, 1, 0, 0, 2, 0, 0, 1, 0] * 12
    findings = fed(weak).findings()
    assert [(f.id, f.kind, f.severity) for f in findings] == [("accept.curve", "weak", "info")]


def test_nine_percent_of_fifteen_drafts_is_fine() -> None:
    """2.4 tokens a step."""
    assert fed([2, 1, 0, 2, 1, 1, 3, 1, 2, 1] * 6).findings() == []


def test_a_tree_without_nodes_below_the_accepted_one_refuses_nothing() -> None:
    stream = Stream().header()
    stream.drafter()
    stream.request()
    for accepted in [1, 0, 1, 1] * 40:
        stream.step(accepted, spine=1)
    assert grave(stream.findings()) == []


def test_deeper_steps_show_that_the_inputs_are_right() -> None:
    assert grave(fed(DEPTH_1_ONLY + [5, 4, 3] * 20).findings()) == []


def test_sampling_refuses_good_drafts_too() -> None:
    """At temperature 1 hard text measured the curve of a fault: .30 .02 0."""
    findings = fed(SAMPLED_HARD, temperature=1.0, change=sampled).findings()
    assert [(f.id, f.kind, f.severity) for f in findings] == [("accept.curve", "weak", "info")]
    assert "wrong inputs" in findings[0].title
    assert grave(fed(SAMPLED_HARD).findings()) == ["accept.curve"]


def test_a_sampled_run_that_accepts_nothing_at_all_is_low_from_the_start() -> None:
    assert grave(fed(NOTHING, temperature=1.0, change=sampled).findings()) == []
    assert grave(fed(NOTHING * 2, temperature=1.0, change=sampled).findings()) == ["accept.low_from_start"]


def test_passing_replay_checks_clear_the_target() -> None:
    stream = fed(DEPTH_1_ONLY)
    stream.replay(5e-5, 6e-5, 3)
    finding = only(stream.findings())
    assert any("1 replay check" in r.why for r in finding.ruled_out)


def test_sampled_steps_do_not_prove_the_text() -> None:
    finding = only(fed(DEPTH_1_ONLY, {"mask_token_id": 2}, temperature=1.0, change=sampled).findings())
    assert all(r.what != "wrong text" for r in finding.ruled_out)


# -- config.requested_vs_effective -----------------------------------------------------------------------------------


def test_inputs_that_differ_are_told_though_the_curve_is_healthy() -> None:
    """Layers off by one or two measured τ 3.24 with and without."""
    finding = only(fed(HEALTHY, {"target_layer_ids": [2, 8, 14, 20, 27]}).findings())
    assert (finding.id, finding.kind, finding.severity) == ("config.requested_vs_effective", "layer_ids", "warning")


def test_a_smaller_block_than_the_checkpoints_is_a_choice() -> None:
    assert fed(HEALTHY, {"block_size": 8}).findings() == []


def test_a_checkpoint_that_names_a_layer_twice_has_fewer_distinct_ones() -> None:
    twice = {"target_layer_ids": [1, 8, 14, 27, 27]}
    stream = Stream().header()
    stream.fact("drafter.checkpoint", CHECKPOINT | twice)
    stream.fact("drafter.in_force", CHECKPOINT | twice)
    stream.fact("draft.features", {"rid": "r0", "layers": 5, "distinct": 4})
    assert stream.run(HEALTHY).findings() == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"mask_token_id": None, "target_layer_ids": None},
        {"mask_token_id": "2", "target_layer_ids": ["a"]},
        {"target_layer_ids": [True, False], "hidden_size": True},
    ],
)
def test_facts_that_are_not_as_described_say_nothing(value: Any) -> None:
    stream = Stream().header()
    stream.fact("drafter.checkpoint", CHECKPOINT)
    stream.fact("drafter.in_force", value)
    stream.fact("draft.features", value)
    assert stream.run(HEALTHY).findings() == []


# -- accept.low_from_start -------------------------------------------------------------------------------------------


def test_low_from_the_first_step_on() -> None:
    finding = only(fed(NOTHING).findings(AcceptLow()))
    assert (finding.id, finding.kind, finding.severity) == ("accept.low_from_start", "steps", "high")
    assert finding.next[0].startswith("Pairing")


def test_a_run_that_turns_bad_later_is_not_low_from_the_start() -> None:
    assert grave(fed(HEALTHY[:16] + NOTHING * 20).findings(AcceptLow())) == []


def test_cached_requests_are_left_out() -> None:
    assert fed(NOTHING, cached_tokens=64).findings(AcceptLow()) == []
    assert grave(fed(NOTHING, cached_tokens=0).findings(AcceptLow())) == ["accept.low_from_start"]


def test_requests_that_are_joined_late_are_left_out() -> None:
    stream = Stream().header()
    stream.gap(None, "joined_late")
    stream._steps["r0"] = 300
    for _ in range(60):
        stream.step(0)
    assert stream.findings(AcceptLow()) == []


def test_steps_behind_a_hole_are_left_out() -> None:
    stream = Stream().header()
    stream.request()
    for number in range(60):
        if number == 3:
            stream.gap(40)
            stream._steps["r0"] += 40
        stream.step(0)
    assert grave(stream.findings(AcceptLow())) == []


DECODE = (
    "[2026-09-21 14:10:36] Decode batch, #running-req: 1, #full token: 417, "
    "accept len: {}, accept rate: {}, gen throughput (token/s): 47.30"
)


def reports(*lengths: float, before: str = "", rate: float = 0.0) -> Stream:
    stream = Stream()
    if before:
        stream.log(before, pid=7)
    for length in lengths:
        stream.log(DECODE.format(length, rate), pid=7)
    return stream


def test_reports_of_the_log_are_enough() -> None:
    finding = only(reports(1.02, 1.02, 1.06, 1.0, 1.03).findings())
    assert (finding.id, finding.kind) == ("accept.low_from_start", "log")
    assert "1.03 on average over 5 reports" in finding.detail


@pytest.mark.parametrize("lengths", [(1.02, 1.02, 1.06, 1.0), (1.02, 1.02, 1.6, 1.0, 1.03, 1.0), (2.4,) * 9])
def test_few_or_better_reports_are_not(lengths: tuple[float, ...]) -> None:
    assert reports(*lengths).findings() == []


def test_the_rate_is_not_read_because_its_formula_changed() -> None:
    assert reports(*[2.17] * 9, rate=0.01).findings() == []


def test_a_restart_begins_a_new_count() -> None:
    stream = reports(1.0, 1.0, 1.0)
    stream.log("The server is fired up and ready to roll!", pid=7)
    for _ in range(3):
        stream.log(DECODE.format(1.0, 0), pid=7)
    assert stream.findings() == []


def test_simulated_acceptance_is_no_fault_of_the_drafter() -> None:
    findings = reports(*[1.0] * 8, before="env SGLANG_SIMULATE_ACC_LEN=1").findings()
    assert [(f.id, f.kind, f.severity) for f in findings] == [("config.requested_vs_effective", "simulated", "warning")]
    assert findings[0].consequences[0].startswith("accept.low_from_start")


@pytest.mark.parametrize(
    "setting", ["SGLANG_SIMULATE_ACC_LEN=-1", "SGLANG_SIMULATE_ACC_LEN=0", "SGLANG_SIMULATE_ACC_METHOD=x"]
)
def test_a_simulation_that_is_off_excuses_nothing(setting: str) -> None:
    assert only(reports(*[1.0] * 8, before=f"env {setting}").findings()).id == "accept.low_from_start"


def test_reports_of_cached_requests_are_left_out() -> None:
    stream = Stream()
    stream.log("Prefill batch, #new-seq: 1, #new-token: 20, #cached-token: 400, #running-req: 0", pid=7)
    for _ in range(9):
        stream.log(DECODE.format(1.0, 0), pid=7)
    assert stream.findings() == []


def test_simulated_acceptance_silences_the_curve_too() -> None:
    stream = Stream().header(simulate_acc_len=1.0)
    findings = stream.run(NOTHING).findings()
    assert grave(findings) == ["config.requested_vs_effective"]
    assert any(text.startswith("accept.curve") for text in findings[0].consequences)


# -- the test behind the words "beyond chance" -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "trials", "p"), [(0, 20, 0.3), (4, 54, 0.3), (7, 52, 0.35), (1, 2, 0.9), (300, 1200, 0.3)]
)
def test_the_binomial_tail_is_the_sum_it_should_be(hits: int, trials: int, p: float) -> None:
    from fractions import Fraction
    from math import comb

    chance = Fraction(p)
    exact = float(sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits + 1)))
    assert binomial_at_most(hits, trials, p) == pytest.approx(exact, rel=1e-6)


def test_the_binomial_tail_has_ends() -> None:
    assert binomial_at_most(0, 0, 0.3) == 1.0
    assert binomial_at_most(-1, 5, 0.3) == 0.0
    assert binomial_at_most(5, 5, 0.3) == 1.0
    assert binomial_at_most(1000, 2000, 0.3) == 1.0


def test_an_unobserved_detector_has_no_finding() -> None:
    assert list(AcceptCurve().findings()) == []
