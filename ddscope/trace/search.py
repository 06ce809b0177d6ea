"""The first paint: the end of a file, or one step of it, found in the bytes before any index exists.

Steps of one request have rising numbers in file order, so a step is found by bisection over byte offsets; what that
cannot find, a scan may. Cost is bounded by time, not by the file's size.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec

from ddscope.model import Record, Step
from ddscope.trace.codec import Unknown, decode
from ddscope.trace.heads import Head, decode_head
from ddscope.trace.lines import BLOCK, MAX_LINE, LongLine, next_lines, read_at
from ddscope.trace.ranks import rank_of

_WINDOW = 1 << 17
_NEAR = 1 << 19  # bytes between the bounds of a bisection from which on reading them all is faster
_SAMPLES = 64  # windows all over a large file that are looked at for a request before it is read backwards
_STEP_LINE = b'"type":"step"'


def tail(fd: int, size: int, n: int) -> list[tuple[int, Record | Unknown]]:
    """(offset, record) of the last n whole records, oldest first. Reads about as many bytes as they have."""
    if n <= 0:
        return []
    start, blocks, newlines, want = size, [], 0, 1 << 16
    while start > 0 and newlines <= n:
        want = min(want, start)
        start -= want
        block = read_at(fd, want, start)
        blocks.append(block)
        newlines += block.count(b"\n")
        want = min(want * 2, MAX_LINE)
    data = b"".join(reversed(blocks))
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.split(b"\n")[:-1]
    if start > 0:
        lines = lines[1:]  # the first one may have begun earlier
    offset = start + len(whole)
    found: list[tuple[int, Record | Unknown]] = []
    for line in reversed(lines[-n:]):
        offset -= len(line) + 1
        found.append((offset, decode(line)))
    found.reverse()
    return found


def newest_step(fd: int, size: int, step: int, rid: str | None, deadline: float) -> tuple[int, Step] | None:
    """(offset, record) of the newest step of that number, by bisection; None when that way does not find one."""
    end = size if rid is None else _after_last_sample(fd, size, rid)
    while time.perf_counter() < deadline:
        last = _last_step(fd, end, rid, deadline)
        if last is None:
            return None
        offset, head = last
        if head.step >= step:
            found = _bisect(fd, offset, head, step, deadline)
            if found is not None or rid is not None:
                return found
        elif rid is not None:
            return None
        end = _beginning(fd, offset, head, deadline)
    return None


def scan_steps(fd: int, size: int, step: int, rid: str | None, deadline: float) -> list[tuple[int, Record]]:
    """(offset, record) of every step of that number, reading from the front until the deadline."""
    wanted = re.compile(rb'"step"\s*:\s*%d\b' % step).search
    found: list[tuple[int, Record]] = []
    offset = 0
    while offset < size:
        lines = next_lines(fd, offset, size, 4 * BLOCK)
        if lines is None:
            break
        if isinstance(lines, LongLine):
            offset += lines.length + 1
            continue
        for line in lines:
            if wanted(line):
                record = decode(line)
                if isinstance(record, Step) and record.step == step and rid in (None, record.rid):
                    found.append((offset, record))
            offset += len(line) + 1
        if time.perf_counter() >= deadline:
            break
    return found


def _after_last_sample(fd: int, size: int, rid: str) -> int:
    """An offset that the request's last step is likely to lie before; the file's size when no sample meets it."""
    if size < _SAMPLES * 4 * _WINDOW:
        return size
    needle = b'"rid":' + msgspec.json.encode(rid)
    for i in reversed(range(_SAMPLES)):
        if needle in read_at(fd, _WINDOW // 4, size * i // _SAMPLES):
            return min(size, size * (i + 1) // _SAMPLES + _WINDOW // 4)
    return size


def _last_step(fd: int, end: int, rid: str | None, deadline: float) -> tuple[int, Head] | None:
    """(offset, head) of the last step line (of a request) that begins before `end`."""
    needle = _STEP_LINE if rid is None else b'"rid":' + msgspec.json.encode(rid)
    while end > 0 and time.perf_counter() < deadline:
        start = max(0, end - 4 * _WINDOW)
        data = read_at(fd, end - start, start)
        at = data.rfind(needle)
        while at >= 0:
            line_start, line = _line_around(fd, start + at)
            head = _step_head(line)
            if head is not None and rid in (None, head.rid):
                return line_start, head
            at = data.rfind(needle, 0, max(0, line_start - start))
        if start == 0:
            return None
        end = start + len(needle)  # a needle across the border is found next time
    return None


def _line_around(fd: int, at: int) -> tuple[int, bytes]:
    """(offset, bytes) of the line that byte `at` is in; empty when it has no end."""
    start, want = at, 1 << 12
    while start > 0:
        block_start = max(0, start - want)
        newline = read_at(fd, start - block_start, block_start).rfind(b"\n")
        start = block_start
        if newline >= 0:
            start += newline + 1
            break
        want *= 4
    want = 1 << 14
    while want < MAX_LINE:
        data = read_at(fd, want, start)
        newline = data.find(b"\n")
        if newline >= 0:
            return start, data[:newline]
        if len(data) < want:
            break
        want *= 4
    return start, b""


def _bisect(fd: int, offset: int, head: Head, step: int, deadline: float) -> tuple[int, Step] | None:
    """The step of head's request, which lies at or before `offset`, where head is and head.step ≥ step."""
    rid = head.rid
    low, high, above = 0, offset, head.step
    bytes_a_step = 0.0
    guess = True
    while above > step and high - low > _NEAR and time.perf_counter() < deadline:
        middle = (low + high) // 2
        if guess and bytes_a_step:
            middle = int(high - (above - step) * bytes_a_step - _WINDOW / 2)
            middle = min(max(middle, low), high - _WINDOW)
        guess = not guess  # every other time the halves, in case the lines have no even size
        seen = _steps_from(fd, middle, high, rid)
        if not seen:
            low = middle + _WINDOW  # before the request began
            continue
        if len(seen) > 1 and seen[-1][1] > seen[0][1]:
            bytes_a_step = (seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1])
        if seen[0][1] > step:
            high, above = seen[0]
        elif seen[-1][1] < step:
            low = seen[-1][0]
        else:
            low, high = seen[0][0], seen[-1][0]
            break
    return _exact(fd, high if above == step else low, high, rid, step, deadline)


def _exact(fd: int, low: int, high: int, rid: str | None, step: int, deadline: float) -> tuple[int, Step] | None:
    """The last step of that number whose line begins between low and high, both included."""
    found = None
    for offset, line in _lines_between(fd, low, high + MAX_LINE):
        if offset > high or time.perf_counter() >= deadline:
            break
        head = _step_head(line)
        if head is not None and head.step == step and head.rid == rid:
            record = decode(line)
            if isinstance(record, Step):
                found = offset, record
    return found


def _beginning(fd: int, offset: int, head: Head, deadline: float) -> int:
    """Where the steps of head's request begin, or a little before: an offset at a line's start."""
    low, high = 0, offset
    while high - low > _WINDOW and time.perf_counter() < deadline:
        middle = (low + high) // 2
        seen = _steps_from(fd, middle, high, head.rid)
        if seen:
            high = seen[0][0] if seen[0][0] < high else middle
        else:
            low = middle + _WINDOW
    first = next((at for at, line in _lines_between(fd, low, high) if _is_of(line, head.rid)), None)
    return high if first is None else first


def _is_of(line: bytes, rid: str | None) -> bool:
    head = _step_head(line)
    return head is not None and head.rid == rid


def _steps_from(fd: int, start: int, end: int, rid: str | None) -> list[tuple[int, int]]:
    """(offset, step number) of the request's steps in a window behind `start`."""
    seen = []
    for offset, line in _lines_between(fd, start, min(end, start + _WINDOW)):
        head = _step_head(line)
        if head is not None and head.rid == rid:
            seen.append((offset, head.step))
    return seen


def _step_head(line: bytes) -> Head | None:
    """The head of a step; not of one that another rank repeats, because those stand in an order of their own."""
    if b'"step"' not in line:
        return None
    head = decode_head(line)
    if head.tree is None and rank_of(head.src):
        return None
    return head if head.type == "step" and head.rid is not None else None


def _lines_between(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of whole lines from `start` to `end`; a line that began before `start` is left out."""
    offset = start
    if start > 0:
        before = read_at(fd, _WINDOW, start - 1)
        newline = before.find(b"\n")
        if newline < 0:
            return
        offset = start + newline
    while offset < end:
        data = read_at(fd, min(end - offset, BLOCK), offset)
        stop = data.rfind(b"\n")
        if stop < 0:
            lines = next_lines(fd, offset, end)
            if lines is None or isinstance(lines, LongLine):
                return
        else:
            lines = data[:stop].split(b"\n")
        for line in lines:
            yield offset, line
            offset += len(line) + 1
