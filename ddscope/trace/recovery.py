"""`recover`: a copy of everything in a damaged trace that can be read, byte for byte, with a footer that is true.

The source is never touched. What a damaged line took with it stands in the copy as a `gap`, so that the copy keeps the
invariants that the loss broke.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from ddscope import __version__
from ddscope.model import FORMAT, VERSION, Footer, Gap, Header, Producer, Record
from ddscope.trace.codec import Damaged, Unknown, decode, encode
from ddscope.trace.errors import NewerFormatError, TraceError
from ddscope.trace.lines import LongLine, each_line, open_for_reading
from ddscope.trace.opening import read_header
from ddscope.trace.report import Problem
from ddscope.trace.sequence import Sequences, footer_problems
from ddscope.trace.writer import TraceWriter

REASON = "damaged"
"""`reason` of a gap that stands for records whose lines could not be read."""


SOURCE = "recover"
"""`src` of a header that had to be made; no other source is renumbered by it."""

_BATCH = 1 << 20


class RecoverReport(msgspec.Struct):
    """What became of a file. kept: records copied; unknown, odd: those of them whose type this version does not know,
    and those whose fields do not fit their type.

    lost: lines that are no records, with their place in the source.    gaps: records put in for them.
    header_made: the source's own header was not readable.    footer_made: the copy has a new footer.
    """

    path: str
    out: str
    kept: int = 0
    unknown: int = 0
    odd: int = 0
    lost: list[Problem] = []
    lost_bytes: int = 0
    gaps: int = 0
    header_made: bool = False
    footer_made: bool = False

    def summary(self) -> str:
        """What happened, in a sentence or two."""
        lost = "nothing was lost"
        if self.lost:
            what = "line" if len(self.lost) == 1 else "lines"
            places = ", ".join(f"byte {problem.offset:,} ({problem.text})" for problem in self.lost[:3])
            more = f" and {len(self.lost) - 3:,} more" if len(self.lost) > 3 else ""
            lost = f"{len(self.lost):,} {what} of {self.lost_bytes:,} bytes could not be read: {places}{more}"
        made = [
            *(["a new header, because its own could not be read"] if self.header_made else []),
            *(["a new footer"] if self.footer_made else []),
            *([f"{self.gaps:,} gap records for what is missing"] if self.gaps else []),
        ]
        added = f" Added: {', '.join(made)}." if made else ""
        return f"{self.kept:,} records of {self.path} are in {self.out}; {lost}.{added}"


def recover(src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> RecoverReport:
    """Copy every whole readable line of `src` to the new file `dst`, unknown types included, and write a footer.

    A sound and finished trace is copied as it is. Raises TraceError when src cannot be read, needs a newer reader or
    holds no record, or when dst exists or cannot be written; then no dst is left behind.
    """
    source, target = Path(src), Path(dst)
    fd = open_for_reading(source)
    try:
        size = os.fstat(fd).st_size
        header = _own_header(fd, size, str(source))
        if target.exists():
            raise TraceError(f"{target} already exists: name another file to recover to.")
        writer = TraceWriter(target)
        try:
            report = _Copy(fd, size, writer, RecoverReport(str(source), str(target))).run(header)
        except BaseException:
            writer.close(footer=False)
            target.unlink(missing_ok=True)
            raise
        return report
    finally:
        os.close(fd)


def _own_header(fd: int, size: int, name: str) -> Header | None:
    """The header to put first when the source's own cannot be read, else None. Raises TraceError as `recover` does."""
    try:
        read_header(fd, name)
        return None
    except NewerFormatError:
        raise
    except TraceError:
        for _, line in each_line(fd, size):
            record = None if isinstance(line, LongLine) else decode(line)
            if record is not None and not isinstance(record, Damaged):
                return _made_header()
        raise


def _made_header() -> Header:
    version = ".".join(map(str, VERSION))
    return Header(
        src=SOURCE,
        seq=0,
        t=time.time_ns() // 1000,
        mono=time.monotonic_ns() // 1000,
        format=FORMAT,
        version=version,
        min_reader=f"{VERSION[0]}.0",
        producer=Producer("ddscope recover", __version__),
        host=os.uname().nodename,
    )


class _Copy:
    """One pass from the source to the writer. Lines are handed over in batches; the books are kept line by line."""

    def __init__(self, fd: int, size: int, writer: TraceWriter, report: RecoverReport) -> None:
        self.fd = fd
        self.size = size
        self.writer = writer
        self.report = report
        self.sequences = Sequences()
        self.batch: list[bytes] = []
        self.waiting = 0  # bytes in the batch
        self.left_out = 0  # lines so far that are not in the copy
        self.left_out_at: dict[str, int] = {}  # source → that number at its last record
        self.finished = False  # the last line of the copy is a footer

    def run(self, header: Header | None) -> RecoverReport:
        report = self.report
        if header is not None:
            report.header_made = True
            self._put(encode(header)[:-1], header)
        number = end = 0
        for number, (offset, line) in enumerate(each_line(self.fd, self.size), 1):
            length = line.length if isinstance(line, LongLine) else len(line)
            end = offset + length + 1
            if isinstance(line, LongLine):
                self._lose(offset, number - 1, line.reason, end - offset)
                continue
            record = decode(line)
            if isinstance(record, Damaged) and not record.src:
                self._lose(offset, number - 1, record.reason, end - offset)
            elif isinstance(record, Footer) and not self._true(record):
                self.left_out += 1
            else:
                self._keep(line, record)
        if end < self.size:
            self._lose(end, number, f"the file ends inside it, at byte {self.size:,}", self.size - end)
        self._flush()
        report.footer_made = not self.finished
        self.writer.close(footer=report.footer_made)
        return report

    def _lose(self, offset: int, number: int, reason: str, length: int) -> None:
        self.report.lost.append(Problem(offset, number, reason))
        self.report.lost_bytes += length
        self.left_out += 1

    def _true(self, footer: Footer) -> bool:
        """Whether a footer of the source says of the copy what it said of the source."""
        self._flush()
        return not footer_problems(footer, self.writer.sha256, self.sequences)

    def _keep(self, line: bytes, record: Record | Unknown) -> None:
        self._cover(record)
        self._put(line, record)
        self.report.kept += 1
        if isinstance(record, Damaged):
            self.report.odd += 1
        elif isinstance(record, Unknown):
            self.report.unknown += 1

    def _cover(self, record: Record | Unknown) -> None:
        """A gap before the record when lines that were left out can explain the hole before its seq."""
        src = record.src
        if self.left_out == self.left_out_at.get(src, 0):
            return
        begin = 0 if record.type == "header" else self.sequences.next_seq(src)
        first = record.seq
        if isinstance(record, Gap) and record.count is not None and record.of == src:
            first -= record.count - 1
        if first > begin:
            gap = Gap(
                src=src, seq=first - 1, t=record.t, mono=record.mono, of=src, count=first - begin, reason=REASON
            )  # fmt: skip
            self._put(encode(gap)[:-1], gap)
            self.report.gaps += 1

    def _put(self, line: bytes, record: Record | Unknown) -> None:
        self.sequences.observe(record)
        self.left_out_at[record.src] = self.left_out
        self.finished = isinstance(record, Footer)
        self.batch.append(line)
        self.waiting += len(line) + 1
        if self.waiting >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self.batch:
            self.writer.write_lines(b"\n".join(self.batch) + b"\n")
            self.batch.clear()
            self.waiting = 0
