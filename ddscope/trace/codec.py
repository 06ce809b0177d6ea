"""One record ↔ one line of bytes. No files here.

`decode` never raises: a type of a newer minor version becomes `Unknown`, a line that is no record becomes `Damaged`.
Both keep the bytes they came from, which is what a copy writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Union

import msgspec

from ddscope.model import RECORD_TYPES, Finish, Footer, Gap, Record, Step
from ddscope.trace.errors import TraceError

INT_LIMIT = 2**53
"""Integers of a trace stay below this, so that every JSON reader gets them exactly."""

NOT_TOLD = -1
"""seq, t or mono of a damaged line that does not tell."""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A whole record of a type this version does not know. `raw` is its line without the newline."""

    type: str
    raw: bytes
    src: str
    seq: int
    t: int
    mono: int

    def fields(self) -> dict[str, Any]:
        """The record as plain JSON values; empty when the line is no JSON object."""
        try:
            value = msgspec.json.decode(self.raw)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class Damaged(Unknown, frozen=True, kw_only=True):
    """A line that cannot be read as a record, kept with its bytes and the reason.

    type and src are "" and seq, t and mono are -1 (`NOT_TOLD`) where the line does not tell them.
    """

    reason: str


class _Common(msgspec.Struct, frozen=True):
    """The fields that every record has, whatever its type."""

    type: str
    src: str
    seq: int
    t: int
    mono: int


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Union[tuple(RECORD_TYPES.values())])  # noqa: UP007
_COMMON = msgspec.json.Decoder(_Common)
_WHERE = re.compile(r" - at `\$\.?([^`]*)`")

# What decoding foreign bytes can raise: msgspec's errors and UnicodeError are ValueErrors; deep nesting recurses.
UNREADABLE = (ValueError, RecursionError, OverflowError)


def encode(record: Record) -> bytes:
    """The record as one JSON line, newline included. Equal records give equal bytes; NaN and ±inf become null.

    Raises TraceError when a value cannot be written: a lone surrogate in a text, an integer beyond 64 bits, a value
    that JSON does not have.
    """
    try:
        return _ENCODER.encode(record) + b"\n"
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TraceError(f"A `{record.type}` record of {record.src} cannot be written as JSON: {error}.") from error


def decode(line: bytes) -> Record | Unknown:
    """The record in one line (newline optional), an `Unknown`, or a `Damaged` with the reason. Never raises."""
    try:
        record = _DECODER.decode(line)
    except UNREADABLE as error:
        return _decode_odd(line, error)
    if not _common_fits(record):
        return _damaged(line, _common_misfit(record.seq))
    for name, value in _counts(record):
        if not 0 <= value < INT_LIMIT:
            common = _Common(record.type, record.src, record.seq, record.t, record.mono)
            reason = f"{_article(record.type)} `{record.type}` record whose {name} is no count below 2^53"
            return _damaged(line, f"{reason} ({_short(value)})", common)
    return record


def _counts(record: Record) -> Iterator[tuple[str, int]]:
    """Numbers that readers keep in columns of machine words, by name: they may not be negative nor large."""
    if isinstance(record, Step):
        yield "step", record.step
        if record.time is not None:
            yield "time.total", record.time.total or 0
            yield "time.commit", record.time.commit or 0
    elif isinstance(record, Finish | Footer):
        yield "emitted", record.emitted
    elif isinstance(record, Gap):
        yield "count", record.count or 0


def _common_misfit(seq: int) -> str:
    return f"seq, t or mono is not an integer below 2^53 (seq {_short(seq)})"


def _common_fits(record: Record | _Common) -> bool:
    """Whether seq, t and mono are integers that every reader can hold; seq may not be negative."""
    return (
        0 <= record.seq < INT_LIMIT
        and -INT_LIMIT < record.t < INT_LIMIT
        and -INT_LIMIT < record.mono < INT_LIMIT
    )  # fmt: skip


def _decode_odd(line: bytes, error: BaseException) -> Unknown:
    """What the line is when no known type fits it: an unknown type, or damage with the reason `error` gives."""
    raw = line.rstrip(b"\r\n")
    try:
        common = _COMMON.decode(raw)
    except UNREADABLE as common_error:
        return _damaged(raw, _reason(raw, common_error))
    if not _common_fits(common):
        return _damaged(raw, _common_misfit(common.seq))
    if common.type in RECORD_TYPES:
        return _damaged(
            raw, f"{_article(common.type)} `{common.type}` record whose fields do not fit: {_plain(error)}", common
        )
    return Unknown(type=common.type, raw=raw, src=common.src, seq=common.seq, t=common.t, mono=common.mono)


def _damaged(line: bytes, reason: str, common: _Common | None = None) -> Damaged:
    raw = line.rstrip(b"\r\n")
    if common is None:
        return Damaged(type="", raw=raw, src="", seq=NOT_TOLD, t=NOT_TOLD, mono=NOT_TOLD, reason=reason)
    return Damaged(
        type=common.type, raw=raw, src=common.src, seq=common.seq, t=common.t, mono=common.mono, reason=reason
    )


def _reason(raw: bytes, error: BaseException) -> str:
    """Why a line is no record, in words of the format rather than of the decoder."""
    if not raw.strip():
        return "an empty line"
    if raw.strip(b"\0") == b"":
        return "zero bytes"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return _plain(error)
    return f"not JSON: {_plain(error)}"


def _plain(error: BaseException) -> str:
    """A decoder's message as a clause: `$.tree.parents` becomes a field name, no full stop, bounded length."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = _WHERE.sub(lambda m: f" in `{m[1]}`" if m[1] else "", str(error)).rstrip(".")
    return (text[:1].lower() + text[1:])[:200]


def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" else "a"


def _short(value: int) -> str:
    """An integer of any size in a few characters; str() of a huge one raises."""
    return str(value) if abs(value) < 10**20 else f"of {value.bit_length()} bits"
