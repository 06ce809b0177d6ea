"""recover: everything readable comes through byte for byte, and the copy is a sound trace again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddscope.model import Gap, Header, Log
from ddscope.trace import Damaged, NewerFormatError, TraceError, TraceFile, TraceWriter, decode, encode, recover, verify
from ddscope.trace.lines import MAX_LINE
from tests.tracing import Clock, header, index_all, lines, sample_records, write_sample

UNKNOWN = b'{ "type":"later", "src":"x/0", "seq":0, "t":1, "mono":2, "deep":{"\xc3\xa9":[1e5, null, "\\u001b[31m"]} }\n'


def test_a_sound_trace_is_copied_as_it_is(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    data = write_sample(source)
    report = recover(source, copy)
    assert copy.read_bytes() == data == source.read_bytes()
    assert (report.kept, report.lost, report.gaps, report.footer_made, report.header_made) == (20, [], 0, False, False)
    assert report.summary() == f"20 records of {source} are in {copy}; nothing was lost."


def test_a_cut_trace_gets_its_footer_and_loses_its_torn_line(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    data = write_sample(source)
    cut = data.rfind(b'{"type":"finish"') + 30
    source.write_bytes(data[:cut])
    report = recover(source, copy)
    whole = data[: data[:cut].rfind(b"\n") + 1]
    assert copy.read_bytes().startswith(whole)
    assert copy.read_bytes()[len(whole) :].count(b"\n") == 1
    assert verify(copy).problems == [] and verify(copy).finished
    assert [(p.offset, p.record) for p in report.lost] == [(len(whole), 18)]
    assert report.lost_bytes == cut - len(whole)
    assert report.kept == 18 and report.footer_made
    where = f"byte {len(whole):,} (the file ends inside it, at byte {cut:,})"
    assert f"1 line of {cut - len(whole)} bytes could not be read: {where}" in report.summary()


def test_unknown_types_and_fields_come_through_byte_for_byte(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    first = encode(header(Clock())).replace(b'"host"', b'"colour" : "\\u00e9",  "host"')
    source.write_bytes(first + UNKNOWN + UNKNOWN.replace(b'"seq":0', b'"seq":1') + b"\xff\n")
    report = recover(source, copy)
    assert copy.read_bytes().startswith(first + UNKNOWN + UNKNOWN.replace(b'"seq":0', b'"seq":1'))
    assert (report.unknown, len(report.lost)) == (2, 1)
    assert verify(copy).problems == []
    with TraceFile(copy) as trace:
        assert index_all(trace).raw(1) + b"\n" == UNKNOWN


def test_what_damage_took_stands_in_the_copy_as_a_gap(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    clock = Clock()
    written = [encode(header(clock)), *(encode(Log(**clock(), message=str(i))) for i in range(6))]
    written += [encode(Log(**clock("log/x"), message="other"))]
    source.write_bytes(b"".join([*written[:2], b"\x00\x01junk\n", b"\n", *written[4:6], b"{]\n", *written[7:]]))
    report = recover(source, copy)
    got = [decode(line) for line in copy.read_bytes().split(b"\n")[:-1]]
    gap = got[2]
    assert isinstance(gap, Gap)
    assert (gap.src, gap.of, gap.seq, gap.count, gap.reason) == ("engine/0", "engine/0", 3, 2, "damaged")
    assert [type(record).type for record in got] == ["header", "log", "gap", "log", "log", "log", "footer"]
    assert (len(report.lost), report.gaps, report.kept) == (3, 1, 5)
    assert verify(copy).problems == []


def test_holes_that_no_damage_explains_are_left_to_be_found(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    clock = Clock()
    source.write_bytes(lines([header(clock), Log(**clock(skip=3), message="x")]))
    assert recover(source, copy).gaps == 0
    assert [problem.text for problem in verify(copy).problems] == [
        "seq 1 to 3 of engine/0 are missing and no gap covers it"
    ]


def test_a_hurt_header_is_replaced_and_everything_else_kept(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    data = write_sample(source)
    hurt = data.replace(b'{"type":"header"', b'{"type":"hea\x00\x00"', 1)
    source.write_bytes(hurt)
    report = recover(source, copy)
    got = [decode(line) for line in copy.read_bytes().split(b"\n")[:-1]]
    assert isinstance(got[0], Header) and got[0].src == "recover"
    assert isinstance(got[1], Gap) and (got[1].src, got[1].seq, got[1].count) == ("engine/0", 0, 1)
    assert got[2:-1] == sample_records()[1:]
    assert report.header_made and report.footer_made and len(report.lost) == 1
    assert verify(copy).problems == []
    assert "Added: a new header, because its own could not be read, a new footer, 1 gap records" in report.summary()


def test_a_record_whose_fields_do_not_fit_is_kept_for_whoever_can_read_it(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    odd = b'{"type":"step","src":"engine/0","seq":1,"t":1,"mono":1,"rid":"r","step":"three"}\n'
    source.write_bytes(encode(header(Clock())) + odd)
    report = recover(source, copy)
    assert odd in copy.read_bytes()
    assert (report.kept, report.odd, report.lost) == (2, 1, [])
    with TraceFile(copy) as trace:
        assert isinstance(index_all(trace).record(1), Damaged)


def test_a_footer_that_is_no_longer_true_is_replaced(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    data = write_sample(source)
    clock = Clock()
    clock.seqs["viewer"] = 1
    with TraceWriter(source, append=True) as writer:  # a second part, with a footer of its own
        writer.write(Log(**clock("viewer"), message="more"))
    both = source.read_bytes()
    assert recover(source, copy).kept == 22
    assert copy.read_bytes() == both
    copy.unlink()
    torn = both.replace(b'"rung":"generate"', b'"rung":"generate', 1)
    source.write_bytes(torn)
    report = recover(source, copy)
    kinds = [decode(line).type for line in copy.read_bytes().split(b"\n")[:-1]]
    assert kinds.count("footer") == 1 and kinds[-1] == "footer"
    assert report.footer_made and len(report.lost) == 1
    assert verify(copy).problems == []
    assert len(both) > len(data)


def test_a_line_too_long_to_be_a_record_is_left_out(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    clock = Clock()
    with source.open("wb") as file:
        file.write(encode(header(clock)))
        file.truncate(file.tell() + MAX_LINE * 2)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + encode(Log(**clock(skip=1), message="after")))
    report = recover(source, copy)
    assert (report.kept, len(report.lost), report.gaps) == (2, 1, 1)
    assert copy.stat().st_size < 2000
    assert verify(copy).problems == []


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    data = write_sample(source)
    copy.write_bytes(b"precious")
    for target in (copy, source):
        with pytest.raises(TraceError, match=r"already exists: name another file to recover to\.$"):
            recover(source, target)
    assert (copy.read_bytes(), source.read_bytes()) == (b"precious", data)


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"type":"header"', bytes(99)])
def test_where_nothing_can_be_recovered_nothing_is_made(tmp_path: Path, content: bytes) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    source.write_bytes(content)
    with pytest.raises(TraceError):
        recover(source, copy)
    assert not copy.exists()


def test_a_newer_trace_is_refused(tmp_path: Path) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    source.write_bytes(write_sample(source).replace(b'"min_reader":"1.0"', b'"min_reader":"9.0"'))
    with pytest.raises(NewerFormatError, match=r"format 9\.0"):
        recover(source, copy)
    assert not copy.exists()


def test_a_copy_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "t.jsonl"
    write_sample(source)
    with pytest.raises(TraceError, match=r"^Cannot write the trace .*\.$"):
        recover(source, tmp_path / "missing" / "copy.jsonl")
