"""Hostile lines: whatever the bytes, every reader counts them, says what is wrong, loses nothing and never raises."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddscope.model import RECORD_TYPES, Fact, Log, Record, text_bytes
from ddscope.trace import Damaged, TraceFile, TraceIndex, TraceWriter, Unknown, decode, encode, recover, stats, verify
from ddscope.trace.heads import DamagedHead, decode_head, decode_heads
from tests.tracing import Clock, header, index_all, sample_records

SAMPLES = [encode(record)[:-1] for record in sample_records()]
FIRST = encode(header(Clock()))

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 50),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["[/INST]", "\x1b[31m", "step", "\x00", "\u202e", "é"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "type", "src", "seq", "t", "mono", "rid", "step", "path", "emitted", "tree", "time", "flags", "priority", "ok",
    "of", "count", "ids", "text", "message", "draft", "target", "parents", "value", "name", "reason", "records", "at",
]  # fmt: skip


@st.composite
def changed_record(draw: st.DrawFn) -> bytes:
    """A valid record with a few fields put, taken or exchanged, at the top or one level below."""
    fields = json.loads(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(0, 3))):
        place = fields
        inner = [key for key, value in fields.items() if isinstance(value, dict)]
        if inner and draw(st.booleans()):
            place = fields[draw(st.sampled_from(inner))]
        key = draw(st.sampled_from(sorted(place) or KEYS) | st.sampled_from(KEYS))
        if draw(st.booleans()):
            place[key] = draw(values)
        else:
            place.pop(key, None)
    return json.dumps(fields).encode()


@st.composite
def doubled_keys(draw: st.DrawFn) -> bytes:
    """A record in which keys come more than once."""
    line = draw(st.sampled_from(SAMPLES))
    extra = b",".join(
        json.dumps(draw(st.sampled_from(KEYS))).encode() + b":" + json.dumps(draw(values)).encode()
        for _ in range(draw(st.integers(1, 3)))
    )
    return b"{" + extra + b"," + line[1:] if draw(st.booleans()) else line[:-1] + b"," + extra + b"}"


@st.composite
def flipped(draw: st.DrawFn) -> bytes:
    """A record with bytes exchanged, cut out or put in."""
    line = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(line) - 1))
        how = draw(st.integers(0, 2))
        if how == 0:
            line[at] = draw(st.integers(0, 255))
        elif how == 1:
            del line[at : at + draw(st.integers(1, 20))]
        else:
            line[at:at] = draw(st.binary(max_size=6))
        if not line:
            break
    return bytes(line)


@st.composite
def deep(draw: st.DrawFn) -> bytes:
    """Nesting, as a line of its own or in a field."""
    depth = draw(st.sampled_from([1, 50, 900, 5000, 200_000]))
    opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]))
    nested = opening * depth + b"1" + closing * (depth if draw(st.booleans()) else depth - 1)
    if draw(st.booleans()):
        return nested
    return b'{"type":"fact","src":"a","seq":0,"t":1,"mono":1,"name":"n","value":' + nested + b"}"


@st.composite
def digits(draw: st.DrawFn) -> bytes:
    """Numbers of any length in any field."""
    number = draw(
        st.sampled_from(["9" * 17, "9" * 400, "9" * 5000, "-" + "9" * 30, "1e999", "-0", "1.0", "1E3", "00", "NaN"])
    )
    key = draw(st.sampled_from(KEYS))
    line = json.loads(draw(st.sampled_from(SAMPLES)))
    line[key] = "@"
    return json.dumps(line).replace('"@"', number).encode()


lines = st.one_of(
    st.binary(max_size=60),
    changed_record(),
    doubled_keys(),
    flipped(),
    deep(),
    digits(),
    st.sampled_from(SAMPLES),
    values.map(lambda value: json.dumps(value).encode()),
).map(lambda line: line.replace(b"\n", b" "))

QUIET = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


@settings(QUIET, max_examples=400)
@given(lines)
@example(b"")
@example(b"\xef\xbb\xbf" + SAMPLES[0])
@example(b'{"type":"step","src":"a","seq":0,"t":1,"mono":1,"rid":"r","step":-1}')
@example(b'{"type":"damaged","src":"a","seq":0,"t":1,"mono":1}')
@example(b'{"type":"log","src":"","seq":0,"t":1,"mono":1,"message":"x"}')
def test_a_line_is_a_record_or_says_why_not(line: bytes) -> None:
    record, head = decode(line), decode_head(line)
    if isinstance(record, Damaged):
        assert record.reason and "\n" not in record.reason and len(record.reason) < 400
    elif isinstance(record, Unknown):
        assert record.type not in RECORD_TYPES
    else:
        assert decode(encode(record)) == record
    if isinstance(record, Unknown):
        assert record.raw == line.rstrip(b"\r\n")
        record.fields()
    if type(head) is not DamagedHead:
        assert (head.type, head.src, head.seq, head.t, head.mono) == (
            record.type, record.src, record.seq, record.t, record.mono,
        )  # fmt: skip
    else:
        assert isinstance(record, Damaged)
    assert decode_heads([line, b"no record"])[0] == head


@settings(QUIET, max_examples=120)
@given(st.lists(lines, max_size=12))
def test_a_file_of_hostile_lines_is_read_to_its_end(content: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "t.jsonl", Path(folder) / "copy.jsonl"
        data = FIRST + b"".join(line + b"\n" for line in content)
        path.write_bytes(data)
        with TraceFile(path, use_sidecar=False) as trace:
            index_all(trace)
            index = trace.index
            assert index.n == 1 + len(content) and index.end == len(data)
            assert [trace.raw(i) for i in range(1, index.n)] == content
            assert sum(map(len, index.by_kind.values())) == index.n
            records = [trace.record(i) for i in range(index.n)]
            assert [record for _, record in trace.tail(index.n)] == records
            for number in (0, 1, 2, -1):
                trace.find_step(number)
                trace.find_step(number, "r1")
                index.find_step(number)
            damaged = {i for i, record in enumerate(records) if isinstance(record, Damaged)}
            assert set(index.by_kind["damaged"]) <= damaged  # the index does not look at payloads
        report = verify(path)
        assert report.records == index.n
        assert damaged <= {problem.record for problem in report.problems}  # every damaged line is told
        assert report.damaged == len(damaged)
        assert stats(path).records == index.n
        recovered = recover(path, copy)
        kept = copy.read_bytes().split(b"\n")
        for line in content:
            record = decode(line)
            if not (isinstance(record, Damaged) and not record.src) and record.type != "footer":
                assert line in kept
        lost = sum(isinstance(decode(line), Damaged) and not decode(line).src for line in content)
        assert len(recovered.lost) == lost
        again = verify(copy)
        assert again.records == again.records and again.finished


@settings(QUIET, max_examples=150)
@given(st.lists(lines, max_size=15), st.lists(st.integers(0, 15), max_size=6))
def test_the_index_does_not_depend_on_how_lines_are_batched(content: list[bytes], cuts: list[int]) -> None:
    one, many, single = TraceIndex(), TraceIndex(), TraceIndex()
    one.extend(content)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    for start, stop in pairwise(borders):
        many.extend(content[start:stop])
    for line in content:
        single.extend([line])
    assert _all(one) == _all(many) == _all(single)


def _all(index: TraceIndex) -> dict[str, Any]:
    return {
        name: (dict(value) if name in ("received", "dropped", "last_seq", "earlier") else value)
        for name, value in vars(index).items()
    }


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["[/INST]", "\x1b[31m\n\r\x00", "\u2028"]
)


@settings(QUIET, max_examples=200)
@given(texts, st.dictionaries(texts, values, max_size=3))
def test_any_text_survives_a_line(text: str, value: dict[str, Any]) -> None:
    clock = Clock()
    records: list[Record] = [Log(**clock(), message=text, ident=text), Fact(**clock(), name=text, value=value)]
    for record in records:
        try:
            line = encode(record)
        except ValueError as error:  # an integer beyond 64 bits
            assert "cannot be written as JSON" in str(error)
            continue
        assert line.count(b"\n") == 1
        again = decode(line)
        assert type(again) is type(record)
        assert msgspec.json.encode(again) == line[:-1] or encode(again) == line  # type: ignore[arg-type]
    log = decode(encode(records[0]))
    assert isinstance(log, Log) and log.message is not None
    assert text_bytes(log.message) == text.encode()


@settings(QUIET, max_examples=100)
@given(st.lists(st.lists(lines, max_size=4), max_size=5))
def test_what_a_writer_is_given_is_what_the_file_holds(batches: list[list[bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        expected = FIRST
        with TraceWriter(path) as writer:
            writer.write_lines(FIRST)
            for batch in batches:
                data = b"".join(line + b"\n" for line in batch)
                offset = writer.write_lines(data)
                assert offset == len(expected)
                expected += data
                assert path.read_bytes() == expected
        assert path.read_bytes().startswith(expected)
        footers = [problem for problem in verify(path).problems if "the footer" in problem.text]
        last = path.read_bytes().count(b"\n") - 1
        assert not [problem for problem in footers if problem.record == last]  # the writer's own is true
