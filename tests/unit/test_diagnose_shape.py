"""`shape.mismatch`: two widths, and what they mean."""

from __future__ import annotations

import pytest

from ddscope.diagnose import Finding
from ddscope.diagnose.shape_messages import Widths, parse
from ddscope.diagnose.shape_words import explain
from ddscope.model import FORMAT, Header, Producer, Raw64
from tests.diagnosing import HEALTHY, HIDDEN, Stream, grave, only

MATMUL = "mat1 and mat2 shapes cannot be multiplied (60x576 and 2880x576)"
FEATURE = (
    "ValueError: DFLASH target_hidden feature dim mismatch. Expected shape [N, 128] for the draft layers, "
    "but got shape=(30, 64)."
)
FC_WEIGHT = (
    "DFLASH fc.weight shape mismatch. This usually means the draft checkpoint does not fit. Expected "
    "fc.weight.shape=(576, 576) (num_context_features=1, hidden_size=576), but got (576, 2880)"
)
ALL_LAYERS = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (112x151552 and 12288x4096)"
PACKED = "The size of tensor a (2048) must match the size of tensor b (4096) at non-singleton dimension 1"
CAT = "RuntimeError: Sizes of tensors must match. Expected size 4096 but got size 2048 for tensor number 1 in the list"
STATE_DICT = (
    "size mismatch for fc.weight: copying a param with shape torch.Size([576, 2880]) from checkpoint, "
    "the shape in current model is torch.Size([576, 576])."
)


@pytest.mark.parametrize(
    ("message", "given", "expected", "by"),
    [
        (MATMUL, 576, 2880, "inputs"),
        (FEATURE, 64, 128, "inputs"),
        ("draft.target_hidden has shape [60, 576] where [any, 2880] is expected: 1 arrived", 576, 2880, "inputs"),
        (FC_WEIGHT, 2880, 576, "weights"),
        (STATE_DICT, 2880, 576, "weights"),
        (ALL_LAYERS, 151_552, 12_288, "inputs"),
        (PACKED, 2048, 4096, "other"),
        (CAT, 2048, 4096, "other"),
    ],
)
def test_the_words_of_frameworks_are_read(message: str, given: int, expected: int, by: str) -> None:
    widths = parse(f"[2026-09-21 14:10:00 TP0] Scheduler hit an exception: {message}\n")
    assert widths is not None
    assert (widths.given, widths.expected, widths.by) == (given, expected, by)


@pytest.mark.parametrize(
    "message",
    [
        "Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16",
        "shape mismatch",
        "the two shapes cannot be multiplied (1x and 2)",
        "mat1 and mat2 shapes cannot be multiplied (60x576 and 576x576)",
        "size mismatch for a: copying a param with shape torch.Size([2]) from checkpoint, the shape in current model "
        "is torch.Size([2, 2])",
        "",
    ],
)
def test_other_lines_say_nothing(message: str) -> None:
    assert parse(message) is None


def test_one_layer_where_five_are_expected() -> None:
    stream = Stream().header()
    stream.drafter()
    stream.request()
    stream.tensor("draft.target_hidden", [60, 576], [None, 2880], False)
    stream.fact("engine.error", {"rid": "r0", "step": 0, "where": "drafter", "message": MATMUL})
    stream.finish(reason="error")
    finding = only(stream.findings())
    assert (finding.id, finding.kind, finding.severity) == ("shape.mismatch", "layers", "critical")
    assert finding.title == (
        "2,880 = 5 × 576 expected, 576 given: one layer given, five expected: hidden states are not captured for this "
        "algorithm."
    )
    assert finding.rid == "r0"
    assert [e.record for e in finding.evidence] == [5, 6]
    assert "names 5 target layers" in finding.detail
    assert any("ratio is 5" in r.why for r in finding.ruled_out)


def from_log(message: str, **header: int | None) -> Finding:
    stream = Stream().header(**header)
    stream.log(message)
    return only(stream.findings())


def test_widths_of_the_journal_mean_the_same() -> None:
    assert "one layer given, five expected" in from_log(MATMUL).title


def test_all_layers_instead_of_three() -> None:
    title = from_log(ALL_LAYERS, hidden=4096).title
    assert "12,288 = 3 × 4,096 expected, 151,552 = 37 × 4,096 given: 37 layers given, three expected" in title


def test_the_hidden_size_of_the_target_decides_between_layers_and_packing() -> None:
    assert "one layer given, two expected" in from_log(FEATURE, hidden=64).title
    assert "2 × 64" in from_log(FEATURE, hidden=None).title


def test_a_checkpoint_made_for_more_layers_than_the_server_gives() -> None:
    for message in (FC_WEIGHT, STATE_DICT):
        finding = from_log(message)
        assert finding.kind == "checkpoint"
        assert "the drafter is made for five layers, the server gives it one layer" in finding.title


def test_exactly_twice_is_packing() -> None:
    finding = from_log(PACKED)
    assert finding.kind == "packed"
    assert "4,096 is exactly 2 × 2,048" in finding.title


def test_packing_needs_no_guess_where_the_dtype_says_so() -> None:
    stream = Stream().header(hidden=2048)
    stream.tensor("draft.w13", [10, 2048], [None, 4096], False, dtype="uint8")
    assert only(stream.findings()).kind == "packed"


def test_any_other_pair_is_just_two_numbers() -> None:
    finding = from_log("mat1 and mat2 shapes cannot be multiplied (3x7 and 11x5)")
    assert finding.kind == "size"
    assert "Width 11 expected, 7 given" in finding.title


def test_the_same_widths_are_one_finding_wherever_they_were_seen() -> None:
    stream = Stream().header()
    for number in range(30):
        stream.tensor("draft.target_hidden", [60 + number, 576], [None, 2880], False)
        stream.log(f"worker {number}: {MATMUL}")
    assert len(only(stream.findings()).evidence) == 8


def test_different_widths_are_different_findings() -> None:
    stream = Stream().header()
    stream.log(MATMUL)
    stream.log(PACKED)
    assert len(grave(stream.findings())) == 2


def test_a_tensor_that_fits_is_no_finding() -> None:
    stream = Stream().header()
    stream.tensor("draft.target_hidden", [60, 2880], [None, 2880], True)
    stream.tensor("a", [3], None, None)
    stream.tensor("b", [3, 4], [None, 4], None)
    assert stream.findings() == []


def test_a_tensor_without_a_verdict_is_judged_by_what_is_expected() -> None:
    stream = Stream().header()
    stream.tensor("draft.target_hidden", [60, 576], [None, 2880], None)
    assert only(stream.findings()).severity == "high"


def test_a_tensor_that_its_source_calls_right_is_a_warning() -> None:
    stream = Stream().header()
    stream.tensor("draft.target_hidden", [60, 576], [None, 2880], True)
    finding = only(stream.findings())
    assert (finding.severity, finding.confidence) == ("warning", 0.5)


@pytest.mark.parametrize("expect", [None, [2, 3, 4]])
def test_a_tensor_that_is_marked_needs_no_explanation(expect: list[int | None] | None) -> None:
    stream = Stream().header()
    stream.tensor("x", [2, 3], expect, False)
    assert only(stream.findings()).title == "x is marked as not fitting."


def test_a_tensor_that_was_mended_stays_in_the_history() -> None:
    stream = Stream().header()
    stream.tensor("draft.target_hidden", [60, 576], [None, 2880], False)
    stream.tensor("draft.target_hidden", [60, 2880], [None, 2880], True)
    assert "A later record of the same tensor fits." in only(stream.findings()).detail


def test_it_explains_the_low_acceptance_of_a_server_that_goes_on() -> None:
    stream = Stream().header()
    stream.tensor("draft.target_hidden", [60, 576], [None, 2880], False)
    stream.run([0] * 60)
    finding = only(stream.findings())
    assert finding.id == "shape.mismatch"
    assert any(text.startswith("accept.curve") for text in finding.consequences)


def test_messages_that_are_no_text_are_read_as_far_as_they_are() -> None:
    import base64

    stream = Stream().header()
    stream.log(Raw64(base64.b64encode(b"\xff\xfe " + MATMUL.encode()).decode()))  # type: ignore[arg-type]
    assert only(stream.findings()).id == "shape.mismatch"
    stream.log(None)  # type: ignore[arg-type]


def test_a_sound_run_after_an_unrelated_line_is_sound() -> None:
    stream = Stream().header()
    stream.log("INFO: shapes captured: 2880x576")
    assert stream.run(HEALTHY).findings() == []


def test_hidden_sizes_that_are_no_numbers_of_layers_are_not_forced_into_one() -> None:
    meaning = explain(Widths(2880, 577, "x"), HIDDEN, 5)
    assert meaning.kind == "size"
    assert explain(Widths(0, 2880, "x"), HIDDEN, 5).kind == "size"


def test_a_header_that_knows_of_no_model_takes_no_words_away() -> None:
    stream = Stream().header(hidden=5120)
    stream.tensor("draft.target_hidden", [12, 5120], [None, 25_600], False)
    doctor = Producer("ddscope doctor", "1")
    stream.add(Header, src="doctor", format=FORMAT, version="1.0", min_reader="1.0", producer=doctor, host="ct129")
    assert "one layer given, five expected" in only(stream.findings()).title
