"""Whether a file is a trace that this version may read: its first line, and the sentence when it is not."""

from __future__ import annotations

import re

import msgspec

from ddscope.model import FORMAT, VERSION, Header
from ddscope.trace.codec import UNREADABLE, Damaged, decode
from ddscope.trace.errors import NewerFormatError, TraceError
from ddscope.trace.lines import MAX_LINE, read_at

_FIRST_READ = 1 << 16
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)


class _Opening(msgspec.Struct, frozen=True):
    """As much of a header as every version has."""

    type: str
    format: str
    min_reader: str


_OPENING = msgspec.json.Decoder(_Opening)


def first_line(fd: int) -> tuple[bytes, bool]:
    """(the first line, whether it is whole). A line that never ends is given as far as a record may reach."""
    want = _FIRST_READ
    while True:
        data = read_at(fd, want, 0)
        line, newline, _ = data.partition(b"\n")
        if newline:
            return line, True
        if len(data) < want or want > MAX_LINE:
            return data, False
        want *= 4


def read_header(fd: int, name: str, *, growing: bool = False) -> Header | None:
    """The header of the open file called `name`; None while a growing file does not hold it whole.

    Raises TraceError, in one sentence, when it is no trace or needs a newer reader.
    """
    line, whole = first_line(fd)
    if whole:
        return parse_header(line, name)
    if growing and (not line or _may_become_header(line)):
        return None
    if not line:
        raise TraceError(f"{name} is empty: a trace begins with a header line.")
    if not _may_become_header(line):
        raise TraceError(f"{name} is not a ddscope trace: its first line is no header.")
    raise TraceError(f"{name} ends inside its header (file cut at byte {len(line):,}): no record is left.")


def parse_header(line: bytes, name: str) -> Header:
    """The header in the first line of the trace called `name`. Raises TraceError as `read_header` does."""
    try:
        opening = _OPENING.decode(line)
    except UNREADABLE:
        opening = None
    if opening is None or opening.type != "header" or opening.format != FORMAT:
        raise TraceError(f"{name} is not a ddscope trace: its first line is no header.")
    needed = _VERSION.fullmatch(opening.min_reader)
    if needed is None:
        raise TraceError(f"{name} does not say which reader it needs: min_reader is {opening.min_reader!r:.60}.")
    if (int(needed[1]), int(needed[2])) > VERSION:
        own = ".".join(map(str, VERSION))
        raise NewerFormatError(
            f"{name} needs a reader of trace format {needed[1]}.{needed[2]}, and this ddscope reads {own}: upgrade it."
        )
    header = decode(line)
    if not isinstance(header, Header):
        reason = header.reason if isinstance(header, Damaged) else f"it is a `{header.type}`"
        raise TraceError(f"The header of {name} cannot be read: {reason}.")
    return header


def _may_become_header(line: bytes) -> bool:
    """Whether a line without its end could be the beginning of a header, whatever the order of its fields."""
    if not line.lstrip().startswith(b"{") or b"\0" in line:
        return False
    start = b'{"type":"header"'
    return line[: len(start)] == start[: len(line)] or b'"type"' not in line or b'"header"' in line
