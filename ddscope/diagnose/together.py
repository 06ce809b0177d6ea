"""Several files as one: traces, journals and logs merged by time into one diagnosis. Which is which is told by content.

Engines of a second trace that call themselves what one of the first does become `engine/0#2`; an entry that two
journals hold is taken once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from ddscope.diagnose.base import Finding
from ddscope.diagnose.diagnosis import Diagnosis, diagnose
from ddscope.model import Gap, Log, Mark, Record

_SHIFT = 40  # a record's number in its file is below this many bits; the file's own number is above
CURSORS = 1 << 16  # of entries read last, to find those that another file holds too

_Numbered = tuple[int, int, Record]


def diagnose_files(paths: Sequence[str | Path]) -> list[Finding]:
    """Ranked findings of all files together.

    Raises ddscope.trace.TraceError or ddscope.sources.SourceError, with one sentence, when one cannot be read.
    """
    from ddscope.sources.recorded import Recorded, kind_of

    files = list(dict.fromkeys(Path(path) for path in paths))
    kinds = [kind_of(path) for path in files]
    if kinds == ["trace"]:
        return diagnose(files[0])
    recorded = Recorded()
    taken: set[str] = set()
    diagnosis = Diagnosis()
    with ExitStack() as stack:
        streams: list[Iterator[_Numbered]] = []
        for place, (path, kind) in enumerate(zip(files, kinds, strict=True)):
            records = _trace(path, taken, stack) if kind == "trace" else enumerate(recorded.read(path, kind))
            streams.append(_in_order(records, place))
        seen: dict[str, None] = {}
        for _, index, record in heapq.merge(*streams, key=lambda numbered: numbered[0]):
            if len(files) > 1 and isinstance(record, Log) and record.cursor is not None:
                key = f"{record.src} {record.cursor}"
                if key in seen:
                    continue
                seen[key] = None
                if len(seen) > CURSORS:
                    del seen[next(iter(seen))]
            diagnosis.observe(record, index)
    return [_placed(finding, files) for finding in diagnosis.findings()]


def _trace(path: Path, taken: set[str], stack: ExitStack) -> Iterator[tuple[int, Record]]:
    """The records of a trace under names that no trace before has."""
    from ddscope.trace import TraceFile

    trace = stack.enter_context(TraceFile(path))
    while trace.poll(1.0):
        pass
    names: dict[str, str] = {}
    for src in trace.index.sources:
        names[src] = src if src not in taken or not src.startswith("engine") else _free(src, taken)
    taken.update(names.values())
    renamed = {src: name for src, name in names.items() if src != name}

    def records() -> Iterator[tuple[int, Record]]:
        for number in range(trace.index.n):
            record = trace.record(number)
            if isinstance(record, Record):
                yield number, _renamed(record, renamed) if renamed else record

    return records()


def _free(src: str, taken: set[str]) -> str:
    number = 2
    while f"{src}#{number}" in taken:
        number += 1
    return f"{src}#{number}"


def _renamed(record: Record, names: dict[str, str]) -> Record:
    if isinstance(record, Gap) and record.of in names:
        record = replace(record, of=names[record.of])
    elif isinstance(record, Mark) and record.at.src in names:
        record = replace(record, at=replace(record.at, src=names[record.at.src]))
    return replace(record, src=names[record.src]) if record.src in names else record


def _in_order(records: Iterator[tuple[int, Record]], place: int) -> Iterator[_Numbered]:
    """A file keeps its own order: a record that is older than one before it goes with that one."""
    latest = 0
    for number, record in records:
        latest = max(latest, record.t)
        yield latest, place << _SHIFT | number, record


def _placed(finding: Finding, files: list[Path]) -> Finding:
    """Record numbers as numbers of a file, with the file's name where there are several."""
    evidence = []
    for shown in finding.evidence:
        if shown.record is not None:
            place, number = shown.record >> _SHIFT, shown.record & ((1 << _SHIFT) - 1)
            shown = shown.with_(record=number, file=str(files[place]) if len(files) > 1 else "")
        evidence.append(shown)
    return finding.with_(evidence=tuple(evidence))
