"""The index of a trace: parallel columns, a few machine words a record, no payloads and no files.

`TraceFile` feeds it whole lines in order; the sidecar stores its columns. Everything is readable by one thread while
another appends: `n` moves last.
"""

from __future__ import annotations

from array import array
from collections import Counter as Tally
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ddscope.model import RECORD_TYPES
from ddscope.trace.codec import UNREADABLE, Damaged
from ddscope.trace.heads import (
    KIND_OF_CLASS,
    AnyHead,
    FinishHead,
    GapHead,
    LogHead,
    OkHead,
    ProbeHead,
    RequestHead,
    StepHead,
    decode_head,
    decode_strict,
)

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

_KIND_OF_CLASS = {cls: KIND[name] for cls, name in KIND_OF_CLASS.items()}
_STEP, _HEADER, _GAP = KIND["step"], KIND["header"], KIND["gap"]

# Column name → array type code. The order is the sidecar's.
COLUMNS: dict[str, str] = {
    "offset": "q", "length": "I", "t": "q", "mono": "q", "kind": "B", "src": "i", "seq": "q",
    "rid": "i", "step": "q", "accepted": "i", "emitted": "i", "nodes": "i", "total_us": "q", "flags": "H",
}  # fmt: skip
_SPARSE = ("rid", "step", "accepted", "emitted", "nodes", "total_us")


class Counters(NamedTuple):
    """What one source said and what arrived: emitted = received + dropped wherever the trace keeps its invariants."""

    emitted: int
    received: int
    dropped: int


class Interned(dict[str, int]):
    """Strings ↔ small ints, numbered by first use; `names` is the way back."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__((name, number) for number, name in enumerate(names))
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
    rid: number into `rids` for request, step and finish, else -1.    step: step number, else -1.
    accepted, nodes, total_us: of steps, -1 when unknown.    emitted: token ids of a step, total of a finish, else -1.
    flags: bit set, see the constants of this module.
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
        self._srcs = Interned()
        self._rids = Interned()
        self._received: Tally[int] = Tally()
        self._dropped: Tally[int] = Tally()
        self._earlier: dict[int, int] = {}  # source → seqs used by its earlier runs (each begins with a header)
        self._last_seq: dict[int, int] = {}

    @property
    def sources(self) -> list[str]:
        """Names of the numbers in `src`."""
        return self._srcs.names

    @property
    def rids(self) -> list[str]:
        """Names of the numbers in `rid`."""
        return self._rids.names

    @property
    def counters(self) -> dict[str, Counters]:
        """Per source: emitted (seqs used so far), received (records here, gaps with a count not), dropped (their sum)."""
        return {
            name: Counters(
                self._earlier.get(number, 0) + self._last_seq.get(number, -1) + 1,
                self._received[number],
                self._dropped[number],
            )
            for name, number in list(self._srcs.items())
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
        if not lines:
            return
        try:
            heads: list[AnyHead] = list(map(decode_strict, lines))
        except UNREADABLE:
            heads = list(map(decode_head, lines))
        kinds = bytes(map(_KIND_OF_CLASS.__getitem__, map(type, heads)))
        if KIND["damaged"] in kinds:
            self._place_damaged(heads)
        self._append_plain(heads, kinds, list(map(len, lines)))
        self._append_special(heads, kinds)
        self._count(heads, kinds)
        self.end = self.offset[-1] + self.length[-1] + 1
        self.n = len(self.kind)

    def _place_damaged(self, heads: list[AnyHead]) -> None:
        """Give damaged lines without a time the time before them, so that the columns stay sorted as far as they were."""
        t, mono = (self.t[-1], self.mono[-1]) if self.n else (0, 0)
        for i, head in enumerate(heads):
            if isinstance(head, Damaged) and not head.src:
                heads[i] = Damaged(type="", raw=b"", src="", seq=-1, t=t, mono=mono, reason=head.reason)
            t, mono = heads[i].t, heads[i].mono

    def _append_plain(self, heads: list[AnyHead], kinds: bytes, lengths: list[int]) -> None:
        """The columns that every record fills; the others get their `absent`."""
        count = len(heads)
        offsets = list(accumulate((length + 1 for length in lengths), initial=self.end))
        offsets.pop()
        self.offset.extend(offsets)
        self.length.extend(lengths)
        self.t.extend([head.t for head in heads])
        self.mono.extend([head.mono for head in heads])
        self.seq.extend([head.seq for head in heads])
        numbers = self._srcs
        self.src.extend([numbers[head.src] if head.src else -1 for head in heads])
        for name in _SPARSE:
            column: array[int] = getattr(self, name)
            column.frombytes(b"\xff" * (count * column.itemsize))  # -1 in every width
        self.flags.frombytes(bytes(2 * count))
        self.kind.frombytes(kinds)

    def _append_special(self, heads: list[AnyHead], kinds: bytes) -> None:
        """What only some types have, and the lists of record numbers by type."""
        present = set(kinds)
        if len(present) == 1:
            self.by_kind[RECORD_KINDS[kinds[0]]].extend(range(self.n, self.n + len(kinds)))
        else:
            append = [self.by_kind[name].append for name in RECORD_KINDS]
            for i, kind in enumerate(kinds, self.n):
                append[kind](i)
        for kind in present:
            fill = _FILL.get(kind)
            if fill is None:
                continue
            i = kinds.find(kind)
            while i >= 0:
                fill(self, self.n + i, heads[i])
                i = kinds.find(kind, i + 1)

    def _count(self, heads: list[AnyHead], kinds: bytes) -> None:
        """Bring the counters up to date, a header that starts a source anew included."""
        start = 0
        for i in _positions(kinds, _HEADER):
            number = self.src[self.n + i]
            self._count_run(start, i)
            last = self._last_seq.pop(number, None)
            if last is not None:
                self._earlier[number] = self._earlier.get(number, 0) + last + 1
            start = i
        self._count_run(start, len(heads))
        for i in _positions(kinds, _GAP):
            head = heads[i]
            if isinstance(head, GapHead) and head.count is not None and head.of == head.src:
                number = self.src[self.n + i]
                self._received[number] -= 1
                self._dropped[number] += head.count

    def _count_run(self, start: int, stop: int) -> None:
        """Count records start to stop of the batch, between which no source starts anew."""
        srcs = self.src[self.n + start : self.n + stop]
        self._received.update(srcs)
        self._last_seq.update(zip(srcs, self.seq[self.n + start : self.n + stop], strict=True))


def _positions(kinds: bytes, kind: int) -> list[int]:
    found = []
    i = kinds.find(kind)
    while i >= 0:
        found.append(i)
        i = kinds.find(kind, i + 1)
    return found


def _fill_step(index: TraceIndex, i: int, head: StepHead) -> None:
    index.rid[i] = index._rids[head.rid]
    index.step[i] = head.step
    path, emitted, tree, time, flags = head.path, head.emitted, head.tree, head.time, head.flags
    if path is not None:
        index.accepted[i] = len(path) - 1
    if emitted is not None:
        index.emitted[i] = len(emitted)
    if tree is not None:
        index.nodes[i] = _count_items(bytes(tree.parents))
    bits = 0
    if time is not None:
        if time.total is not None:
            index.total_us[i] = time.total
        if time.commit is None:
            bits = UNCOMMITTED
    if flags is not None:
        if flags.nonfinite and any(flags.nonfinite.values()):
            bits |= NONFINITE
        bits |= (
            (TRUNCATED if flags.truncated else 0)
            | (SAMPLED if flags.sampled else 0)
            | (GRAPH if flags.graph else 0)
            | (OVERLAP if flags.overlap else 0)
        )
    index.flags[i] = bits
    records = index.steps_of.get(head.rid)
    if records is None:
        records = index.steps_of[head.rid] = array("I")
    records.append(i)


def _count_items(parents: bytes) -> int:
    """Length of a JSON list of numbers, from its text."""
    commas = parents.count(b",")
    return commas + 1 if commas or parents.strip(b"[] \t\r\n") else 0


def _fill_request(index: TraceIndex, i: int, head: RequestHead) -> None:
    index.rid[i] = index._rids[head.rid]


def _fill_finish(index: TraceIndex, i: int, head: FinishHead) -> None:
    index.rid[i] = index._rids[head.rid]
    index.emitted[i] = head.emitted


def _fill_log(index: TraceIndex, i: int, head: LogHead) -> None:
    if head.priority is not None and 0 <= head.priority < 15:
        index.flags[i] = (head.priority + 1) << PRIORITY_SHIFT


def _fill_ok(index: TraceIndex, i: int, head: OkHead | ProbeHead) -> None:
    if head.ok is False:
        index.flags[i] = NOT_OK


def _fill_gap(index: TraceIndex, i: int, head: GapHead) -> None:
    if head.count is None:
        index.flags[i] = UNKNOWN_COUNT


_FILL = {
    KIND["step"]: _fill_step,
    KIND["request"]: _fill_request,
    KIND["finish"]: _fill_finish,
    KIND["log"]: _fill_log,
    KIND["tensor"]: _fill_ok,
    KIND["probe"]: _fill_ok,
    KIND["gap"]: _fill_gap,
}
