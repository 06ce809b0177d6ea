"""The index and the file that feeds it: columns, counters, resuming, following, and files that misbehave."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddscope.model import Finish, Flags, Gap, Log, Request, Step, Tensor
from ddscope.trace import (
    RECORD_KINDS,
    Damaged,
    NewerFormatError,
    TraceError,
    TraceFile,
    TraceIndex,
    TraceWriter,
    Unknown,
    encode,
)
from ddscope.trace.index import (
    COLUMNS,
    NONFINITE,
    NOT_OK,
    PRIORITY_SHIFT,
    SAMPLED,
    TRUNCATED,
    UNCOMMITTED,
    UNKNOWN_COUNT,
)
from ddscope.trace.lines import MAX_LINE
from tests.tracing import Clock, header, index_all, lines, sample_records, step, write_sample


def columns(index: TraceIndex) -> dict[str, object]:
    """Everything an index holds, to compare two of them."""
    return {name: list(getattr(index, name)) for name in COLUMNS} | {
        "n": index.n,
        "end": index.end,
        "sources": index.sources,
        "rids": index.rids,
        "counters": index.counters,
        "by_kind": {name: list(rows) for name, rows in index.by_kind.items()},
        "steps_of": {rid: list(rows) for rid, rows in index.steps_of.items()},
    }


def test_columns_say_what_the_records_say(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    with TraceFile(path) as trace:
        index = index_all(trace).index
        records = [trace.record(i) for i in range(index.n)]
    assert records[:-1] == sample_records()
    for i, record in enumerate(records):
        assert RECORD_KINDS[index.kind[i]] == index.kind_name(i) == record.type
        assert (index.sources[index.src[i]], index.seq[i], index.t[i], index.mono[i]) == (
            record.src, record.seq, record.t, record.mono,
        )  # fmt: skip
        if isinstance(record, (Step, Request, Finish)):
            assert index.rids[index.rid[i]] == record.rid
        else:
            assert index.rid[i] == -1
        if isinstance(record, Step):
            assert record.path is not None and record.emitted is not None and record.tree is not None
            assert record.time is not None
            assert index.step[i] == record.step
            assert index.accepted[i] == len(record.path) - 1
            assert index.emitted[i] == len(record.emitted)
            assert index.nodes[i] == len(record.tree.parents)
            assert index.total_us[i] == record.time.total
        else:
            assert (index.step[i], index.accepted[i], index.nodes[i], index.total_us[i]) == (-1, -1, -1, -1)
    assert [index.emitted[i] for i in index.by_kind["finish"]] == [6]
    steps = index.by_kind["step"]
    assert list(index.steps_of["r1"]) == list(steps)
    assert [index.flags[i] for i in steps] == [0, 0, TRUNCATED | SAMPLED | NONFINITE]
    assert [index.flags[i] >> PRIORITY_SHIFT for i in index.by_kind["log"]] == [4, 7, 0]
    assert [index.flags[i] for i in index.by_kind["probe"]] == [0, NOT_OK]
    assert [index.flags[i] for i in index.by_kind["tensor"]] == [NOT_OK]
    assert [index.flags[i] for i in index.by_kind["gap"]] == [0, UNKNOWN_COUNT]


def test_a_step_that_tells_nothing_is_unknown_and_not_zero() -> None:
    clock = Clock()
    index = TraceIndex()
    plain = step(clock, 1, 3, 4, parents=[], tokens=[], path=[0])
    bare = Step(**clock(), rid="r1", step=2)
    index.extend([encode(one)[:-1] for one in (plain, bare)])
    assert list(index.nodes) == [0, -1]
    assert list(index.accepted) == [0, -1]
    assert list(index.emitted) == [1, -1]
    assert list(index.total_us) == [1035, -1]


def test_a_step_stopped_before_its_commit_is_marked() -> None:
    from ddscope.model import StepTime

    clock = Clock()
    index = TraceIndex()
    stopped = step(clock, 1, 3, 4, time=StepTime(draft=1, verify=2), flags=Flags(nonfinite={"target": 0}))
    untimed = step(clock, 2, 5, 14, time=None)
    index.extend([encode(one)[:-1] for one in (stopped, untimed)])
    assert list(index.flags) == [UNCOMMITTED, 0]


def test_parents_are_counted_however_they_are_spaced() -> None:
    index = TraceIndex()
    line = b'{"type":"step","src":"e","seq":%d,"t":1,"mono":1,"rid":"r","step":0,"tree":{"parents":%s,"tokens":[]}}'
    index.extend([line % (i, text) for i, text in enumerate((b"[]", b"[ ]", b"[0]", b"[ 0 , 0 ,1 ]"))])
    assert list(index.nodes) == [0, 0, 1, 3]


def test_counters_balance_at_every_record_of_a_trace_that_keeps_its_invariants() -> None:
    index = TraceIndex()
    for record in sample_records():
        index.extend([encode(record)[:-1]])
        for counters in index.counters.values():
            assert counters.emitted == counters.received + counters.dropped
    assert index.counters["engine/0"] == (14, 10, 4)


def test_a_source_that_starts_anew_with_a_header_is_counted_on() -> None:
    index = TraceIndex()
    for _ in range(3):
        clock = Clock()
        index.extend([encode(one)[:-1] for one in (header(clock), Log(**clock(), message="x"))])
    assert index.counters["engine/0"] == (6, 6, 0)
    index = TraceIndex()
    index.extend(2 * [encode(header(Clock()))[:-1]])
    assert index.counters["engine/0"] == (2, 2, 0)


def test_damaged_and_unknown_lines_have_their_place(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    first = encode(header(clock))
    unknown = b'{"type":"later","src":"engine/0","seq":1,"t":5,"mono":6,"step":"x"}\n'
    broken = b'{"type":"step","src":"engine/0","seq":2,"t":7,"mono":8,"rid":"r"}\n'
    nonsense = b"\xff\x00{{{\n"
    path.write_bytes(first + unknown + broken + nonsense + b"\n")
    with TraceFile(path) as trace:
        index = index_all(trace).index
        assert [index.kind_name(i) for i in range(index.n)] == ["header", "unknown", "damaged", "damaged", "damaged"]
        assert list(index.src) == [0, 0, 0, -1, -1]
        assert list(index.seq) == [0, 1, 2, -1, -1]
        assert list(index.t)[1:] == [5, 7, 7, 7]
        assert index.counters["engine/0"] == (3, 3, 0)
        assert [trace.raw(i) + b"\n" for i in range(1, 5)] == [unknown, broken, nonsense, b"\n"]
        later = trace.record(1)
        assert type(later) is Unknown and later.type == "later"
        assert [isinstance(trace.record(i), Damaged) for i in (2, 3, 4)] == [True] * 3


def test_a_type_called_damaged_or_unknown_is_just_unknown() -> None:
    index = TraceIndex()
    for i, name in enumerate((b"damaged", b"unknown")):
        index.extend([b'{"type":"%s","src":"e","seq":%d,"t":1,"mono":1}' % (name, i)])
    assert [index.kind_name(i) for i in range(2)] == ["unknown", "unknown"]


def test_the_index_is_the_same_however_the_file_arrives(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    with TraceFile(path) as trace:
        at_once = columns(index_all(trace).index)
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(b"")
    with TraceFile(growing, growing=True) as trace, growing.open("ab", buffering=0) as file:
        for i in range(0, len(data), 7):
            file.write(data[i : i + 7])
            trace.poll(1.0)
            assert trace.index.n == data[: i + 7].count(b"\n")  # a line is there when its end is
            assert trace.trouble is None
        assert columns(trace.index) == at_once


def test_a_poll_keeps_to_its_budget_and_the_next_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    with TraceWriter(path) as writer:
        writer.write(header(clock))
        for _ in range(60):
            writer.write_lines(b"".join(encode(Log(**clock("log/x"), message="x" * 300)) for _ in range(100)))
    with TraceFile(path, use_sidecar=False) as trace:
        seen = []
        while not trace.done:
            seen.append(trace.poll(0.0))
            indexed, size = trace.progress
            assert 0 < indexed <= size
        assert len(seen) > 3  # one block a call, not the file
        assert sum(seen) == trace.index.n == 6002
        assert list(trace.index.offset) == sorted(trace.index.offset)


def test_a_growing_file_without_its_header_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    first = encode(header(Clock()))
    path.write_bytes(b"")
    with TraceFile(path, growing=True) as trace:
        assert trace.poll() == 0
        with pytest.raises(TraceError, match="does not hold a whole header yet"):
            trace.header()
        path.write_bytes(first[:20])
        assert trace.poll() == 0
        assert trace.trouble is None
        path.write_bytes(first)
        assert trace.poll() == 1
        assert trace.header().host == "server-a"


def test_a_growing_file_that_turns_out_to_be_no_trace_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"")
    with TraceFile(path, growing=True) as trace:
        path.write_bytes(b"GET / HTTP/1.1\n")
        assert trace.poll() == 0
        assert trace.trouble == f"{path} is not a ddscope trace: its first line is no header."


SENTENCES = {
    b"": "is empty: a trace begins with a header line.",
    b"\x7fELF\x02\x01\x01" + bytes(200): "is not a ddscope trace: its first line is no header.",
    b"hello\nworld\n": "is not a ddscope trace: its first line is no header.",
    b"{}\n": "is not a ddscope trace: its first line is no header.",
    b'{"type":"header","format":"other","min_reader":"1.0"}\n': "is not a ddscope trace: its first line is no header.",
    b'{"type":"header","format":"ddscope-trace"}\n': "is not a ddscope trace: its first line is no header.",
    b"[" * 100_000 + b"\n": "is not a ddscope trace: its first line is no header.",
    b'{"type":"header","src":"a","seq":0,"t":1,"mono":1,"format":"ddscope-trace","min_reader":"1.0"}\n': (
        "cannot be read: a `header` record whose fields do not fit: object missing required field `version`."
    ),
    b'{"type":"header","format":"ddscope-trace","min_reader":"soon"}\n': (
        "does not say which reader it needs: min_reader is 'soon'."
    ),
    b'{"type":"header","format":"ddscope-trace","min_reader":"1.7","new":[]}\n': (
        "needs a reader of trace format 1.7, and this ddscope reads 1.0: upgrade it."
    ),
    b'{"type":"header","format":"ddscope-trace","min_reader":"2.0"}\n': (
        "needs a reader of trace format 2.0, and this ddscope reads 1.0: upgrade it."
    ),
    b'{"type":"header","src":"engine/0","se': "ends inside its header (file cut at byte 37): no record is left.",
}


@pytest.mark.parametrize("content", SENTENCES, ids=lambda content: repr(content[:60]))
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refusal:
        TraceFile(path)
    text = str(refusal.value)
    assert str(path) in text and text.endswith(SENTENCES[content])
    assert text.count(". ") == 0 and "\n" not in text
    assert isinstance(refusal.value, NewerFormatError) == ("needs a reader" in text)


def test_what_is_no_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, reason in (
        (tmp_path / "missing", "No such file or directory."),
        (tmp_path, "it is a directory."),
        (fifo, "it is not a regular file."),
        (Path("/dev/zero"), "it is not a regular file."),
    ):
        with pytest.raises(TraceError) as refusal:
            TraceFile(path)
        assert str(refusal.value) == f"Cannot open the trace {path}: {reason}"
    with pytest.raises(TraceError, match="null"):
        TraceFile("a\0b")


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"x\n")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(TraceError):
            TraceFile(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_is_cut_under_the_reader_is_told_and_nothing_raises(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    with TraceFile(path) as trace:
        index_all(trace)
        count, kept = trace.index.n, data[:1100].count(b"\n")
        os.truncate(path, 1100)
        assert trace.poll() == 0
        assert trace.trouble == (
            f"{path} was cut from {len(data):,} to 1,100 bytes while it was read: "
            "nothing new is shown until it is opened again."
        )
        for later in (b"", data * 2):
            with path.open("ab") as file:
                file.write(later)
            assert trace.poll() == 0 and trace.done
            assert trace.index.n == count
            records = [trace.record(i) for i in range(count)]
            assert records[:kept] == sample_records()[:kept]
            assert {getattr(record, "reason", "") for record in records[kept:]} == {
                "the file was cut and no longer holds this line"
            }


def test_a_file_rewritten_in_place_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    with TraceFile(path) as trace:
        index_all(trace)
        count = trace.index.n
        path.write_bytes(data[:-1] + b" " + data)
        assert trace.poll() == 0
        assert trace.trouble is not None and "was rewritten while it was read" in trace.trouble
        assert trace.index.n == count


def test_a_file_replaced_or_removed_under_the_reader_is_told_and_still_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    with TraceFile(path) as trace:
        trace.poll()
        other = tmp_path / "other"
        other.write_bytes(data[:500])
        os.replace(other, path)
        trace.poll()
        assert trace.trouble == f"{path} was replaced by another file while it was read: open it again to see that one."
        path.unlink()
        trace.poll()
        assert trace.trouble == f"{path} was removed or renamed while it was read: it is still shown, to its end."
        assert [trace.record(i) for i in range(trace.index.n - 1)] == sample_records()


def test_a_line_of_any_length_is_told_and_never_held(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    with path.open("wb") as file:
        file.write(encode(header(clock)))
        start = file.tell()
        file.truncate(start + MAX_LINE * 3)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + encode(Log(**clock("log/x"), message="after")))
    with TraceFile(path, use_sidecar=False) as trace:
        index_all(trace)
        assert [trace.index.kind_name(i) for i in range(trace.index.n)] == ["header", "damaged", "log"]
        assert (trace.index.offset[1], trace.index.length[1]) == (start, MAX_LINE * 3)
        damaged = trace.record(1)
        assert isinstance(damaged, Damaged)
        assert damaged.reason == f"a line of {MAX_LINE * 3:,} bytes, more than the {MAX_LINE:,} that a record may have"
        assert trace.record(2) == Log(**{**vars_of(trace, 2), "message": "after"})


def vars_of(trace: TraceFile, i: int) -> dict[str, object]:
    record = trace.record(i)
    return {"src": record.src, "seq": record.seq, "t": record.t, "mono": record.mono}


def test_a_large_record_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    big = [Log(**clock("log/x"), message="x" * size) for size in (1 << 18, (1 << 18) - 60, 3 << 20)]
    with TraceWriter(path) as writer:
        writer.write(header(clock))
        for record in big:
            writer.write(record)
            writer.write(Log(**clock("log/y"), message="small"))
    with TraceFile(path, use_sidecar=False) as trace:
        index_all(trace)
        assert [trace.record(i) for i in trace.index.by_kind["log"]][::2] == big
        assert [offset for offset, _ in trace.tail(5)] == list(trace.index.offset)[-5:]


def test_one_thread_reads_while_another_polls(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    writer = TraceWriter(path)
    writer.write(header(clock))
    stop = threading.Event()
    wrong: list[str] = []
    with TraceFile(path, use_sidecar=False) as trace:

        def read() -> None:
            while not stop.is_set():
                n = trace.index.n
                if n and trace.record(n - 1).seq != trace.index.seq[n - 1]:
                    wrong.append(f"record {n - 1}")

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(100):
            writer.write_lines(b"".join(encode(Log(**clock("log/x"), message="m")) for _ in range(50)))
            trace.poll(0.01)
        index_all(trace)
        stop.set()
        reader.join()
        assert trace.index.n == 5001 and not wrong
    writer.close(footer=False)


def test_importing_the_package_pulls_in_nothing_heavy() -> None:
    code = "import sys, ddscope.trace; print(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "msgspec" in loaded
    assert not {"textual", "rich", "torch", "numpy", "orjson", "safetensors", "asyncio", "multiprocessing"} & set(
        loaded
    )


def test_gap_and_tensor_heads_need_no_payload() -> None:
    index = TraceIndex()
    clock = Clock()
    records = [
        Gap(**clock(), of="journal/x", count=5, reason="cursor_lost"),  # of another source: covers nothing of its own
        Tensor(**clock(), name="n", shape=[1], dtype="f", ok=True),
    ]
    index.extend([encode(record)[:-1] for record in records])
    assert index.counters == {"engine/0": (2, 2, 0)}
    assert list(index.flags) == [0, 0]


def test_sample_lines_are_what_the_index_reads(tmp_path: Path) -> None:
    index = TraceIndex()
    data = lines(sample_records())
    index.extend(data.split(b"\n")[:-1])
    assert index.end == len(data)
    assert [data[o : o + n] for o, n in zip(index.offset, index.length, strict=True)] == data.split(b"\n")[:-1]
