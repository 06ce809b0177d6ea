"""orjson and the standard library write equal values, and refuse the same objects."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import msgspec
import orjson
from hypothesis import given
from hypothesis import strategies as st

from ddscope_hooks.emit.encoder import MAX_INT, body_json, body_orjson, clean

TRICKY = st.sampled_from(
    [float("nan"), float("inf"), -float("inf"), -0.0, 1e308, 5e-324, MAX_INT, MAX_INT + 1, -MAX_INT - 1, 2**64, 10**25,
     1234567890123456, 1234567890123456.0, "1,1234567890123456789", "[/INST]", "\x00\x1b[31m", "\ud800", "\udcff",
     "é\u2028", b"", b"\xff", b"text", bytearray(b"\x80")]
)  # fmt: skip


class Word(str, enum.Enum):  # noqa: UP042 - servers still have such classes
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class Fraction(float):
    pass


class Row(tuple):  # type: ignore[type-arg]
    __slots__ = ()


class Opaque:
    pass


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(st.characters()) | st.binary()
    | TRICKY | st.sampled_from([Word.A, Number.ONE, Fraction(0.5), Fraction("nan")])
)  # fmt: skip
KEYS = st.text(max_size=5) | st.sampled_from(
    ["message", "value", "text", "\ud800", 1, 2**60, None, True, 0.5, Word.A, Number.ONE]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5) | st.tuples(inner, inner) | st.lists(inner, max_size=3).map(Row)
        | st.dictionaries(KEYS, inner, max_size=5)
    ),
    max_leaves=25,
)  # fmt: skip
FIELDS = st.dictionaries(st.sampled_from(["rid", "value", "message", "step", "config"]), VALUES, max_size=5)


def outcome(body: Any, fields: dict[str, Any]) -> Any:
    try:
        return json.loads(body(fields))
    except (TypeError, ValueError, RecursionError):
        return "refused"


def same(a: Any, b: Any) -> bool:
    """Equal as JSON values: 1 and 1.0 and True differ, -0.0 and 0.0 differ."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


@given(FIELDS)
def test_both_encoders_write_equal_values(fields: dict[str, Any]) -> None:
    a, b = outcome(body_json, fields), outcome(body_orjson, fields)
    assert a != "refused" and same(a, b), (a, b)


@given(FIELDS, st.sampled_from([Opaque(), {Opaque(): 1}, {(1, 2): 3}, 1j, Opaque]))
def test_both_encoders_refuse_the_same(fields: dict[str, Any], bad: Any) -> None:
    fields = {**fields, "value": [bad]}
    assert outcome(body_json, fields) == outcome(body_orjson, fields) == "refused"


@given(FIELDS)
def test_what_is_written_is_strict_json_that_every_reader_takes(fields: dict[str, Any]) -> None:
    for body in (body_json, body_orjson):
        data = body(fields)
        data.decode("utf-8")
        assert b"\n" not in data
        assert same(orjson.loads(data), json.loads(data)) and same(msgspec.json.decode(data), json.loads(data))


@given(VALUES)
def test_cleaning_twice_changes_nothing(value: Any) -> None:
    once = clean(value, True)
    assert same(clean(once, True), once)
