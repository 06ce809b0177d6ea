"""What comes from an engine's socket, made gapless per source."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ddscope.sources.intake import Intake
from tests.unit.emit_support import Books


def line(type: str, seq: int, src: str = "engine/0", **more: Any) -> bytes:
    record = {"type": type, "src": src, "seq": seq, "t": 100 + seq, "mono": seq, **more}
    return json.dumps(record, separators=(",", ":")).encode()


def gap(seq: int, count: int | None, reason: str = "joined_late", of: str = "engine/0") -> bytes:
    return line("gap", seq, of=of, count=count, reason=reason)


BOOKS: WeakKeyDictionary[Intake, Books] = WeakKeyDictionary()


def taken(intake: Intake, *lines: bytes) -> list[tuple[Any, ...]]:
    """(src, seq, type or (count, reason)) of what is handed on for these lines; the books of all so far are checked."""
    books = BOOKS.setdefault(intake, Books())
    before = len(books.records)
    books.take_all(intake.take(list(lines)))
    return [
        (r["src"], r["seq"], (r["count"], r["reason"]) if r["type"] == "gap" else r["type"])
        for r in books.records[before:]
    ]


def test_an_unbroken_stream_is_handed_on_byte_for_byte() -> None:
    lines = [
        line("header", 0),
        line("step", 1, future={"x": [1, 2.5]}),
        line("novel", 2),
        gap(5, 3),
        line("fact", 6, value="é\\"),
    ]
    intake = Intake()
    out = intake.take(lines).splitlines()
    assert out[:3] == lines[:3] and out[4] == lines[4]
    assert json.loads(out[3]) == json.loads(lines[3])
    assert (intake.received, intake.dropped, intake.repeated) == (4, 3, 0)


def test_lines_spelled_in_another_way_are_understood() -> None:
    spaced = json.dumps(
        {"seq": 0, "mono": 1, "extra": {"seq": 9}, "t": 2, "src": "engine/0", "type": "header"}
    ).encode()
    intake = Intake()
    assert intake.take([spaced]) == spaced + b"\n"
    assert taken(Intake(), spaced, line("step", 2)) == [
        ("engine/0", 0, "header"), ("engine/0", 1, (1, "disconnected")), ("engine/0", 2, "step"),
    ]  # fmt: skip


def test_a_field_that_looks_like_a_head_does_not_fool_it() -> None:
    inner = '{"type":"header","src":"engine/9","seq":77,"t":1,"mono":1}'
    records = [line("header", 0), line("log", 1, message=inner)]
    assert taken(Intake(), *records) == [("engine/0", 0, "header"), ("engine/0", 1, "log")]


def test_what_was_missed_while_disconnected_is_a_gap() -> None:
    intake = Intake()
    taken(intake, line("header", 0), line("step", 1))
    assert taken(intake, line("step", 5)) == [("engine/0", 4, (3, "disconnected")), ("engine/0", 5, "step")]


def test_what_an_engine_repeats_is_left_out_and_its_gaps_are_cut_to_size() -> None:
    intake = Intake()
    taken(intake, line("header", 0), line("fact", 1), line("step", 2), line("step", 3))
    again = [line("header", 0), line("fact", 1), gap(4, 3), line("request", 5), gap(9, 4), line("step", 10)]
    assert taken(intake, *again) == [
        ("engine/0", 4, (1, "joined_late")), ("engine/0", 5, "request"), ("engine/0", 9, (4, "joined_late")),
        ("engine/0", 10, "step"),
    ]  # fmt: skip
    assert intake.repeated == 2


def test_a_gap_of_unknown_size_is_a_record_of_its_own() -> None:
    assert taken(Intake(), line("header", 0), gap(1, None, "hook_fault"), line("fact", 2))[1:] == [
        ("engine/0", 1, (None, "hook_fault")), ("engine/0", 2, "fact"),
    ]  # fmt: skip


def test_a_gap_of_another_source_covers_nothing_here() -> None:
    assert taken(Intake(), line("header", 0), gap(1, 500, "rate_limited", of="journal/x"), line("fact", 2))[1:] == [
        ("engine/0", 1, (500, "rate_limited")), ("engine/0", 2, "fact"),
    ]  # fmt: skip


def test_another_engine_behind_the_same_path_gets_a_source_of_its_own() -> None:
    intake = Intake()
    taken(intake, line("header", 0, host="a"), *[line("step", n) for n in range(1, 50)])
    second = [line("header", 0, host="b"), gap(4, 4), line("fact", 5, future=1), gap(6, None, "hook_fault")]
    assert taken(intake, *second) == [
        ("engine/0#2", 0, "header"), ("engine/0#2", 4, (4, "joined_late")), ("engine/0#2", 5, "fact"),
        ("engine/0#2", 6, (None, "hook_fault")),
    ]  # fmt: skip
    out = json.loads(intake.take([line("fact", 7, future=[1], value=None)]))
    assert out == {"type": "fact", "src": "engine/0#2", "seq": 7, "t": 107, "mono": 7, "future": [1], "value": None}
    assert json.loads(intake.take([gap(8, None, "hook_fault")]))["of"] == "engine/0#2"
    assert taken(intake, line("header", 0, host="c"))[0][0] == "engine/0#3"


def test_the_same_engine_on_a_new_connection_is_no_other_engine() -> None:
    intake = Intake()
    taken(intake, line("header", 0), line("step", 1))
    assert taken(intake, line("header", 0), gap(5, 5), line("step", 6)) == [
        ("engine/0", 5, (4, "joined_late")), ("engine/0", 6, "step"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "rubbish",
    [b" ", b"not json", b"[1]", b'{"type":"step"}', b"\xff\xfe",
     b'{"type":"step","src":"engine/0","seq":-1,"t":1,"mono":1}',
     b'{"type":"step","src":"engine/0","seq":2,"t":1,"mono":1', b'{"type":"step","src":3,"seq":2,"t":1,"mono":1}',
     b"[" * 100_000],
)  # fmt: skip
def test_rubbish_is_counted_and_the_gap_it_leaves_is_told(rubbish: bytes) -> None:
    intake = Intake()
    assert taken(intake, line("header", 0), line("step", 1), rubbish, line("step", 3))[2:] == [
        ("engine/0", 2, (1, "disconnected")), ("engine/0", 3, "step"),
    ]  # fmt: skip
    assert intake.malformed == 1


def test_hello_says_the_header_and_the_last_seq() -> None:
    intake = Intake()
    assert intake.hello() == {"type": "hello", "header": None, "seq": -1}
    header = line("header", 0)
    intake.take([header, gap(9, 9)])
    assert intake.hello() == {"type": "hello", "header": hashlib.sha256(header).hexdigest(), "seq": 9}
    intake.take([line("header", 0, host="other")])
    assert intake.hello()["seq"] == 0
    intake.take([line("fact", 0, src="engine/1")])
    assert intake.hello()["seq"] == -1, "two sources: one number cannot say where we are"
