"""Sound runs of every sort have no finding above info."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosing import HARD, HEALTHY, Stream, grave


def sound(accepted: list[int], **request: Any) -> Stream:
    stream = Stream().header()
    stream.drafter()
    return stream.run(accepted, **request)


def plain(fields: dict[str, Any]) -> None:
    """Plain decoding: a tree of no nodes."""
    fields["algorithm"] = "autoregressive"
    fields["tree"] = {"budget": 0, "tokens": [], "parents": [], "positions": [fields["base"]], "mask": ["1"]}
    fields["target"] = {"ids": fields["target"]["ids"][:1], "logprobs": [-0.5], "gap": [1.5]}


@pytest.mark.parametrize("accepted", [HEALTHY, HARD], ids=["healthy", "hard text"])
def test_a_sound_tree_run_has_no_finding(accepted: list[int]) -> None:
    assert grave(sound(accepted).findings()) == []


def test_a_healthy_curve_is_not_even_worth_an_info() -> None:
    assert sound(HEALTHY).findings() == []


@pytest.mark.parametrize("steps", range(6))
def test_runs_of_a_few_unlucky_steps_have_no_finding(steps: int) -> None:
    assert grave(sound([0] * steps).findings()) == []


def test_fifteen_unlucky_steps_on_hard_text_are_no_more_than_an_info() -> None:
    findings = sound([0] * 15).findings()
    assert grave(findings) == []
    assert [f.id for f in findings] == ["accept.low_from_start"]


def test_plain_decoding_drafts_nothing_and_so_accepts_nothing_wrongly() -> None:
    stream = Stream().header()
    stream.drafter()
    stream.run([0] * 80, change=plain)
    assert stream.findings() == []


def test_a_sound_chain_has_no_finding() -> None:
    def chain(fields: dict[str, Any]) -> None:
        count = len(fields["path"]) - 1
        tokens = [9000 + fields["step"] * 16 + i for i in range(15)]
        fields["algorithm"] = "dflash"
        fields["tree"] = {
            "budget": 15,
            "tokens": tokens,
            "parents": list(range(15)),
            "positions": [fields["base"] + i for i in range(16)],
            "mask": [format((1 << (i + 1)) - 1, "x") for i in range(16)],
        }
        choices = [*tokens[:count], *(500 + i for i in range(16 - count))]
        fields["target"] = {"ids": choices}
        fields["path"] = list(range(count + 1))
        fields["bonus"] = choices[count]
        fields["emitted"] = [*tokens[:count], choices[count]]

    stream = Stream().header()
    stream.drafter()
    stream.run(HEALTHY, change=chain)
    assert stream.findings() == []


def test_sampled_steps_may_depart_from_the_likeliest_token() -> None:
    def sampled(fields: dict[str, Any]) -> None:
        fields["flags"] = {"sampled": True}
        fields["target"]["ids"] = [7] * len(fields["target"]["ids"])

    stream = Stream().header()
    stream.drafter()
    stream.run(HEALTHY, temperature=1.0, change=sampled)
    assert stream.findings() == []


def test_a_request_that_ends_in_its_prefill_has_no_finding() -> None:
    stream = Stream().header()
    stream.drafter()
    stream.request()
    stream.finish()
    assert stream.findings() == []


def test_an_end_of_text_inside_the_tree_cuts_what_is_emitted() -> None:
    def stop(fields: dict[str, Any]) -> None:
        if fields["step"] == 3:
            fields["emitted"] = fields["emitted"][:1]
            fields["flags"] = {"sampled": False, "truncated": True}

    stream = Stream().header()
    stream.run([2, 3, 1, 4], change=stop)
    assert stream.findings() == []


def test_passing_replay_checks_are_no_finding() -> None:
    stream = Stream().header()
    stream.request()
    for number in range(8):
        stream.replay(6e-5, 7e-5, number)
        stream.step(2)
    assert stream.findings() == []


def test_no_rule_reads_the_fault_fact() -> None:
    stream = Stream().header()
    stream.drafter()
    stream.fact("fault", {"name": "nan-norm", "what": "one weight of the target's final norm is NaN"})
    stream.run(HEALTHY)
    assert stream.findings() == []


def test_an_empty_trace_has_no_finding() -> None:
    assert Stream().findings() == []
