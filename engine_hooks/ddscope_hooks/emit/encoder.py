"""Fields to JSON lines: orjson where the environment has it, else the standard library; both give equal values.

Non-finite numbers become null. Bytes and lone surrogates become {"b64"} where the format allows foreign text, and
visible escapes elsewhere. Integers of 2^53 and beyond become decimal strings. Records, seqs and gaps: `stream`.
"""

from __future__ import annotations

import base64
import enum
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

try:
    import orjson as _orjson
except ImportError:  # a server without it: slower, equal values
    _orjson = None  # type: ignore[assignment]

orjson: Any = _orjson
BACKEND = "json" if orjson is None else "orjson"
MAX_INT = 2**53 - 1
MAX_DEPTH = 254  # orjson's own bound, so that both encoders take and refuse the same
RESERVED = frozenset(("type", "src", "seq", "t", "mono"))
FREE = frozenset(("message", "text", "value", "args", "config", "sampling"))
"""Fields where the format takes foreign text or any value; elsewhere a string must stay a string."""

Body = Callable[[dict[str, Any]], bytes]


def text_of(data: bytes) -> str | dict[str, str]:
    """Foreign bytes as the format writes them: a string where they are UTF-8, else base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode("ascii")}


def clean(value: Any, free: bool = False, depth: int = 0) -> Any:
    """`value` as plain JSON values by the rules at the top. Raises TypeError or ValueError where it has no such form.

    free: foreign text may become {"b64"} here. Arrays (anything with `tolist`) become lists, sets sorted lists.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return _text(value, free)
    if isinstance(value, enum.Enum):
        return clean(value.value, free, depth)
    if isinstance(value, int):
        return int(value) if -MAX_INT <= value <= MAX_INT else _decimal(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return text_of(data) if free else data.decode("utf-8", "backslashreplace")
    if isinstance(value, uuid.UUID):
        return str(value)
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return _clean_container(value, free, depth + 1)


def _clean_container(value: Any, free: bool, depth: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [clean(v, free, depth) for v in value]
    if isinstance(value, Mapping):
        return {(k := _key(key)): clean(v, free or k in FREE, depth) for key, v in value.items()}
    tolist = getattr(value, "tolist", None)  # host arrays and scalars of numpy and torch, without importing either
    if callable(tolist):
        return clean(tolist(), free, depth - 1)
    if isinstance(value, (set, frozenset)):
        return clean(sorted(value), free, depth - 1)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _text(value: str, free: bool) -> str | dict[str, str]:
    try:
        value.encode("utf-8")
        return str.__str__(value)  # the characters, also of a member of a string enum
    except UnicodeEncodeError:
        pass
    if not free:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    try:
        return text_of(value.encode("utf-8", "surrogateescape"))  # bytes that Python smuggled through a string
    except UnicodeEncodeError:
        return text_of(value.encode("utf-8", "surrogatepass"))


def _decimal(value: int) -> str:
    try:
        return str(int(value))
    except ValueError:  # Python refuses to print more than some thousand digits
        return hex(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(key, enum.Enum):
        return _key(key.value)
    if isinstance(key, int) and not isinstance(key, bool):
        return _decimal(key)
    if key is None or isinstance(key, (bool, float)):
        return json.dumps(key)
    raise TypeError(f"{type(key).__name__} cannot be the name of a field")


# json.dumps writes any integer and any depth: where either might be beyond the bounds, `clean` decides.
_MAYBE_LARGE = re.compile(r"[\[,:-][0-9]{16}").search


def body_json(fields: dict[str, Any]) -> bytes:
    """The object as bytes, with the standard library."""
    try:
        text = _dumps(fields, default=_default)
        if not _MAYBE_LARGE(text) and text.count("[") + text.count("{") <= MAX_DEPTH:
            return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):  # ValueError: non-finite numbers, lone surrogates
        pass
    return _dumps(clean(fields)).encode("utf-8")


def _dumps(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)


def body_orjson(fields: dict[str, Any]) -> bytes:
    """The object as bytes, with orjson. What it refuses or would write by rules of its own takes the slow way."""
    try:
        done: bytes = orjson.dumps(fields, _default, _OPTIONS)
    except TypeError:  # JSONEncodeError: large integers, surrogates, bytes, subclasses, names that are no strings
        done = orjson.dumps(clean(fields))
    return done


def _default(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    raise TypeError


body: Body = body_json
if orjson is not None:
    body = body_orjson
    _OPTIONS = (
        orjson.OPT_STRICT_INTEGER
        | orjson.OPT_PASSTHROUGH_SUBCLASS
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME
    )


class Encoder:
    """Lines of one source. The common fields come first and in one order, so that readers can find them cheaply."""

    def __init__(self, src: str, body: Body = body) -> None:
        self.src = src
        self._body = body
        self._src = json.dumps(clean(src))
        self._heads: dict[str, str] = {}

    def line(self, type: str, seq: int, t: int, mono: int, fields: dict[str, Any]) -> bytes:
        """One line with its newline; t, mono in µs. TypeError, ValueError, RecursionError: has no JSON form."""
        body = self._body(fields if fields.keys().isdisjoint(RESERVED) else _unreserved(fields))
        head = f'{self._head(type)}"seq":{seq},"t":{t},"mono":{mono}'.encode("ascii")
        return head + b"}\n" if body == b"{}" else b"%b,%b\n" % (head, body[1:])

    def gap(self, seq: int, t: int, mono: int, count: int | None, reason: str) -> bytes:
        """The `count` records that end at `seq` are missing (None: nobody knows how many, `seq` is the gap's own)."""
        return self.line("gap", seq, t, mono, {"of": self.src, "count": count, "reason": reason})

    def _head(self, type: str) -> str:
        head = self._heads.get(type)
        if head is None:
            if not isinstance(type, str):
                raise TypeError("the type of a record must be a string")
            head = f'{{"type":{json.dumps(clean(type))},"src":{self._src},'
            if len(self._heads) < 64:
                self._heads[type] = head
        return head


def _unreserved(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in RESERVED}
