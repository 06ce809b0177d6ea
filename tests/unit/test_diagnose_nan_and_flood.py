"""`nan.logits` and `output.token_flood`: what makes the `!`, and what only looks like it."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from ddscope.model import Raw64, Step, Tokens
from tests.diagnosing import HEALTHY, VOCAB, Stream, grave, only

Fields = dict[str, Any]


def nan(fields: Fields) -> None:
    """A step whose target rows are all NaN: the argmax is id 0."""
    rows = len(fields["tree"]["parents"]) + 1
    fields["target"] = {"ids": [0] * rows, "logprobs": [None] * rows, "gap": [None] * rows}
    fields["flags"] = {"sampled": False, "nonfinite": {"target": rows * VOCAB}}
    fields |= {"root": 0, "path": [0], "bonus": 0, "emitted": [0]}


def plain(fields: Fields) -> None:
    nan(fields)
    fields["tree"] = {"budget": 0, "tokens": [], "parents": []}
    fields["target"] = {"ids": [0], "logprobs": [None]}
    fields["flags"] = {"sampled": False, "nonfinite": {"target": VOCAB}}


def flood(token: int = 0, accepted: int = 0) -> Any:
    def change(fields: Fields) -> None:
        count = accepted + 1
        fields["root"] = token
        fields["emitted"] = [token] * count
        fields["bonus"] = token
        fields["path"] = fields["path"][:count]
        for node in fields["path"][1:]:  # a drafter that sees the repetition coming
            fields["tree"]["tokens"][node - 1] = token
        rows = len(fields["tree"]["parents"]) + 1
        fields["target"]["ids"] = [token if node in fields["path"] else 30 for node in range(rows)]

    return change


# -- nan.logits ------------------------------------------------------------------------------------------------------


def test_nan_of_the_target_is_one_finding_that_explains_flood_and_acceptance() -> None:
    stream = Stream().header()
    stream.drafter()
    for rid in ("r0", "r1", "r2", "r3"):
        stream.run([0] * 47, rid, change=nan)
    finding = only(stream.findings())
    assert (finding.id, finding.kind, finding.severity) == ("nan.logits", "target", "critical")
    assert finding.confidence > 0.9
    assert "188 of 188 steps" in finding.detail
    assert {text.split(":")[0] for text in finding.consequences} == {
        "output.token_flood",
        "accept.curve",
        "accept.low_from_start",
    }
    assert "every logit of 11 rows" in finding.evidence[0].text
    assert any(r.what == "the drafter" for r in finding.ruled_out)


def test_nan_in_plain_decoding_rules_speculation_out() -> None:
    stream = Stream().header()
    stream.run([0] * 30, change=plain)
    finding = only(stream.findings())
    assert finding.id == "nan.logits"
    assert any(r.what == "speculation" and "30 steps" in r.why for r in finding.ruled_out)


def test_nan_is_found_in_a_single_step() -> None:
    stream = Stream().header()
    stream.run([0], change=nan)
    assert only(stream.findings()).id == "nan.logits"


def test_nan_is_found_where_the_source_counts_nothing() -> None:
    def uncounted(fields: Fields) -> None:
        nan(fields)
        fields["flags"] = None

    stream = Stream().header()
    stream.run([0] * 3, change=uncounted)
    assert only(stream.findings()).id == "nan.logits"


def test_nan_that_sets_in_late_explains_the_flood_that_follows() -> None:
    def late(fields: Fields) -> None:
        if fields["step"] >= 200:
            nan(fields)

    stream = Stream().header()
    stream.run([2, 1, 3, 0] * 50 + [0] * 80, change=late)
    finding = only(stream.findings())
    assert (finding.id, finding.kind) == ("nan.logits", "target.sporadic")
    assert [text.split(":")[0] for text in finding.consequences] == ["output.token_flood"]


def test_a_moment_of_nan_does_not_explain_the_rest_of_the_run() -> None:
    def once(fields: Fields) -> None:
        if fields["step"] == 30:
            nan(fields)

    stream = Stream().header()
    stream.run([0] * 60, change=once)
    findings = stream.findings()
    assert [(f.id, f.kind) for f in findings if f.severity != "info"] == [
        ("nan.logits", "target.sporadic"),
        ("accept.curve", "nothing"),
    ]


def test_forbidden_tokens_are_no_more_than_an_info() -> None:
    """A grammar sets logits to −inf; the log-probability of what is chosen stays finite."""

    def masked(fields: Fields) -> None:
        fields["flags"] = {"sampled": False, "nonfinite": {"target": 40_000}}

    stream = Stream().header()
    stream.run(HEALTHY, change=masked)
    findings = stream.findings()
    assert grave(findings) == []
    assert [f.kind for f in findings] == ["target.masked"]


def test_a_reduced_draft_head_is_no_finding() -> None:
    """Its logits are −inf outside its vocabulary, in every row, and finite where it chooses."""

    def reduced(fields: Fields) -> None:
        fields["draft"] = {"k": 2, "ids": [[1, 2]], "logprobs": [[-0.1, -2.0]], "logz": [3.0], "entropy": [1.0]}
        fields["flags"] = {"sampled": False, "nonfinite": {"draft": 45_353}}

    stream = Stream().header()
    stream.run(HEALTHY, change=reduced)
    assert stream.findings() == []


def test_nan_of_the_drafter_costs_speed_and_explains_the_acceptance() -> None:
    def nan_draft(fields: Fields) -> None:
        fields["draft"] = {"k": 1, "ids": [[0]], "logprobs": [[None]], "logz": [None]}
        fields["flags"] = {"sampled": False, "nonfinite": {"draft": VOCAB}}

    stream = Stream().header()
    stream.run([0] * 60, change=nan_draft)
    finding = only(stream.findings())
    assert (finding.id, finding.kind, finding.severity) == ("nan.logits", "draft", "high")
    assert any(r.what == "the target" for r in finding.ruled_out)
    assert any(text.startswith("accept.curve") for text in finding.consequences)


@pytest.mark.parametrize("place", ["target", "draft"])
def test_a_flat_distribution_is_nan_that_was_papered_over(place: str) -> None:
    def flat(fields: Fields) -> None:
        rows = len(fields["target"]["ids"])
        if place == "target":
            fields["target"] |= {"logprobs": [-log(VOCAB)] * rows, "gap": [0.0] * rows}
        else:
            fields["draft"] = {
                "k": 1,
                "ids": [[0]],
                "logprobs": [[-log(VOCAB)]],
                "entropy": [log(VOCAB)],
                "logz": [1.0],
            }

    stream = Stream().header()
    stream.run([1, 2, 0] * 6, change=flat)
    finding = only(stream.findings())
    assert (finding.id, finding.kind) == ("nan.logits", f"{place}.flat")
    assert "10.803" in finding.detail


def test_sharp_and_flat_steps_mixed_are_no_flat_distribution() -> None:
    def sometimes(fields: Fields) -> None:
        if fields["step"] % 2:
            fields["target"] |= {"logprobs": [-log(VOCAB)] * 11, "gap": [0.0] * 11}

    stream = Stream().header()
    stream.run(HEALTHY, change=sometimes)
    assert grave(stream.findings()) == []


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "Detected errors during sampling! NaN in the logits.",
        "invalid eagle tree!!! Detected a token with no parent token selected. Please check if the logprob has nan.",
    ],
)
def test_a_log_line_alone_is_a_warning_because_warm_up_prints_it_too(line: str) -> None:
    stream = Stream()
    stream.log(line)
    finding = only(stream.findings())
    assert (finding.id, finding.kind, finding.severity) == ("nan.logits", "log", "warning")
    assert "warm-up" in finding.detail


def test_a_log_line_of_a_server_that_is_ready_is_no_warm_up() -> None:
    stream = Stream()
    stream.log("The server is fired up and ready to roll!")
    stream.log("Detected errors during sampling! NaN in the logits.")
    finding = only(stream.findings())
    assert (finding.kind, finding.severity) == ("log", "high")
    assert [r.what for r in finding.ruled_out] == ["warm-up"]


def test_log_lines_are_evidence_where_steps_show_it() -> None:
    stream = Stream().header()
    stream.log("Please check if the logprob has nan.")
    stream.run([0] * 3, change=nan)
    finding = only(stream.findings())
    assert finding.kind == "target"
    assert any(e.src == "journal/serve" for e in finding.evidence)


# -- output.token_flood ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, 17, 49_151])
def test_a_flood_of_any_id_is_found(token: int) -> None:
    stream = Stream().header()
    stream.run([0] * 80, change=flood(token))
    finding = next(f for f in stream.findings() if f.id == "output.token_flood")
    assert (finding.kind, finding.severity) == ("one_id", "high")
    assert f"id {token}" in finding.title
    assert any(r.what == "the drafter" for r in finding.ruled_out)


def test_eight_tokens_from_the_first_one_on_are_a_flood() -> None:
    """`!!!!!!!!` at 8 tokens: one root, seven steps."""
    stream = Stream().header()
    stream.tokens({0: "!"})
    stream.run([0] * 7, change=flood(0))
    finding = only(stream.findings())
    assert (finding.id, finding.severity) == ("output.token_flood", "high")
    assert "id 0 ('!')" in finding.title
    assert "Unbroken from the first token on." in finding.detail


def test_seven_tokens_are_not_yet_a_flood() -> None:
    stream = Stream().header()
    stream.run([0] * 6, change=flood(0))
    assert grave(stream.findings()) == []


def test_a_rule_of_a_table_that_ends_is_no_flood() -> None:
    def rule(fields: Fields) -> None:
        if fields["step"] < 20:
            flood(61, accepted=1)(fields)

    stream = Stream().header()
    stream.run([1] * 20 + HEALTHY, change=rule)
    assert grave(stream.findings()) == []


def test_a_ruled_table_is_no_flood() -> None:
    """The rule token fills 60 % of a window."""

    def table(fields: Fields) -> None:
        token = 61 if fields["step"] % 5 < 3 else 100 + fields["step"]
        flood(token, accepted=1)(fields)
        fields["root"] = 99

    stream = Stream().header()
    stream.run([1] * 120, change=table)
    assert [f for f in stream.findings() if f.id == "output.token_flood"] == []


def test_a_repetition_that_the_drafter_sees_coming_is_a_warning() -> None:
    stream = Stream().header()
    stream.tokens({61: " ha"})
    stream.run([3] * 40, change=flood(61, accepted=3))
    finding = only(stream.findings())
    assert (finding.id, finding.severity) == ("output.token_flood", "warning")


def test_a_repetition_that_the_prompt_shows_is_less_sure() -> None:
    def confidence(prompt_ids: list[int] | None) -> float:
        stream = Stream().header()
        stream.run([3] * 40, change=flood(61, accepted=3), prompt_ids=prompt_ids)
        return only(stream.findings()).confidence

    assert confidence([5, 61, 61, 61, 61]) < confidence([5, 61]) == confidence(None)


def test_special_tokens_are_never_asked_for() -> None:
    stream = Stream().header()
    stream.tokens({3: "<|reserved_special_token_247|>"})
    stream.run([3] * 40, change=flood(3, accepted=3))
    assert only(stream.findings()).severity == "high"


def test_a_flood_after_sound_text_is_found_by_the_window() -> None:
    def late(fields: Fields) -> None:
        if fields["step"] >= 30:
            flood(9)(fields)

    stream = Stream().header()
    stream.run([2] * 30 + [0] * 100, change=late)
    finding = next(f for f in stream.findings() if f.id == "output.token_flood")
    assert "Unbroken" not in finding.detail


def test_a_hole_in_the_steps_breaks_the_run_and_the_window() -> None:
    """Fourteen tokens seen, seven on each side of a hole: nobody knows what was in between."""
    stream = Stream().header()
    stream.request()
    for number in range(13):
        if number == 6:
            stream.gap(5)
            stream._steps["r0"] += 5
            stream._base["r0"] += 9
        stream.step(0, change=flood(0))
    assert [f.id for f in stream.findings() if f.id == "output.token_flood"] == []


def test_steps_seen_from_the_middle_do_not_count_as_the_start() -> None:
    stream = Stream().header()
    stream._steps["r0"] = 40
    for _ in range(9):
        stream.step(0, change=flood(0))
    assert [f.id for f in stream.findings() if f.id == "output.token_flood"] == []


@pytest.mark.parametrize("token", [VOCAB, 248_319, -1])
def test_ids_outside_the_vocabulary_are_found_at_once(token: int) -> None:
    def outside(fields: Fields) -> None:
        fields["emitted"] = [token]
        fields["bonus"] = token
        fields["path"] = [0]
        fields["target"]["ids"][0] = token

    stream = Stream().header()
    stream.run([0], change=outside)
    finding = only(stream.findings())
    assert finding.kind == "outside_vocabulary"
    assert f"{token}" in finding.title


def test_the_last_row_of_the_vocabulary_is_inside() -> None:
    stream = Stream().header()
    stream.run([0] * 4, change=flood(VOCAB - 1))
    assert stream.findings() == []


def test_different_tokens_that_all_print_as_nothing_are_found() -> None:
    stream = Stream().header()
    stream.tokens(dict.fromkeys(range(100, 130), ""))

    def silent(fields: Fields) -> None:
        flood(100 + fields["step"])(fields)

    stream.run([0] * 28, change=silent)
    finding = next(f for f in stream.findings() if f.id == "output.token_flood")
    assert finding.kind == "empty_text"


def test_tokens_whose_text_was_never_told_are_not_silent() -> None:
    stream = Stream().header()

    def unknown(fields: Fields) -> None:
        flood(100 + fields["step"])(fields)

    stream.run([0] * 28, change=unknown)
    assert "output.token_flood" not in [f.id for f in stream.findings()]


def test_bytes_that_are_no_text_are_not_nothing() -> None:
    stream = Stream().header()
    stream.add(Tokens, ids=[5], text=[Raw64("/w==")])
    stream.run([0] * 9, change=flood(5))
    assert "�" in next(f for f in stream.findings() if f.id == "output.token_flood").title


def test_many_requests_with_one_flood_are_one_finding() -> None:
    stream = Stream().header()
    for number in range(40):
        stream.run([0] * 9, f"r{number}", change=flood(0))
    floods = [f for f in stream.findings() if f.id == "output.token_flood"]
    assert len(floods) == 1
    assert floods[0].rid is None
    assert "40 requests" in floods[0].detail
    assert "Several requests show the same id." in floods[0].detail


def test_interleaved_requests_are_told_apart() -> None:
    stream = Stream().header()
    stream.request("a")
    stream.request("b")
    for number in range(20):
        stream.step(0, "a", change=flood(4))
        stream.step(0, "b", change=flood(100 + number))
    finding = next(f for f in stream.findings() if f.id == "output.token_flood")
    assert finding.rid == "a"
    steps = [r for r in stream.records if isinstance(r, Step) and r.rid == "a"]
    assert finding.evidence[0].seq in {r.seq for r in steps}
