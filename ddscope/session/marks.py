"""A person's marks beside a finished trace: `NAME.marks.jsonl`, a small trace of its own.

A finished trace ends in a footer with the hash of all before it, and a growing one belongs to whoever writes it, so a
replay never appends to the file it shows. While live, marks go into the spool like every other record.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from ddscope import __version__
from ddscope.model import FORMAT, VERSION, Header, Mark, Position, Producer
from ddscope.trace import TraceError, TraceFile, TraceWriter

SOURCE = "viewer"


def now() -> tuple[int, int]:
    """(µs since the epoch, µs of the monotonic clock)."""
    return time.time_ns() // 1000, time.monotonic_ns() // 1000


def viewer_header(seq: int = 0) -> Header:
    """The header of a file that the viewer begins itself."""
    t, mono = now()
    version = ".".join(map(str, VERSION))
    return Header(
        src=SOURCE,
        seq=seq,
        t=t,
        mono=mono,
        format=FORMAT,
        version=version,
        min_reader=f"{VERSION[0]}.0",
        producer=Producer("ddscope", __version__),
        host=socket.gethostname(),
    )


def marks_path(trace: Path) -> Path:
    """Where the marks of a trace are kept."""
    return trace.with_name(trace.name + ".marks.jsonl")


class MarksBeside:
    """The marks of one trace file, read once and appended to. When they cannot be read, `trouble` says why."""

    def __init__(self, trace: Path) -> None:
        self.path = marks_path(trace)
        self.trouble: str | None = None
        self._marks: list[Mark] = []
        self._next_seq = 0
        if self.path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def all(self) -> tuple[Mark, ...]:
        """In the order they were made."""
        return tuple(self._marks)

    def add(self, text: str, at: Position) -> Mark:
        """Keep one mark. Raises TraceError, with the reason, when it cannot be written."""
        if self.trouble is not None:
            raise TraceError(f"The mark was not kept: {self.trouble}")
        with TraceWriterWithoutFooter(self.path) as writer:
            if not writer.offset:
                writer.write(viewer_header())
                self._next_seq = 1
            t, mono = now()
            mark = Mark(src=SOURCE, seq=self._next_seq, t=t, mono=mono, text=text, at=at)
            writer.write(mark)
        self._next_seq += 1
        self._marks.append(mark)
        return mark

    def _read(self) -> None:
        try:
            with TraceFile(self.path, use_sidecar=False) as trace:
                while trace.poll(1.0):
                    pass
                records = [trace.record(i) for i in range(trace.index.n)]
        except TraceError as error:
            self.trouble = str(error)
            return
        self._marks = [record for record in records if isinstance(record, Mark)]
        self._next_seq = 1 + max((record.seq for record in records if record.src == SOURCE), default=-1)


class TraceWriterWithoutFooter(TraceWriter):
    """An appending writer whose file goes on growing, so leaving it writes no footer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, append=True)

    def __exit__(self, *_: object) -> None:
        self.close(footer=False)
