"""`NAME.ddx`: the columns of an index, kept beside its file. A cache: whatever is wrong with one, it is built again.

Layout: a line with the checksum of all that follows, one line of JSON (`_Front`), the columns as machine words of the
host that wrote them, the record numbers by kind and by request. Nothing is trusted before checksum and ranges fit.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from array import array
from pathlib import Path
from typing import BinaryIO

import msgspec

from ddscope.trace.codec import UNREADABLE
from ddscope.trace.index import COLUMNS, RECORD_KINDS, Interned, TraceIndex

FORMAT = "ddscope-index-1"
_HEAD = 1 << 16  # bytes of the file's beginning that are hashed
_TAIL = 1 << 12  # and of its end, as far as it was indexed
_MAX_FRONT = 1 << 26
_CHECKSUM = 9  # bytes: eight hexadecimal digits and the newline


class _Front(msgspec.Struct, kw_only=True):
    """The line of JSON. size, mtime_ns: of the trace when this was written; head, tail: hashes of its bytes."""

    format: str
    layout: str
    size: int
    mtime_ns: int
    head: str
    tail: str
    n: int
    end: int
    sources: list[str]
    rids: list[str]
    received: list[int]
    dropped: list[int]
    earlier: list[int]
    last_seq: list[int]
    by_kind: list[int]
    steps_of: list[tuple[int, int]]  # (number of the rid, how many steps), in the order they follow


def path_of(path: Path) -> Path:
    """Where the sidecar of a trace lies."""
    return path.with_name(path.name + ".ddx")


def save(path: Path, index: TraceIndex, fd: int) -> bool:
    """Write the index of the open trace `fd` to `path`, all or nothing; False when the folder does not take it."""
    columns: list[array[int]] = [getattr(index, name) for name in COLUMNS]
    columns += [index.by_kind[name] for name in RECORD_KINDS]
    columns += index.steps_of.values()
    parts = [memoryview(column).cast("B") for column in columns if column]
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        front = msgspec.json.encode(_front(index, fd)) + b"\n"
        checksum = zlib.crc32(front)
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        with open(temporary, "xb") as file:
            file.write(b"%08x\n" % checksum + front)
            file.writelines(parts)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        return False
    finally:
        for part in parts:
            part.release()  # a column with a view on it cannot grow
    return True


def load(path: Path, fd: int) -> TraceIndex | None:
    """The index that `path` keeps of the open trace `fd`; None unless all of it fits that file."""
    try:
        with open(path, "rb") as file:
            checksum = file.readline(_CHECKSUM)
            line = file.readline(_MAX_FRONT)
            front = msgspec.json.decode(line, type=_Front)
            if not _fits(front, fd) or os.fstat(file.fileno()).st_size - file.tell() != _body_size(front):
                return None
            index, found = _read_columns(front, file, zlib.crc32(line))
    except (OSError, EOFError, *UNREADABLE):
        return None
    return index if checksum == b"%08x\n" % found and _sound(index, front) else None


def _layout() -> str:
    """What must agree between writer and reader: byte order, word sizes, columns, kinds."""
    sizes = {code: array(code).itemsize for code in sorted({*COLUMNS.values(), "I"})}
    return f"{sys.byteorder} {sizes} {COLUMNS} {RECORD_KINDS}"


def _front(index: TraceIndex, fd: int) -> _Front:
    status = os.fstat(fd)
    sources = range(len(index.sources))
    return _Front(
        format=FORMAT,
        layout=_layout(),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        head=_digest(fd, 0, min(_HEAD, index.end)),
        tail=_digest(fd, max(0, index.end - _TAIL), index.end),
        n=index.n,
        end=index.end,
        sources=index.sources,
        rids=index.rids,
        received=[index.received[number] for number in sources],
        dropped=[index.dropped[number] for number in sources],
        earlier=[index.earlier.get(number, 0) for number in sources],
        last_seq=[index.last_seq.get(number, -1) for number in sources],
        by_kind=[len(index.by_kind[name]) for name in RECORD_KINDS],
        steps_of=[(index.rid_numbers[rid], len(rows)) for rid, rows in index.steps_of.items()],
    )


def _digest(fd: int, start: int, stop: int) -> str:
    return hashlib.sha256(os.pread(fd, stop - start, start)).hexdigest()


def _fits(front: _Front, fd: int) -> bool:
    """Whether the trace is the one that was indexed, grown or not. A file only grows at its end."""
    if front.format != FORMAT or front.layout != _layout():
        return False
    status = os.fstat(fd)
    if not 0 <= front.end <= front.size <= status.st_size:
        return False
    if front.size == status.st_size and front.mtime_ns != status.st_mtime_ns:
        return False
    return (
        _digest(fd, 0, min(_HEAD, front.end)) == front.head
        and _digest(fd, max(0, front.end - _TAIL), front.end) == front.tail
    )


def _body_size(front: _Front) -> int:
    """Bytes behind the first line; -1 when its numbers are nonsense."""
    lists = [*front.by_kind, *(count for _, count in front.steps_of)]
    if front.n < 0 or len(front.by_kind) != len(RECORD_KINDS) or min(lists, default=0) < 0:
        return -1
    return sum(array(code).itemsize for code in COLUMNS.values()) * front.n + array("I").itemsize * sum(lists)


def _read_columns(front: _Front, file: BinaryIO, checksum: int) -> tuple[TraceIndex, int]:
    """The index, column by column so that memory holds it once, and the checksum continued over its bytes."""
    index = TraceIndex()
    index.source_numbers = Interned(front.sources, nothing="")
    index.rid_numbers = Interned(front.rids)
    columns: list[tuple[array[int], int]] = [(getattr(index, name), front.n) for name in COLUMNS]
    columns += [(index.by_kind[name], count) for name, count in zip(RECORD_KINDS, front.by_kind, strict=True)]
    for number, count in front.steps_of:
        rows = (
            index.steps_of.setdefault(front.rids[number], array("I")) if 0 <= number < len(front.rids) else array("I")
        )
        columns.append((rows, count))
    for column, count in columns:
        column.fromfile(file, count)
        checksum = zlib.crc32(column, checksum)
    for number, values in enumerate(zip(front.received, front.dropped, front.earlier, front.last_seq, strict=False)):
        index.received[number], index.dropped[number], index.earlier[number], last = values
        if last >= 0:
            index.last_seq[number] = last
    index.n, index.end = front.n, front.end
    return index, checksum


def _sound(index: TraceIndex, front: _Front) -> bool:
    """Whether every number points into something that exists, so that a made-up sidecar cannot break a reader."""
    n = front.n
    if n == 0 or index.n != n or sum(front.by_kind) != n:
        return False
    if len(front.received) != len(front.sources) or index.offset[-1] + index.length[-1] + 1 != index.end:
        return False
    return (
        max(bytes(index.kind)) < len(RECORD_KINDS)
        and _within(index.src, -1, len(front.sources))
        and _within(index.rid, -1, len(front.rids))
        and _within(index.length, 0, index.end + 1)
        and _within(index.offset, 0, index.end + 1)
        and all(not rows or max(rows) < n for rows in (*index.by_kind.values(), *index.steps_of.values()))
    )


def _within(column: array[int], low: int, stop: int) -> bool:
    return not column or (min(column) >= low and max(column) < stop)
