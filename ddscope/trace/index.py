"""The index of a trace: parallel columns, a few machine words a record, no payloads and no files.

`TraceFile` feeds it whole lines in order; the sidecar stores its columns. One thread may read while another appends:
`n` moves last, and a column may already be longer.
"""

from __future__ import annotations

from array import array
from collections import Counter as Tally
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ddscope.model import RECORD_TYPES
from ddscope.trace.heads import DamagedHead, FlagsHead, Head, decode_head, decode_heads, doubtful

RECORD_KINDS: tuple[str, ...] = (*RECORD_TYPES, "unknown", "damaged")
"""Names of the numbers in `TraceIndex.kind`."""
KIND: dict[str, int] = {name: number for number, name in enumerate(RECORD_KINDS)}

NONFINITE = 1  # step: NaN or ±inf logits were seen
TRUNCATED = 2  # step: the text ended inside it
SAMPLED = 4  # step: temperature > 0
NOT_OK = 8  # tensor or probe with ok false
GRAPH = 16  # step ran under a CUDA graph
OVERLAP = 32  # step ran under overlap scheduling
UNCOMMITTED = 64  # step has times but none for its commit: a breakpoint stopped it
UNKNOWN_COUNT = 128  # gap that does not know how much is missing
PRIORITY_SHIFT = 8  # log: bits 8 to 11 hold syslog priority + 1, 0 when the record has none

# Column name → array type code. The order is the sidecar's.
COLUMNS: dict[str, str] = {
    "offset": "q", "length": "q", "t": "q", "mono": "q", "kind": "B", "src": "i", "seq": "q",
    "rid": "i", "step": "q", "accepted": "i", "emitted": "i", "nodes": "i", "total_us": "q", "flags": "H",
}  # fmt: skip

_STEP, _HEADER, _GAP, _LOG, _FINISH = (KIND[name] for name in ("step", "header", "gap", "log", "finish"))
_UNKNOWN, _DAMAGED = KIND["unknown"], KIND["damaged"]
_CHECKED = {KIND["tensor"], KIND["probe"]}
_INT32 = 2**31 - 1


class _KindNumbers(dict[str, int]):
    """Type of a head → kind; whatever is not in this version is "unknown", also a type with that very name."""

    def __missing__(self, name: str) -> int:
        return _UNKNOWN


_NUMBER_OF_TYPE = _KindNumbers((name, KIND[name]) for name in RECORD_TYPES)
_PRIORITY_BITS = {priority: (priority + 1) << PRIORITY_SHIFT for priority in range(15)}


class Counters(NamedTuple):
    """What one source said and what arrived: emitted = received + dropped wherever the trace keeps its invariants."""

    emitted: int
    received: int
    dropped: int


class Interned(dict[str | None, int]):
    """Strings → small ints, numbered by first use; `names` is the way back. `nothing` is -1."""

    def __init__(self, names: Sequence[str] = (), nothing: str | None = None) -> None:
        super().__init__((name, number) for number, name in enumerate(names))
        self[nothing] = -1
        self.names: list[str] = list(names)

    def __missing__(self, name: str) -> int:
        number = len(self.names)
        self.names.append(name)
        self[name] = number
        return number


class TraceIndex:
    """Columns of equal length, entry i for line i of the file, damaged and unknown lines included.

    offset, length: bytes, newline not counted in length.    t, mono: µs (a damaged line repeats its predecessor's).
    kind: number into RECORD_KINDS.    src: number into `sources`, -1 when damaged beyond telling.    seq: -1 likewise.
    rid: number into `rids` where the record has one, else -1.    step: step number, else -1.
    accepted, nodes, total_us: of steps, -1 when unknown.    emitted: token ids of a step, total of a finish, else -1.
    flags: bit set, see the constants of this module.

    by_kind: type → record numbers.    steps_of: rid → record numbers of its steps, in file order.
    """

    offset: array[int]
    length: array[int]
    t: array[int]
    mono: array[int]
    kind: array[int]
    src: array[int]
    seq: array[int]
    rid: array[int]
    step: array[int]
    accepted: array[int]
    emitted: array[int]
    nodes: array[int]
    total_us: array[int]
    flags: array[int]

    def __init__(self) -> None:
        self.n = 0
        self.end = 0  # bytes of the file that are indexed: always just behind a newline
        for name, code in COLUMNS.items():
            setattr(self, name, array(code))
        self.by_kind: dict[str, array[int]] = {name: array("I") for name in RECORD_KINDS}
        self.steps_of: dict[str, array[int]] = {}
        self.source_numbers = Interned(nothing="")
        self.rid_numbers = Interned()
        self.received: Tally[int] = Tally()
        self.dropped: Tally[int] = Tally()
        self.earlier: dict[int, int] = {}  # source → seqs used by its earlier runs; each run begins with a header
        self.last_seq: dict[int, int] = {}

    @property
    def sources(self) -> list[str]:
        """Names of the numbers in `src`."""
        return self.source_numbers.names

    @property
    def rids(self) -> list[str]:
        """Names of the numbers in `rid`."""
        return self.rid_numbers.names

    @property
    def counters(self) -> dict[str, Counters]:
        """Per source: seqs used, records that are no gap with a count, and the sum of those gaps."""
        return {
            name: Counters(
                self.earlier.get(number, 0) + self.last_seq.get(number, -1) + 1,
                self.received[number],
                self.dropped[number],
            )
            for number, name in enumerate(self.sources)
        }

    def kind_name(self, i: int) -> str:
        """Type of record i; "unknown" or "damaged" where this version has no name for it."""
        return RECORD_KINDS[self.kind[i]]

    def find_step(self, step: int, rid: str | None = None) -> list[int]:
        """Numbers of all indexed step records with this step number, of one request or of any."""
        column = self.step
        if rid is not None:
            return [i for i in self.steps_of.get(rid, ()) if column[i] == step]
        return [i for i in self.by_kind["step"] if column[i] == step]

    def extend(self, lines: Sequence[bytes]) -> None:
        """Index whole lines (without newlines) that follow the indexed ones in the file, each ended by one newline."""
        if lines:
            self._append(decode_heads(lines), lines)

    def skip(self, length: int, reason: str) -> None:
        """Index one line of `length` bytes, newline not counted, that nobody decodes."""
        head = DamagedHead(type="", src="", seq=-1, t=-1, mono=-1, reason=reason)
        self._append([head], [b""], length)

    def _append(self, heads: list[Head], lines: Sequence[bytes], length: int | None = None) -> None:
        kinds = bytearray([_NUMBER_OF_TYPE[head.type] for head in heads])
        rows = self._rows(kinds)
        for kind in (_STEP, _GAP):
            for row in rows.get(kind, ()):
                i = row - self.n
                if doubtful(heads[i]):
                    heads[i] = decode_head(lines[i])
        if DamagedHead in set(map(type, heads)):
            self._place_damaged(heads, kinds)
            rows = self._rows(kinds)
        self._append_common(heads, [length] if length is not None else list(map(len, lines)))
        self._append_particular(heads, rows)
        self._count(heads, rows)
        for number, of_kind in rows.items():
            self.by_kind[RECORD_KINDS[number]].fromlist(of_kind)
        self.kind.frombytes(kinds)
        self.end = self.offset[-1] + self.length[-1] + 1
        self.n = len(self.kind)

    def _place_damaged(self, heads: list[Head], kinds: bytearray) -> None:
        """Mark damaged lines, and give those without a time the time before them, so that columns stay searchable."""
        t, mono = (self.t[-1], self.mono[-1]) if self.n else (0, 0)
        for i, head in enumerate(heads):
            if type(head) is DamagedHead:
                kinds[i] = _DAMAGED
                if not head.src:
                    head.t, head.mono = t, mono
            t, mono = head.t, head.mono

    def _rows(self, kinds: bytearray) -> dict[int, list[int]]:
        """Kind → numbers of the records of this batch that are of it; kinds that do not occur are left out."""
        present = set(kinds)
        if len(present) == 1:
            return {kinds[0]: list(range(self.n, self.n + len(kinds)))}
        rows: dict[int, list[int]] = {kind: [] for kind in present}
        append = {kind: of_kind.append for kind, of_kind in rows.items()}
        for row, kind in enumerate(kinds, self.n):
            append[kind](row)
        return rows

    def _append_common(self, heads: list[Head], lengths: list[int]) -> None:
        """What every record has. fromlist, because extend goes through the iterator protocol at twice the cost."""
        offsets = list(accumulate([length + 1 for length in lengths], initial=self.end))
        offsets.pop()
        self.offset.fromlist(offsets)
        self.length.fromlist(lengths)
        self.t.fromlist([head.t for head in heads])
        self.mono.fromlist([head.mono for head in heads])
        self.seq.fromlist([head.seq for head in heads])
        numbers = self.source_numbers
        self.src.fromlist([numbers[head.src] for head in heads])
        rids = self.rid_numbers
        self.rid.fromlist([rids[head.rid] for head in heads])

    def _append_particular(self, heads: list[Head], rows: dict[int, list[int]]) -> None:
        """What only some types have: -1 and no flags first, then the exceptions."""
        count = len(heads)
        for name in ("step", "accepted", "emitted", "nodes", "total_us"):
            column: array[int] = getattr(self, name)
            column.frombytes(b"\xff" * (count * column.itemsize))  # -1 in every width
        self.flags.frombytes(bytes(2 * count))
        if _STEP in rows:
            self._fill_steps(heads, rows[_STEP])
        base, flags = self.n, self.flags
        for row in rows.get(_LOG, ()):
            priority = heads[row - base].priority
            if priority is not None:
                flags[row] = _PRIORITY_BITS.get(priority, 0)
        for row in rows.get(_FINISH, ()):
            total = heads[row - base].emitted
            if isinstance(total, int):
                self.emitted[row] = min(total, _INT32)
        for kind in _CHECKED:
            for row in rows.get(kind, ()):
                if heads[row - base].ok is False:
                    flags[row] = NOT_OK
        for row in rows.get(_GAP, ()):
            if heads[row - base].count is None:
                flags[row] = UNKNOWN_COUNT

    def _fill_steps(self, heads: list[Head], rows: list[int]) -> None:
        base = self.n
        step, accepted, emitted, nodes, total_us = self.step, self.accepted, self.emitted, self.nodes, self.total_us
        flags, steps_of = self.flags, self.steps_of
        for row in rows:
            head = heads[row - base]
            step[row] = head.step
            accepted[row] = len(head.path) - 1
            committed = head.emitted
            if type(committed) is list:
                emitted[row] = len(committed)
            if head.tree is not None:
                nodes[row] = head.tree.nodes()
            time = head.time
            if time is not None:
                if time.total is not None:
                    total_us[row] = time.total
                if time.commit is None:
                    flags[row] = UNCOMMITTED
            if head.flags is not None:
                flags[row] |= _step_flags(head.flags)
            records = steps_of.get(head.rid)  # type: ignore[arg-type]
            if records is None:
                records = steps_of[head.rid] = array("I")  # type: ignore[index]
            records.append(row)

    def _count(self, heads: list[Head], rows: dict[int, list[int]]) -> None:
        """Bring the counters up to date, a header that starts its source anew included."""
        start = self.n
        for row in rows.get(_HEADER, ()):
            self._count_run(start, row)
            start = row
            number = self.src[row]
            last = self.last_seq.pop(number, None)
            if last is not None:
                self.earlier[number] = self.earlier.get(number, 0) + last + 1
        self._count_run(start, self.n + len(heads))
        for row in rows.get(_GAP, ()):
            head = heads[row - self.n]
            if head.count is not None and head.of == head.src:
                number = self.src[row]
                self.received[number] -= 1
                self.dropped[number] += head.count

    def _count_run(self, start: int, stop: int) -> None:
        """Count records start to stop, between which no source starts anew."""
        srcs = self.src[start:stop]
        self.received.update(srcs)
        self.last_seq.update(zip(srcs, self.seq[start:stop], strict=True))


def _step_flags(flags: FlagsHead) -> int:
    return (
        (NONFINITE if flags.nonfinite and any(flags.nonfinite.values()) else 0)
        | (TRUNCATED if flags.truncated else 0)
        | (SAMPLED if flags.sampled else 0)
        | (GRAPH if flags.graph else 0)
        | (OVERLAP if flags.overlap else 0)
    )
