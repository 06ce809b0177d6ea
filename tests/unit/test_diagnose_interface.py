"""The interface of the diagnosis: ranking, folding, gaps, a failing rule, files, JSON and text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from ddscope.diagnose import (
    SEVERITIES,
    Detector,
    Diagnosis,
    Evidence,
    Finding,
    RuledOut,
    diagnose,
    ranked,
    render_text,
    to_json,
)
from ddscope.diagnose.detectors import all_detectors
from ddscope.diagnose.relations import relate
from ddscope.model import Record, Step
from ddscope.trace import TraceError, TraceWriter, Unknown, decode
from tests.diagnosing import DEPTH_1_ONLY, NOTHING, Stream, ancestors, grave, mask_rows, only


def finding(id: str = "a.b", severity: str = "high", confidence: float = 0.5, **more: object) -> Finding:
    return Finding(id=id, severity=severity, confidence=confidence, title="t", **more)  # type: ignore[arg-type]


def test_graver_findings_come_first_then_surer_ones() -> None:
    order = [
        finding(severity="critical", confidence=0.1),
        finding(confidence=0.9),
        finding("b.a", confidence=0.5),
        finding("b.b", confidence=0.5),
        finding(severity="warning", confidence=1.0),
        finding(severity="info", confidence=1.0),
    ]
    assert ranked(reversed(order)) == order
    assert SEVERITIES == ("info", "warning", "high", "critical")


SHAPE = finding("shape.mismatch", kind="layers", evidence=(Evidence("engine/0", 3, 3, "a shape"),))
FLOOD = finding("output.token_flood", "warning", 0.7, kind="one_id", evidence=(Evidence("engine/0", 9, 9, "!"),))
STOPPED = finding("serve.alive_not_serving", "critical", 0.95, kind="generate")
OTHER = finding("skew.files", "high", 0.9)


def test_what_made_the_output_stands_before_what_the_server_ended_in() -> None:
    assert ranked([STOPPED, OTHER, FLOOD, SHAPE]) == [SHAPE, STOPPED, OTHER, FLOOD]
    folded = finding("nan.logits", "high", 0.4, kind="target", consequences=("output.token_flood: one id.",))
    assert ranked([STOPPED, OTHER, folded]) == [folded, STOPPED, OTHER]


@pytest.mark.parametrize(
    ("cause", "flood"),
    [
        (SHAPE.with_(evidence=(Evidence("engine/0", 10, 10, "after the flood"),)), FLOOD),
        (SHAPE.with_(evidence=(Evidence("engine/1", 3, 3, "another server's"),)), FLOOD),
        (SHAPE.with_(severity="warning"), FLOOD.with_(severity="info")),
        (SHAPE, FLOOD.with_(confidence=0.4)),  # the prompt asked for it
        (SHAPE.with_(id="nan.logits", kind="draft"), FLOOD),  # a draft changes no text
        (SHAPE.with_(id="accept.curve", kind="nothing"), FLOOD),
    ],
)
def test_a_fault_that_does_not_explain_the_output_keeps_its_place(cause: Finding, flood: Finding) -> None:
    assert ranked([cause, flood, STOPPED])[0] is STOPPED
    assert relate([cause, flood]) == ranked([cause, flood])  # and says nothing of it


def test_every_rule_has_an_id_of_its_own_and_says_what_it_wants() -> None:
    detectors = all_detectors()
    assert len({d.id for d in detectors}) == len(detectors)
    assert all(issubclass(kind, Record) for d in detectors for kind in d.wants)


def test_rules_of_two_diagnoses_share_nothing() -> None:
    def leaky(fields: dict[str, dict[str, object]]) -> None:
        parents = [0, 0, 0]
        fields["tree"] |= {"parents": parents, "tokens": [1, 2, 3], "positions": None}
        fields["tree"]["mask"] = mask_rows([[*ancestors(parents, n), 1, 2] for n in range(4)])
        fields["target"] = {"ids": [9] * 4}
        fields |= {"path": [0], "bonus": 9, "emitted": [9]}  # type: ignore[operator]

    bad = Stream().header().run([0] * 9, change=leaky)
    assert grave(bad.findings()) == ["tree.invalid"]
    assert Stream().header().findings() == []


def test_unknown_records_are_ignored() -> None:
    unknown = decode(b'{"type":"comet","src":"engine/0","seq":1,"t":1,"mono":1}')
    assert isinstance(unknown, Unknown)
    diagnosis = Diagnosis()
    diagnosis.observe(unknown, 0)
    diagnosis.observe(decode(b"no json at all"), 1)
    assert diagnosis.findings() == []


def test_findings_can_be_asked_for_at_any_moment_and_change_nothing() -> None:
    records = Stream().header().run(DEPTH_1_ONLY).records
    asked, silent = Diagnosis(), Diagnosis()
    for number, record in enumerate(records):
        asked.observe(record, number)
        asked.findings()
        silent.observe(record, number)
    assert asked.findings() == silent.findings() != []


def test_a_caller_cannot_change_what_is_known() -> None:
    diagnosis = Diagnosis()
    for record in Stream().header().run(NOTHING).records:
        diagnosis.observe(record)
    diagnosis.findings().clear()
    assert len(diagnosis.findings()) == 1


class Failing(Detector):
    id = "test.failing"
    wants = (Step,)
    calls = 0

    def observe(self, record: Record, index: int | None = None) -> None:
        self.calls += 1
        raise ZeroDivisionError("of its own making")

    def findings(self) -> Iterable[Finding]:
        yield finding("test.failing")


def test_a_rule_that_fails_is_switched_off_said_and_leaves_the_others_alone() -> None:
    failing = Failing()
    diagnosis = Diagnosis([failing, *all_detectors()])
    for number, record in enumerate(Stream().header().run(NOTHING).records):
        diagnosis.observe(record, number)
    findings = diagnosis.findings()
    assert grave(findings) == ["accept.curve"]
    note = next(f for f in findings if f.id == "diagnose.detector_failed")
    assert failing.calls == 1
    assert "test.failing" in note.title and "of its own making" in note.detail
    assert note.evidence[0].record == 2


def test_every_rule_and_every_kind_of_invalid_tree_is_described() -> None:
    from ddscope.diagnose.tree_invalid import WORDS

    page = (Path(__file__).parents[2] / "docs" / "detectors.md").read_text("utf-8")
    assert all(f"## `{detector.id}`" in page for detector in all_detectors())
    assert all(f"`{kind}`" in page or f"`.{kind.partition('.')[2]}`" in page for kind in WORDS)


# -- gaps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "words"), [(3, "3 records"), (None, "0 or more records")])
def test_lost_records_lower_the_confidence_and_are_said(count: int | None, words: str) -> None:
    whole = only(Stream().header().run(NOTHING).findings())
    stream = Stream().header()
    stream.request()
    for number, accepted in enumerate(NOTHING):
        if number == 30:
            stream.gap(count)
        stream.step(accepted)
    holed = only(stream.findings())
    assert holed.confidence == pytest.approx(0.9 * whole.confidence)
    assert words in holed.ruled_out[-1].why
    assert "ring_full" in holed.ruled_out[-1].why


def test_lost_records_of_another_source_change_nothing() -> None:
    stream = Stream().header().run(NOTHING)
    before = only(stream.findings())
    other = Stream("journal/serve")
    other.gap(5, "disconnected")
    stream.records += other.records
    assert stream.findings()[0] == before
    assert grave(stream.findings()[1:]) == ["logs.incomplete"]


# -- relations -------------------------------------------------------------------------------------------------------


def test_two_faults_with_evidence_of_their_own_both_stay() -> None:
    """A mask that leaks does not explain a mask token that differs."""
    stream = Stream().header()
    stream.drafter({"mask_token_id": 2})

    def leaky(fields: dict[str, dict[str, object]]) -> None:
        parents: list[int] = fields["tree"]["parents"]  # type: ignore[assignment]
        rows = [[*ancestors(parents, n), *([n + 1] if n % 2 else [])] for n in range(len(parents) + 1)]
        fields["tree"]["mask"] = mask_rows(rows)

    stream.run(DEPTH_1_ONLY, change=leaky)
    assert grave(stream.findings()) == ["tree.invalid", "accept.curve"]


def test_a_symptom_goes_to_the_gravest_cause_and_through_it() -> None:
    nan = finding("nan.logits", "critical", kind="target")
    curve = finding("accept.curve", "high", kind="nothing")
    low = finding("accept.low_from_start", "high", kind="steps")
    (only_one,) = relate([low, curve, nan])
    assert only_one.id == "nan.logits"
    assert sorted(text.split(":")[0] for text in only_one.consequences) == ["accept.curve", "accept.low_from_start"]


def test_an_info_explains_nothing() -> None:
    near = finding("verify.replay_mismatch", "info", kind="tree_rows")
    curve = finding("accept.curve", "high", kind="nothing")
    assert relate([near, curve]) == [curve, near]


# -- files -----------------------------------------------------------------------------------------------------------


def written(path: Path, stream: Stream) -> Path:
    writer = TraceWriter(path)
    for record in stream.records:
        writer.write(record)
    writer.close()
    return path


def test_a_file_gives_the_findings_of_its_records(tmp_path: Path) -> None:
    stream = Stream().header()
    stream.drafter({"mask_token_id": 2})
    stream.run(DEPTH_1_ONLY)
    assert diagnose(written(tmp_path / "t.jsonl", stream)) == stream.findings() != []


def test_evidence_of_a_file_numbers_its_records(tmp_path: Path) -> None:
    from ddscope.trace import TraceFile

    path = written(tmp_path / "t.jsonl", Stream().header().run(NOTHING))
    trace = TraceFile(path)
    while trace.poll():
        pass
    for evidence in diagnose(path)[0].evidence:
        assert evidence.record is not None
        record = trace.record(evidence.record)
        assert (record.src, record.seq) == (evidence.src, evidence.seq)


@pytest.mark.parametrize("content", [None, b"", b"no trace\n", b"{}\n"])
def test_what_is_no_trace_is_refused_in_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        diagnose(path)
    assert "\n" not in str(refused.value)


# -- JSON and text ---------------------------------------------------------------------------------------------------

FULL = Finding(
    id="verify.replay_mismatch",
    kind="root_row",
    severity="critical",
    confidence=0.951234,
    title="The cache is damaged.",
    detail="Largest difference 9.8.",
    evidence=(Evidence("engine/0", 12, 9, "step 4"), Evidence("journal/u", 3, None, "line")),
    next=("Check the commit.",),
    ruled_out=(RuledOut("the drafter", "it only proposes"),),
    rid="r0",
    consequences=("accept.curve: low",),
)


def test_json_has_everything_and_survives_a_round_trip() -> None:
    value = to_json(FULL)
    assert json.loads(json.dumps(value)) == value
    assert value == {
        "id": "verify.replay_mismatch",
        "kind": "root_row",
        "severity": "critical",
        "confidence": 0.951,
        "title": "The cache is damaged.",
        "detail": "Largest difference 9.8.",
        "rid": "r0",
        "evidence": [
            {"src": "engine/0", "seq": 12, "record": 9, "text": "step 4"},
            {"src": "journal/u", "seq": 3, "record": None, "text": "line"},
        ],
        "ruled_out": [{"what": "the drafter", "why": "it only proposes"}],
        "consequences": ["accept.curve: low"],
        "next": ["Check the commit."],
    }


def test_text_has_everything_in_reading_order() -> None:
    assert render_text([FULL]) == (
        "1. CRITICAL  verify.replay_mismatch (root_row)  confidence 95%  request r0\n"
        "   The cache is damaged.\n"
        "   Largest difference 9.8.\n"
        "   evidence\n"
        "     - engine/0 #12 (record 9): step 4\n"
        "     - journal/u #3: line\n"
        "   explains\n"
        "     - accept.curve: low\n"
        "   ruled out\n"
        "     - the drafter: it only proposes\n"
        "   next\n"
        "     - Check the commit.\n"
    )


def test_no_findings_is_said() -> None:
    assert render_text([]) == "No findings.\n"


@pytest.mark.parametrize("width", [40, 80, 100])
def test_text_is_wrapped(width: int) -> None:
    long = FULL.with_(title="word " * 60, detail="x" * 300)
    assert max(len(line) for line in render_text([long], width).splitlines()) <= max(width, 78)


def test_foreign_text_cannot_steer_the_terminal() -> None:
    hostile = FULL.with_(
        title="\x1b[2J[/INST]\r\x07", rid="r\x1b[31m", evidence=(Evidence("e\n", 1, 1, "\x9b1m\udcff"),)
    )
    text = render_text([hostile])
    assert all(c == "\n" or c.isprintable() for c in text)
    assert "⟨1b⟩[2J[/INST]⟨0d⟩⟨07⟩" in text
