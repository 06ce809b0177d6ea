"""The few fields of a line that the index needs, decoded without the rest.

msgspec skips what a Struct does not name, which is what makes 100 k steps index in seconds: the payload is only parsed
when somebody looks at it. Full records are `ddscope.trace.codec`.
"""

from __future__ import annotations

from typing import Annotated, Union

import msgspec

from ddscope.model import RECORD_TYPES
from ddscope.trace.codec import INT_LIMIT, Damaged, Unknown, decode

Seq = Annotated[int, msgspec.Meta(ge=0, lt=INT_LIMIT)]
Num = Annotated[int, msgspec.Meta(gt=-INT_LIMIT, lt=INT_LIMIT)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Head(msgspec.Struct, tag_field="type", gc=False):
    """What every record has. Subclasses add what their columns need; gc off because a head holds no cycles."""

    src: str
    seq: Seq
    t: Num
    mono: Num


class TreeHead(msgspec.Struct, gc=False):
    """Only how many nodes there are. Raw, because counting commas is cheaper than making ints."""

    parents: msgspec.Raw


class TimeHead(msgspec.Struct, gc=False):
    total: Num | None = None
    commit: Num | None = None


class FlagsHead(msgspec.Struct, gc=False):
    nonfinite: dict[str, int] | None = None
    graph: bool | None = None
    overlap: bool | None = None
    sampled: bool | None = None
    truncated: bool | None = None


class StepHead(Head, tag="step", gc=False):
    rid: str
    step: Num
    path: list[int] | None = None
    emitted: list[int] | None = None
    tree: TreeHead | None = None
    time: TimeHead | None = None
    flags: FlagsHead | None = None


class RequestHead(Head, tag="request", gc=False):
    rid: str


class FinishHead(Head, tag="finish", gc=False):
    rid: str
    emitted: Count


class LogHead(Head, tag="log", gc=False):
    priority: int | None = None


class OkHead(Head, tag="tensor", gc=False):
    ok: bool | None = None


class ProbeHead(Head, tag="probe", gc=False):
    ok: bool | None = None


class GapHead(Head, tag="gap", gc=False):
    of: str
    count: Count | None


_SPECIAL = (StepHead, RequestHead, FinishHead, LogHead, OkHead, ProbeHead, GapHead)
_NAMED = {cls.__struct_config__.tag for cls in _SPECIAL}
_PLAIN = tuple(
    msgspec.defstruct(f"{name.capitalize()}Head", [], bases=(Head,), tag=name, gc=False)
    for name in RECORD_TYPES
    if name not in _NAMED
)

HEAD_CLASSES: tuple[type[Head], ...] = (*_SPECIAL, *_PLAIN)
KIND_OF_CLASS: dict[type, str] = {cls: str(cls.__struct_config__.tag) for cls in HEAD_CLASSES} | {
    Unknown: "unknown",
    Damaged: "damaged",
}

AnyHead = Head | Unknown

decode_strict = msgspec.json.Decoder(Union[HEAD_CLASSES]).decode  # type: ignore[arg-type]  # noqa: UP007
"""The head of one line; raises what `codec.UNREADABLE` lists."""


def decode_head(line: bytes) -> AnyHead:
    """The head of one line, or the `Unknown` or `Damaged` that `decode` makes of it. Never raises."""
    try:
        return decode_strict(line)
    except (ValueError, RecursionError, OverflowError) as error:
        record = decode(line)
        if isinstance(record, Unknown):
            return record
        # The full record takes a value that the columns cannot hold, such as a step number beyond 2^53.
        return Damaged(
            type=record.type, raw=line, src=record.src, seq=record.seq, t=record.t, mono=record.mono, reason=str(error)
        )
