"""Lines and records: what encode writes, what decode makes of foreign lines."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from ddscope.model import RECORD_TYPES, Fact, Gap, Log, Step, StepTime, Text, text_bytes
from ddscope.trace import Damaged, TraceError, Unknown, decode, encode
from ddscope.trace.heads import DamagedHead, decode_head
from tests.tracing import HOSTILE, Clock, sample_records

COMMON = {"src": "engine/0", "seq": 4, "t": 10, "mono": 11}


def line(**fields: object) -> bytes:
    return json.dumps(COMMON | fields).encode()


def test_every_record_type_survives_a_line() -> None:
    records = sample_records()
    assert {type(record).type for record in records} | {"footer"} == set(RECORD_TYPES)
    for record in records:
        encoded = encode(record)
        assert encoded.endswith(b"\n") and encoded.count(b"\n") == 1
        assert decode(encoded) == record
        assert decode(encoded[:-1]) == record


def test_equal_records_have_equal_bytes_whatever_the_order_of_their_dicts() -> None:
    clock, again = Clock(), Clock()
    one = Fact(**clock(), name="n", value={"b": 1, "a": {"y": 2, "x": 3}})
    other = Fact(**again(), name="n", value={"a": {"x": 3, "y": 2}, "b": 1})
    assert encode(one) == encode(other)


def test_non_finite_numbers_become_null() -> None:
    record = Fact(**Clock()(), name="n", value=[math.nan, math.inf, -math.inf, 1.5])
    assert json.loads(encode(record))["value"] == [None, None, None, 1.5]


def test_a_field_that_is_unknown_is_absent_and_a_null_count_is_written() -> None:
    assert "time" not in json.loads(encode(Step(**Clock()(), rid="r", step=0)))
    gap = json.loads(encode(Gap(**Clock()(), of="x", count=None, reason="cursor_lost")))
    assert gap["count"] is None


def test_a_text_that_cannot_be_json_is_refused_in_a_sentence() -> None:
    with pytest.raises(TraceError, match=r"^A `log` record of engine/0 cannot be written as JSON: .*\.$"):
        encode(Log(**Clock()(), message="\ud800"))


def test_an_unknown_type_keeps_its_bytes_and_gives_its_fields() -> None:
    raw = line(type="telepathy", of=HOSTILE, deep={"a": [1]})
    record = decode(raw + b"\n")
    assert type(record) is Unknown
    assert (record.type, record.src, record.seq, record.t, record.mono, record.raw) == (
        "telepathy", "engine/0", 4, 10, 11, raw,
    )  # fmt: skip
    assert record.fields()["of"] == HOSTILE


def test_unknown_fields_of_a_known_type_do_not_hurt() -> None:
    record = decode(line(type="step", rid="r", step=3, entanglement={"a": [1, 2]}, time={"draft": 5, "nap": 7}))
    assert isinstance(record, Step)
    assert (record.step, record.time) == (3, StepTime(draft=5))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "an empty line"),
        (b"   ", "an empty line"),
        (b"\0\0\0", "zero bytes"),
        (b"hello", "not JSON"),
        (b'{"type":"step","src":"engine/0"', "not JSON"),
        (b"[1,2]", "expected `object`, got `array`"),
        (b"7", "expected `object`, got `int`"),
        (b"{}", "missing required field `type`"),
        (line(type="step")[:-1] + b',"x":"\xff"}', "fields do not fit: object missing required field `rid`"),
        (json.dumps({"type": "telepathy"}).encode(), "missing required field `src`"),
        (line(type=7), "expected `str`, got `int` in `type`"),
        (line(type="step", rid="r", step="x"), "a `step` record whose fields do not fit: expected `int`, got `str`"),
        (line(type="log", message="m", seq=-1), "seq, t or mono is not an integer below 2^53 (seq -1)"),
        (line(type="log", message="m", t=2**53), "seq, t or mono"),
        (line(type="log", message="m", seq=10**60), "seq of 200 bits"),
        (line(type="new", seq=2**60), "seq, t or mono"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (line(type="fact", name="x", value=0)[:-2] + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_damage_with_a_reason(raw: bytes, reason: str) -> None:
    record = decode(raw)
    assert isinstance(record, Damaged)
    assert reason in record.reason
    assert "$" not in record.reason
    assert record.raw == raw.rstrip(b"\r\n")
    head = decode_head(raw)
    assert type(head) is DamagedHead
    assert (head.src, head.seq) == (record.src, record.seq)


def test_a_head_does_not_look_at_the_payload_whose_damage_shows_when_it_is_read() -> None:
    raw = line(type="fact", name="x")
    assert type(decode_head(raw)) is not DamagedHead
    record = decode(raw)
    assert isinstance(record, Damaged)
    assert record.reason == "a `fact` record whose fields do not fit: object missing required field `value`"


def test_damage_inside_a_record_still_tells_where_it_stands() -> None:
    record = decode(line(type="step", rid="r", step="three"))
    assert isinstance(record, Damaged)
    assert (record.type, record.src, record.seq, record.t) == ("step", "engine/0", 4, 10)


def test_the_last_of_two_equal_keys_counts_for_the_head_and_for_the_record_alike() -> None:
    raw = b'{"type":"log","src":"a","seq":1,"seq":2,"t":1,"mono":1,"message":"one","message":"two"}'
    record, head = decode(raw), decode_head(raw)
    assert isinstance(record, Log)
    assert (record.seq, record.message, head.seq) == (2, "two", 2)


def test_a_field_of_another_type_does_not_make_a_record_damaged() -> None:
    """`emitted` is a list in a step and a number in a finish; a later version may use any name for anything."""
    for raw in (
        line(type="log", message="m", step="not a number", emitted={"a": 1}, tree=7, rid=[]),
        line(type="later", step="not a number", path="abc", flags=1),
    ):
        head = decode_head(raw)
        assert type(head) is not DamagedHead
        assert (head.src, head.seq, head.step) == ("engine/0", 4, -1)


def test_a_head_never_believes_a_field_that_speaks_of_damage() -> None:
    head = decode_head(line(type="log", message="m", reason="I am damaged"))
    assert type(head) is not DamagedHead


def test_bytes_that_are_not_utf8_come_back() -> None:
    texts: list[Text] = [
        text for record in sample_records() if isinstance(record, Log) for text in [record.message] if text
    ]
    assert [text_bytes(text) for text in texts] == [HOSTILE.encode(), b"\xff\xfe[/INST]\x00"]
    again = [decode(encode(record)) for record in sample_records() if isinstance(record, Log)]
    assert msgspec.json.encode(again) == msgspec.json.encode([r for r in sample_records() if isinstance(r, Log)])
