"""Fields to JSON lines: orjson where the environment has it, else the standard library; both give equal values.

Non-finite numbers become null, bytes and lone surrogates become {"b64"} where the format allows foreign text and visible
escapes elsewhere, integers beyond 2^53 become decimal strings. Records, seqs and gaps are the writer's business.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

try:
    import orjson
except ImportError:  # a server without it: slower, same values
    orjson = None  # type: ignore[assignment]

BACKEND = "orjson" if orjson is not None else "json"
MAX_INT = 2**53 - 1
MAX_DEPTH = 64
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


def _text(value: str, free: bool) -> str | dict[str, str]:
    try:
        value.encode("utf-8")
        return str(value)
    except UnicodeEncodeError:
        pass
    if not free:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    try:
        return text_of(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return text_of(value.encode("utf-8", "surrogatepass"))


def _bytes(value: bytes, free: bool) -> str | dict[str, str]:
    return text_of(value) if free else value.decode("utf-8", "backslashreplace")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(key, (int, float)) or key is None:
        return json.dumps(key)
    raise TypeError(f"{type(key).__name__} cannot be the name of a field")


def clean(value: Any, free: bool = False, depth: int = 0) -> Any:
    """`value` as plain JSON values, by the rules at the top. Raises TypeError or ValueError for what has no such form."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value) if -MAX_INT <= value <= MAX_INT else str(int(value))
    if isinstance(value, str):
        return _text(value, free)
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, (list, tuple)):
        return [clean(v, free, depth + 1) for v in value]
    if isinstance(value, Mapping):
        return {(k := _key(key)): clean(v, free or k in FREE, depth + 1) for key, v in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value), free)
    tolist = getattr(value, "tolist", None)  # numpy and torch host arrays and scalars, without importing either
    if callable(tolist):
        return clean(tolist(), free, depth + 1)
    if isinstance(value, (set, frozenset)):
        return clean(sorted(value), free, depth + 1)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def body_json(fields: dict[str, Any]) -> bytes:
    """The object as bytes, with the standard library."""
    return json.dumps(clean(fields), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _default(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    raise TypeError


def body_orjson(fields: dict[str, Any]) -> bytes:
    """The object as bytes, with orjson; what orjson would refuse or write by its own rules takes the slow way."""
    try:
        return orjson.dumps(fields, _default, _ORJSON)
    except TypeError:  # orjson.JSONEncodeError: huge integers, surrogates, bytes, subclasses, keys that are no strings
        return orjson.dumps(clean(fields))


if orjson is not None:
    _ORJSON = (
        orjson.OPT_STRICT_INTEGER
        | orjson.OPT_PASSTHROUGH_SUBCLASS
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME
    )
    body: Body = body_orjson
else:
    body = body_json


class Encoder:
    """Lines of one source."""

    def __init__(self, src: str, body: Body = body) -> None:
        self.src = src
        self._body = body
        self._src = json.dumps(clean(src))

    def line(self, type: str, seq: int, t: int, mono: int, fields: dict[str, Any]) -> bytes:
        """One line with its newline. t, mono: µs. Raises TypeError, ValueError or RecursionError for what cannot be encoded."""
        if not fields.keys().isdisjoint(RESERVED):
            fields = {k: v for k, v in fields.items() if k not in RESERVED}
        head = f'{{"type":{json.dumps(clean(type))},"src":{self._src},"seq":{seq},"t":{t},"mono":{mono}'
        body = self._body(fields)
        if body == b"{}":
            return head.encode("ascii") + b"}\n"
        return b"%b,%b\n" % (head.encode("ascii"), body[1:])

    def gap(self, seq: int, t: int, mono: int, count: int | None, reason: str) -> bytes:
        """The `count` records that end at `seq` are missing (count None: unknown, and `seq` is the gap's own)."""
        return self.line("gap", seq, t, mono, {"of": self.src, "count": count, "reason": reason})
