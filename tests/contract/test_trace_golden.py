"""Files of format 1.0, and one of a later minor version, open for ever and mean what they meant when they were made.

The files are never regenerated. When a test here fails, the reader is wrong, not the file.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from ddscope.model import RECORD_TYPES, Gap, Log, Raw64, Stack, Step, Tensor, Tokens, text_bytes
from ddscope.trace import TraceFile, Unknown, decode, encode, json_schema, recover, stats, verify
from ddscope.trace.index import NONFINITE, NOT_OK, PRIORITY_SHIFT, SAMPLED, TRUNCATED, UNKNOWN_COUNT
from ddscope.trace.schemas import render
from tests.tracing import HOSTILE, index_all, sample_records

GOLDEN = Path(__file__).parent / "golden"
V10 = GOLDEN / "trace-1.0.jsonl"
V11 = GOLDEN / "trace-1.1-future.jsonl"
SHA256 = {
    V10: "e15ed944422e17936fa5a15e3e9d494d4cf0fb0c083616b71169171c372ace14",
    V11: "072c598c12f32bb473c4848c1326c4d60f076addefd422b5c0603302eaad490e",
}

KINDS = [
    "header", "fact", "tokens", "request", "tensor", "step", "log", "log", "log", "gap", "step", "probe", "probe",
    "gap", "stack", "control", "step", "mark", "finish", "footer",
]  # fmt: skip


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy, because a reader may put a sidecar beside it."""
    return Path(shutil.copy(V10, tmp_path))


@pytest.mark.parametrize("path", SHA256, ids=lambda path: path.name)
def test_the_files_themselves_never_change(path: Path) -> None:
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[path]


def test_the_golden_trace_indexes_to_exactly_these_values(golden: Path) -> None:
    with TraceFile(golden) as trace:
        index = index_all(trace).index
        assert index.n == 20 and index.end == 5526 == trace.size
        assert [index.kind_name(i) for i in range(20)] == KINDS
        assert index.sources == ["engine/0", "journal/server", "probe", "stack", "viewer"]
        assert list(index.src) == [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 2, 2, 1, 3, 0, 0, 4, 0, 4]
        assert list(index.seq) == [0, 1, 2, 3, 4, 5, 0, 1, 2, 9, 10, 0, 1, 3, 0, 11, 12, 0, 13, 1]
        assert index.rids == ["r1"]
        assert [i for i in range(20) if index.rid[i] == 0] == [3, 5, 10, 16, 18]
        assert list(index.t) == [1_790_000_000_000_000 + 1000 * i for i in range(1, 21)]
        assert list(index.mono) == [7_000_000 + 1000 * i for i in range(1, 21)]
        steps = index.by_kind["step"]
        assert list(steps) == [5, 10, 16] == list(index.steps_of["r1"])
        for column, values in (
            (index.step, [0, 1, 2]),
            (index.accepted, [2, 0, 1]),
            (index.emitted, [3, 1, 1]),
            (index.nodes, [3, 2, 1]),
            (index.total_us, [1035, 1035, 1035]),
            (index.flags, [0, 0, NONFINITE | TRUNCATED | SAMPLED]),
        ):
            assert [column[i] for i in steps] == values
        others = [i for i in range(20) if i not in steps]
        assert {index.step[i] for i in others} == {-1}
        assert [index.emitted[i] for i in others if index.emitted[i] != -1] == [6]
        assert {i: index.flags[i] for i in others if index.flags[i]} == {
            4: NOT_OK, 6: 4 << PRIORITY_SHIFT, 7: 7 << PRIORITY_SHIFT, 12: NOT_OK, 13: UNKNOWN_COUNT,
        }  # fmt: skip
        assert index.counters == {
            "engine/0": (14, 10, 4),
            "journal/server": (4, 4, 0),
            "probe": (2, 2, 0),
            "stack": (1, 1, 0),
            "viewer": (2, 2, 0),
        }
        assert list(index.offset[:6]) == [0, 395, 556, 802, 1004, 1207]


def test_the_golden_trace_decodes_to_exactly_these_records(golden: Path) -> None:
    with TraceFile(golden) as trace:
        index_all(trace)
        records = [trace.record(i) for i in range(20)]
    tokens, tensor, step, gap, stack = (records[i] for i in (2, 4, 5, 9, 14))
    assert isinstance(tokens, Tokens)
    assert dict(zip(tokens.ids, map(text_bytes, tokens.text), strict=True)) == {
        1: b"<s>", 2: HOSTILE.encode(), 10: b" the", 11: b"[/INST]", 12: b"\x1b[31m", 13: "é".encode(),
        14: b"\xff\xfe[/INST]\x00",
    }  # fmt: skip
    assert isinstance(tensor, Tensor) and (tensor.shape, tensor.expect, tensor.ok) == ([2, 8], [None, 40], False)
    assert isinstance(step, Step) and step.tree is not None and step.draft is not None
    assert step.tree.mask == ["1", "3", "5", "b"] and step.tree.positions == [2, 3, 3, 4]
    assert step.draft.logprobs == [[-0.25, -1.5], [-0.5, None]]
    assert isinstance(gap, Gap) and (gap.of, gap.count, gap.reason, gap.seq) == ("engine/0", 4, "ring_full", 9)
    assert isinstance(stack, Stack) and stack.threads[0].frames[1] == HOSTILE
    logs = [record for record in records if isinstance(record, Log)]
    assert [log.message for log in logs] == [HOSTILE, None, Raw64("//5bL0lOU1RdAA==")]
    unknown_count = records[13]
    assert isinstance(unknown_count, Gap) and unknown_count.count is None
    assert records[:-1] == sample_records()


def test_the_golden_trace_is_sound_and_is_written_the_same_way_today(golden: Path) -> None:
    report = verify(golden)
    assert (report.problems, report.notes, report.finished, report.records) == ([], [], True, 20)
    lines = golden.read_bytes().split(b"\n")[:-1]
    for line in lines:
        record = decode(line)
        assert not isinstance(record, Unknown)
        assert encode(record) == line + b"\n"
    assert {decode(line).type for line in lines} == set(RECORD_TYPES)
    # Three steps emitted 3, 1 and 1: the last one's bonus was cut off. The sixth token is the prefill's.
    assert (stats(golden).tau, stats(golden).emitted) == (5 / 3, 6)


def test_a_later_minor_version_opens_and_keeps_what_it_brought(tmp_path: Path) -> None:
    path = Path(shutil.copy(V11, tmp_path))
    with TraceFile(path) as trace:
        index = index_all(trace).index
        assert trace.header().version == "1.1"
        assert [index.kind_name(i) for i in range(index.n)] == [
            "header", "unknown", "tokens", "step", "unknown", "footer",
        ]  # fmt: skip
        assert (index.step[3], index.accepted[3], index.nodes[3]) == (0, 1, 3)
        later = trace.record(1)
        assert isinstance(later, Unknown) and later.type == "kv_cache"
        assert later.fields()["blocks"] == [[0, 1], [2, 3]]
        assert index.counters["engine/0"] == (5, 5, 0)
    report = verify(path)
    assert (report.problems, report.unknown) == ([], 2)
    recover(path, tmp_path / "copy.jsonl")
    assert (tmp_path / "copy.jsonl").read_bytes() == V11.read_bytes()
    (tmp_path / "torn.jsonl").write_bytes(V11.read_bytes()[:-50])
    recover(tmp_path / "torn.jsonl", tmp_path / "recovered.jsonl")
    body = V11.read_bytes()[: V11.read_bytes()[:-1].rfind(b"\n") + 1]
    assert (tmp_path / "recovered.jsonl").read_bytes().startswith(body)


def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_in_docs_is_the_one_of_the_code() -> None:
    docs = Path(__file__).parents[2] / "docs" / "trace-schema.json"
    assert docs.read_text(encoding="utf-8") == render(), "run: python -m ddscope.trace.schema"


def test_every_golden_line_of_a_known_type_fits_the_schema() -> None:
    check = validator()
    for path in (V10, V11):
        for line in path.read_bytes().split(b"\n")[:-1]:
            if not isinstance(decode(line), Unknown):
                check.validate(msgspec.json.decode(line))


@pytest.mark.parametrize(
    "change",
    [
        {"seq": -1}, {"seq": 2**53}, {"t": "now"}, {"src": None}, {"rid": 5}, {"step": 1.5}, {"type": "stepp"},
        {"tree": {"budget": 1}}, {"path": [0, "1"]}, {"time_domain": "moon"}, {"flags": {"nonfinite": [1]}},
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(change: dict[str, Any]) -> None:
    line = msgspec.json.decode(V10.read_bytes().split(b"\n")[5])
    check = validator()
    check.validate(line)
    changed = line | change
    assert not check.is_valid(changed)
    assert isinstance(decode(msgspec.json.encode(changed)), Unknown)


def test_the_schema_names_every_type_once() -> None:
    schema = json_schema()
    tags = [
        tag
        for reference in schema["oneOf"]
        for tag in schema["$defs"][reference["$ref"].rsplit("/", 1)[1]]["properties"]["type"]["enum"]
    ]
    assert sorted(tags) == sorted(RECORD_TYPES)
