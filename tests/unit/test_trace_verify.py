"""verify: every broken invariant is named, with its place, and none stops the search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Finish, Flags, Gap, Log, Record, Request, Tokens
from ddscope.trace import NewerFormatError, Report, TraceError, TraceWriter, encode, verify
from tests.tracing import Clock, header, step, write_sample

Fields = dict[str, Any]


def healthy() -> list[Record]:
    """One request without any loss, so that nothing is excused."""
    clock = Clock()
    return [
        header(clock),
        Tokens(**clock(), ids=[1, 2, 10, 11, 12, 13, 14], text=list("abcdefg")),
        Request(**clock(), rid="r1", prompt_len=2, prompt_ids=[1, 2]),
        step(clock, 0, base=2, root=10, path=[0, 1, 3], bonus=14),
        step(clock, 1, base=5, root=14, parents=[0, 1], tokens=[11, 12], path=[0], bonus=13),
        step(
            clock, 2, base=6, root=13, parents=[0], tokens=[11], path=[0, 1], emitted=[11], flags=Flags(truncated=True)
        ),
        Finish(**clock(), rid="r1", reason="length", emitted=6, steps=3),
    ]


def check(tmp_path: Path, lines: list[bytes], footer: bool = True) -> Report:
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write_lines(b"".join(lines))
        writer.close(footer=footer)
    return verify(path)


def mutated(tmp_path: Path, number: int, change: Callable[[Fields], object]) -> list[str]:
    """Texts of the problems after one record was changed; the place must be that record's unless said otherwise."""
    lines = [encode(record) for record in healthy()]
    fields = json.loads(lines[number])
    change(fields)
    lines[number] = json.dumps(fields).encode() + b"\n"
    report = check(tmp_path, lines)
    offsets = [sum(map(len, lines[:i])) for i in range(len(lines))]
    for problem in report.problems:
        if problem.record is not None and problem.record < len(offsets):
            assert problem.offset == offsets[problem.record]
    return [problem.text for problem in report.problems]


def test_healthy_traces_have_no_problems(tmp_path: Path) -> None:
    report = check(tmp_path, [encode(record) for record in healthy()])
    assert (report.problems, report.notes, report.ok, report.finished) == ([], [], True, True)
    assert report.records == 8
    path = tmp_path / "sample.jsonl"
    write_sample(path)
    assert verify(path).problems == []


def in_tree(name: str, value: Any) -> Callable[[Fields], object]:
    return lambda fields: fields["tree"].update({name: value})


def in_draft(name: str, value: Any) -> Callable[[Fields], object]:
    return lambda fields: fields["draft"].update({name: value})


def in_target(name: str, value: Any) -> Callable[[Fields], object]:
    return lambda fields: fields["target"].update({name: value})


def put(**values: Any) -> Callable[[Fields], object]:
    return lambda fields: fields.update(values)


# Step 0 (record 3) has nodes 1 and 2 below the root and node 3 below node 1: parents 0 0 1, tokens 11 12 13, base 2.
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (in_tree("parents", [0, 2, 1]), "parent that does not come before its child: node 2 has parent 2"),
        (in_tree("parents", [0, -1, 1]), "parent that does not come before its child: node 2 has parent -1"),
        (in_tree("tokens", [11, 11, 13]), "tree has siblings of the same token: node 2 repeats token 11"),
        (in_tree("tokens", [11, 12]), "tree has 2 tokens but 3 parents"),
        (in_tree("logprobs", [-1.0]), "tree has 1 logprobs for 3 nodes"),
        (in_tree("budget", 2), "tree has 3 nodes over its budget of 2"),
        (in_tree("positions", [2, 3, 4, 5]), "at 2 of 4 nodes: node 2 at depth 1 has position 4, not 3"),
        (in_tree("positions", [2, 3, 3]), "tree has 3 positions, where 3 nodes and the root need 4"),
        (in_tree("mask", ["1", "3", "5", "f"]), "closure at 1 of 4 rows: node 3 sees node 2, which is no ancestor"),
        (in_tree("mask", ["1", "3", "5", "9"]), "node 3 does not see its ancestor 1"),
        (in_tree("mask", ["1", "3", "5", "0b"]), None),
        (in_tree("mask", ["1", "3", "5", "-b"]), "mask row 3 is no hexadecimal number"),
        (in_tree("mask", ["1", "3", "5", "0x_b"]), "mask row 3 is no hexadecimal number"),
        (in_tree("mask", ["1"]), "tree has 1 mask rows, where 3 nodes and the root need 4"),
        (in_draft("ids", [[11, 12]]), "draft has 2 rows of logprobs for 1 depths"),
        (in_draft("ids", [[11], [13, 11]]), "draft has 1 ids at depth 1, where k is 2"),
        (in_draft("logz", [1.0]), "draft has 1 values of logz for 2 depths"),
        (in_draft("logprobs", [[-0.25, -1.5], [-0.5, -0.25]]), "draft logprobs do not descend at depth 2"),
        (in_target("ids", [11]), "target has 1 values of ids, where 4 rows were verified"),
        (in_target("gap", [1.0] * 5), "target has 5 values of gap, where 4 rows were verified"),
        (in_target("topk", {"ids": [[11]], "logprobs": [[-1.0]]}), "target.topk has 1 rows for a path of 3"),
        (in_target("topk", {"ids": [[11]] * 3, "logprobs": [[-1.0]]}), "ids and logprobs of different shapes"),
        (put(path=[0, 2, 3]), "path goes from node 2 to node 3, whose parent is node 1"),
        (put(path=[0, 1, 9]), "path goes to node 9, but the tree has nodes 0 to 3"),
        (put(path=[1, 3, 0]), "path does not begin at the root (node 0)"),
        (put(path=[]), "path does not begin at the root (node 0)"),
        (put(emitted=[11, 13, 14, 11]), "4 tokens emitted on a path of 3"),
        (put(emitted=[11]), "1 tokens emitted on a path of 3, and the step is not flagged as truncated"),
        (put(flags={"truncated": True}), "flagged as truncated, but all 3 tokens of its path were emitted"),
        (put(base=7), "base of the first step is 7, but the prompt has 2 tokens"),
        (put(bonus=13), "root is token 14, but the bonus of step 0 is token 13"),
        (put(root=99), "1 token id has no text in any `tokens` record so far: 99"),
        (put(root=-1), None),
        (put(t=2**53), "not a record: seq, t or mono is not an integer below 2^53"),
        (put(batch=[0, 2**60]), "an integer is not below 2^53, so not every reader gets it exactly"),
        (put(new_field={"a": [2**60]}), "an integer is not below 2^53"),
        (put(path="abc"), "not a record: a `step` record whose fields do not fit"),
    ],
)  # fmt: skip
def test_a_broken_step_is_named(tmp_path: Path, change: Callable[[Fields], object], text: str | None) -> None:
    texts = mutated(tmp_path, 3, change)
    if text is None:
        assert texts == []
    else:
        assert any(text in found for found in texts), texts


@pytest.mark.parametrize(
    ("number", "change", "text"),
    [
        (4, put(base=9), "step 1 of r1: base is 9, but step 0 at base 2 with a path of 3 leads to 5"),
        (1, put(text=["a"]), "tokens has 7 ids but 1 texts"),
        (1, put(text=[{"b64": "%%%"}, *"bcdefg"]), "a b64 text is not base64"),
        (1, put(ids=[2, 10, 11, 12, 13, 14], text=list("bcdefg")), "1 token id has no text in any"),
        (2, put(prompt_ids=[1]), "prompt_ids has 1 ids, prompt_len is 2"),
        (2, put(seq=9), "seq 2 to 8 of engine/0 are missing and no gap covers it"),
        (2, put(seq=3), "seq 2 of engine/0 is missing and no gap covers it"),
        (2, put(seq=1), "seq 1 of engine/0 comes after its seq 1"),
        (6, put(steps=2), "finish of r1 counts 2 steps, 3 are here"),
        (6, put(emitted=5), "finish of r1 counts 5 emitted tokens; its steps emitted 5, and the first root makes 6"),
        (6, put(reason="abort", emitted=2, steps=1), None),
        (6, put(type="later"), None),
        (6, put(seq="x"), "not a record: expected `int`, got `str` in `seq`"),
    ],
)  # fmt: skip
def test_what_does_not_follow_is_named(
    tmp_path: Path, number: int, change: Callable[[Fields], object], text: str | None
) -> None:
    texts = mutated(tmp_path, number, change)
    if text is None:
        assert texts == []
    else:
        assert any(text in found for found in texts), texts


def gap(clock: Clock, skip: int, count: int | None, of: str = "engine/0", src: str = "engine/0") -> Gap:
    return Gap(**clock(src, skip=skip), of=of, count=count, reason="ring_full")


@pytest.mark.parametrize(
    ("skip", "count", "text"),
    [
        (3, 4, None),
        (0, 1, None),
        (0, None, None),
        (3, 3, "seq 1 of engine/0 is missing and no gap covers it"),
        (3, 6, "a gap of engine/0 covers seq -1 to 4, but seq 0 was already there"),
        (3, None, "seq 1 to 3 of engine/0 are missing and no gap covers it"),
        (0, 0, "a gap of engine/0 at seq 1 stands for no record"),
    ],
)
def test_a_gap_covers_what_it_says_and_no_more(tmp_path: Path, skip: int, count: int | None, text: str | None) -> None:
    clock = Clock()
    records = [header(clock), gap(clock, skip, count), Log(**clock(), message="after")]
    report = check(tmp_path, [encode(record) for record in records])
    assert [problem.text for problem in report.problems] == ([] if text is None else [text])


def test_a_gap_with_a_count_belongs_to_its_own_source(tmp_path: Path) -> None:
    clock = Clock()
    records = [header(clock), gap(clock, 0, 3, of="engine/1")]
    report = check(tmp_path, [encode(record) for record in records])
    assert [problem.text for problem in report.problems] == [
        "a gap of engine/1 with a count must have src engine/1, it has engine/0"
    ]


def test_a_source_may_start_anew_with_a_header(tmp_path: Path) -> None:
    first, second = Clock(), Clock()
    records = [header(first), Log(**first(), message="x"), header(second), Log(**second(), message="y")]
    assert check(tmp_path, [encode(record) for record in records]).problems == []
    late = Clock()
    late.seqs["engine/0"] = 4
    report = check(tmp_path, [encode(record) for record in [*records, header(late)]])
    assert [problem.text for problem in report.problems] == ["seq 0 to 4 of engine/0 are missing and no gap covers it"]


def test_texts_that_a_gap_may_have_swallowed_are_a_note(tmp_path: Path) -> None:
    clock = Clock()
    records = [header(clock), gap(clock, 3, 4), step(clock, 0, 2, 10)]
    report = check(tmp_path, [encode(record) for record in records])
    assert report.problems == []
    assert report.notes == ["5 token ids have no text: their `tokens` records may lie in a gap."]


def test_a_trace_without_any_texts_says_so_once(tmp_path: Path) -> None:
    clock = Clock()
    records = [header(clock), *(step(clock, number, 2 + 2 * number, 14) for number in range(5))]
    report = check(tmp_path, [encode(record) for record in records])
    assert [(p.record, p.text) for p in report.problems] == [(None, "no `tokens` record tells the text of 4 token ids")]


def test_a_recording_without_footer_is_sound_and_says_so(tmp_path: Path) -> None:
    report = check(tmp_path, [encode(record) for record in healthy()], footer=False)
    assert (report.problems, report.finished) == ([], False)
    assert report.notes == ["There is no footer: the recording still runs, or was not closed."]


def test_the_end_of_a_cut_file_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    cut = len(data) - 100
    path.write_bytes(data[:cut])
    report = verify(path)
    start = data[:cut].rfind(b"\n") + 1
    assert [(p.offset, p.record, p.text) for p in report.problems] == [
        (start, 19, f"the file ends inside record 19 (cut at byte {cut:,}): it is lost")
    ]
    assert report.records == 19 and not report.finished


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"5 s", b"6 s", "the footer's sha256 is not that of the bytes before it"),
        (b'"step":3', b'"step":4', "the footer counts 4 `step` records, 3 are here"),
        (b'"dropped":4', b'"dropped":5', "says emitted 22 and dropped 5; the records say 22 and 4"),
    ],
)
def test_a_footer_that_is_not_true_is_named(tmp_path: Path, old: bytes, new: bytes, text: str) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    at = data.rfind(old)
    path.write_bytes(data[:at] + new + data[at + len(old) :])
    (problem,) = verify(path).problems
    assert (problem.record, problem.offset) == (19, data[:-1].rfind(b"\n") + 1)
    assert text in problem.text


def test_everything_is_told_and_nothing_stops_it(tmp_path: Path) -> None:
    lines = [encode(record) for record in healthy()]
    fields = json.loads(lines[3])
    fields["tree"]["positions"] = [0, 0, 0, 0]
    fields["tree"]["tokens"] = [11, 11, 13]
    fields["emitted"] = []
    lines[3] = json.dumps(fields).encode() + b"\n"
    lines.insert(2, b"\x00\xff garbage\n")
    lines.insert(5, b"\n")
    del lines[6]
    report = check(tmp_path, lines)
    text = "\n".join(f"{problem.record}: {problem.text}" for problem in report.problems)
    for part in (
        "2: not a record: not JSON",
        "4: step 0 of r1: positions are not",
        "4: step 0 of r1: tree has siblings",
        "4: step 0 of r1: 0 tokens emitted on a path of 3",
        "5: not a record: an empty line",
        "6: seq 4 of engine/0 is missing and no gap covers it (damaged lines lie between)",
    ):
        assert part in text, text
    assert report.damaged == 2


def test_a_hurt_header_does_not_keep_the_rest_from_being_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    path.write_bytes(data.replace(b'"type":"header"', b'"type":"hea\xff\xff"', 1))
    texts = [problem.text for problem in verify(path).problems]
    assert texts[0].startswith("the first line is no header that can be read (")
    assert "the footer's sha256 is not that of the bytes before it" in texts


@pytest.mark.parametrize("content", [b"", b"hello\nworld\n", bytes(1000), b'{"a":1}\n' * 5, b'{"type":"header"'])
def test_what_holds_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        verify(path)


def test_a_newer_trace_is_refused_and_not_checked_by_half(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    path.write_bytes(data.replace(b'"min_reader":"1.0"', b'"min_reader":"1.2"'))
    with pytest.raises(NewerFormatError, match=r"needs a reader of trace format 1\.2"):
        verify(path)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    with TraceWriter(path) as writer:
        writer.write(header(clock))
        writer.write_lines(b"".join(encode(Log(**clock("log/x"), message="m")) for _ in range(2500)))
    calls: list[tuple[int, int]] = []
    verify(path, lambda done, size: calls.append((done, size)))
    size = path.stat().st_size
    assert len(calls) == 3 and calls[-1] == (size, size)
    assert calls == sorted(calls)


def test_hostile_names_stay_inside_their_sentence(tmp_path: Path) -> None:
    clock = Clock()
    rid = "r\n[/INST]\x1b[31m"
    records: list[Record] = [header(clock), step(clock, 0, 2, 10, rid=rid, emitted=[1, 2, 3, 4, 5])]
    problems = check(tmp_path, [encode(record) for record in records]).problems
    assert any(rid in problem.text for problem in problems)  # plain text: the caller makes it visible
