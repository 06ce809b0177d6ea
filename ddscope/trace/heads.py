"""The few fields of a line that the index and the tally need, decoded without the rest.

msgspec skips what a Struct does not name, which is what makes 100 k steps index in seconds: the payload is only parsed
when somebody looks at it. One Struct serves all types, because that decodes faster than a tagged union and lets a
column be taken from a whole batch at once. Full records are `ddscope.trace.codec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ddscope.model import Step
from ddscope.trace.codec import INT_LIMIT, UNREADABLE, Damaged, Unknown, decode, encode

Seq = Annotated[int, msgspec.Meta(ge=0, lt=INT_LIMIT)]
Num = Annotated[int, msgspec.Meta(gt=-INT_LIMIT, lt=INT_LIMIT)]


class TreeHead(msgspec.Struct, gc=False):
    """Only how many nodes there are. Raw, because counting commas is cheaper than making ints."""

    parents: msgspec.Raw

    def nodes(self) -> int:
        """Nodes without the root."""
        text = bytes(self.parents)
        commas = text.count(b",")
        return commas + 1 if commas or text.strip(b"[] \t\r\n") else 0


class TimeHead(msgspec.Struct, gc=False):
    """Whole step and commit, µs."""

    total: Seq | None = None
    commit: Seq | None = None


class FlagsHead(msgspec.Struct, gc=False):
    """As `ddscope.model.Flags`."""

    nonfinite: dict[str, int] | None = None
    graph: bool | None = None
    overlap: bool | None = None
    sampled: bool | None = None
    truncated: bool | None = None


class Head(msgspec.Struct, gc=False):
    """The common fields, then what only some types have, under the name it has there.

    path defaults to the empty tuple so that `len(path) - 1` is the -1 of an unknown accepted length. gc is off because
    a head holds no cycle and a million of them would keep the collector busy.
    """

    type: str
    src: str
    seq: Seq
    t: Num
    mono: Num
    rid: str | None = None
    step: Seq = -1
    path: Sequence[int] = ()
    emitted: Sequence[int] | Seq = -1
    tree: TreeHead | None = None
    time: TimeHead | None = None
    flags: FlagsHead | None = None
    priority: int | None = None
    ok: bool | None = None
    of: str | None = None
    count: Seq | None = None


class DamagedHead(Head, gc=False):
    """The head of a line that is no record; what it does not tell is "" and -1, as in `codec.Damaged`."""

    reason: str = ""


decode_strict = msgspec.json.Decoder(Head).decode
"""The head of one line as it stands, which may miss what its type requires. Raises what `codec.UNREADABLE` lists."""


def decode_head(line: bytes) -> Head:
    """The head of any line; a `DamagedHead` where the line is no record. Never raises."""
    try:
        head = decode_strict(line)
    except UNREADABLE:
        return _careful_head(line)
    return _careful_head(line) if doubtful(head) else head


def decode_heads(lines: Sequence[bytes]) -> list[Head]:
    """The heads of many lines, at the speed of one call where nothing is odd. Each is as `decode_head` gives it, or is
    `doubtful` and not yet looked at again."""
    try:
        return list(map(decode_strict, lines))
    except UNREADABLE:
        return list(map(decode_head, lines))


def doubtful(head: Head) -> bool:
    """Whether books would go wrong if the record behind the head were damaged: a step must have what finds it again,
    and a gap, which is rare, stands for other records."""
    return head.type == "gap" or (head.type == "step" and (head.rid is None or head.step < 0))


def _careful_head(line: bytes) -> Head:
    """By way of the whole record: fields of other types cannot get in the way, and damage gets a reason."""
    record = decode(line)
    common = {"type": record.type, "src": record.src, "seq": record.seq, "t": record.t, "mono": record.mono}
    if isinstance(record, Damaged):
        return DamagedHead(**common, reason=record.reason)  # type: ignore[arg-type]
    if isinstance(record, Unknown):
        return Head(**common)  # type: ignore[arg-type]
    # Encoding drops the fields that this type does not have and keeps the nulls out.
    try:
        return decode_strict(encode(record))
    except UNREADABLE:  # a number that JSON readers accept and writers do not, somewhere in the payload
        head = Head(**common)  # type: ignore[arg-type]
        if isinstance(record, Step):
            head.rid, head.step = record.rid, record.step
        return head
