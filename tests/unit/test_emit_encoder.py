"""The encoder: what has no JSON form of its own, in both encoders."""

from __future__ import annotations

import enum
import json
import uuid
from typing import Any

import numpy as np
import pytest

from ddscope_hooks.emit.encoder import MAX_DEPTH, MAX_INT, Encoder, body_json, body_orjson

BODIES = [pytest.param(body_json, id="json"), pytest.param(body_orjson, id="orjson")]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Array:
    """Stands for a host array: only `tolist` is known of it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def tolist(self) -> Any:
        return self._value


@pytest.fixture(params=BODIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return Encoder("engine/0", request.param)


def fields(encoder: Encoder, **given: Any) -> Any:
    line = encoder.line("x", 1, 2, 3, given)
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    record = json.loads(line)
    for name in ("type", "src", "seq", "t", "mono"):
        record.pop(name)
    return record


def test_the_common_fields_come_first_and_once(encoder: Encoder) -> None:
    line = encoder.line("step", 7, 8, 9, {"rid": "a", "seq": 99, "type": "no", "src": "no", "t": 0, "mono": 0})
    assert line == b'{"type":"step","src":"engine/0","seq":7,"t":8,"mono":9,"rid":"a"}\n'
    assert encoder.line("step", 7, 8, 9, {}) == b'{"type":"step","src":"engine/0","seq":7,"t":8,"mono":9}\n'


def test_non_finite_numbers_become_null(encoder: Encoder) -> None:
    nan, inf = float("nan"), float("inf")
    assert fields(encoder, a=nan, b=[inf, -inf, 1.5], c={"d": nan}) == {
        "a": None,
        "b": [None, None, 1.5],
        "c": {"d": None},
    }


def test_integers_beyond_2_53_become_decimal_strings(encoder: Encoder) -> None:
    assert fields(encoder, a=MAX_INT, b=MAX_INT + 1, c=-(2**60), d=10**30) == {
        "a": MAX_INT, "b": str(MAX_INT + 1), "c": str(-(2**60)), "d": str(10**30),
    }  # fmt: skip
    assert isinstance(fields(encoder, a=10**5000)["a"], str)


def test_bytes_that_are_utf8_become_text_and_others_base64(encoder: Encoder) -> None:
    assert fields(encoder, text=["ü".encode(), b"\xff\x00", bytearray(b"ok")]) == {"text": ["ü", {"b64": "/wA="}, "ok"]}


def test_lone_surrogates_never_reach_the_line(encoder: Encoder) -> None:
    smuggled = b"\xe9t\xe9".decode("utf-8", "surrogateescape")
    assert fields(encoder, message=smuggled, value={"x": ["\ud800"]}) == {
        "message": {"b64": "6XTp"}, "value": {"x": [{"b64": "7aCA"}]},
    }  # fmt: skip
    # where the format wants a plain string, a visible escape
    assert fields(encoder, rid=smuggled) == {"rid": "\\udce9t\\udce9"}
    assert fields(encoder, rid=b"r\xff") == {"rid": "r\\xff"}
    assert fields(encoder, value={smuggled: 1}) == {"value": {"\\udce9t\\udce9": 1}}


def test_arrays_enums_tuples_and_sets_have_a_form(encoder: Encoder) -> None:
    got = fields(
        encoder, a=np.arange(3), b=np.float32(0.5), c=np.array([np.nan]), d=Array([Array(2)]), e=(1, 2), f={3, 1},
        g=Colour.RED, h=Level.HIGH, i=uuid.UUID(int=1), j=np.int64(4), k={2: "x", True: "y", None: "z", 0.5: "w"},
    )  # fmt: skip
    assert got == {
        "a": [0, 1, 2], "b": 0.5, "c": [None], "d": [2], "e": [1, 2], "f": [1, 3], "g": "red", "h": 3,
        "i": "00000000-0000-0000-0000-000000000001", "j": 4, "k": {"2": "x", "true": "y", "null": "z", "0.5": "w"},
    }  # fmt: skip


@pytest.mark.parametrize("value", [object(), {"a": object()}, [lambda: None], {(1, 2): 3}, 1j])
def test_what_has_no_json_form_is_refused(encoder: Encoder, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encoder.line("x", 0, 0, 0, {"value": value})


def test_depth_is_bounded_alike(encoder: Encoder) -> None:
    def nested(depth: int) -> Any:
        value: Any = 0
        for _ in range(depth):
            value = [value]
        return value

    assert fields(encoder, value=nested(MAX_DEPTH - 1)) == {"value": nested(MAX_DEPTH - 1)}
    circle: list[Any] = []
    circle.append(circle)
    for value in (nested(MAX_DEPTH + 1), nested(5000), circle):
        with pytest.raises((TypeError, ValueError, RecursionError)):
            encoder.line("x", 0, 0, 0, {"value": value})


def test_a_type_or_source_with_quotes_is_still_one_json_string() -> None:
    line = Encoder('a"b\n', body_json).line('t"', 0, 0, 0, {})
    assert json.loads(line) == {"type": 't"', "src": 'a"b\n', "seq": 0, "t": 0, "mono": 0}
    with pytest.raises(TypeError):
        Encoder("a", body_json).line(3, 0, 0, 0, {})  # type: ignore[arg-type]
