"""The writer: append-only, whole lines, on disk at once, a footer that is true."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddscope.model import Footer, Log
from ddscope.trace import Damaged, TraceError, TraceFile, TraceWriter, decode, verify
from tests.tracing import Clock, header, index_all, lines, sample_records, wait_for, write_sample

ENDLESS = """
import sys
from ddscope.trace import TraceWriter
from tests.tracing import Clock, header
from ddscope.model import Log
clock = Clock()
writer = TraceWriter(sys.argv[1])
writer.write(header(clock))
sys.stdout.write("ready\\n")
sys.stdout.flush()
while True:
    size = clock.now % 7919
    writer.write(Log(**clock("journal/server"), message="x" * size))
"""


def test_what_is_written_can_be_read_before_anything_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    offsets = [writer.write(record) for record in sample_records()]
    data = path.read_bytes()
    assert data == lines(sample_records())
    assert [decode(data[offset:].split(b"\n")[0]) for offset in offsets] == sample_records()
    writer.close(footer=False)
    assert path.read_bytes() == data


def test_the_footer_counts_and_hashes_what_is_before_it(tmp_path: Path) -> None:
    data = write_sample(tmp_path / "t.jsonl")
    body, last = data[: data[:-1].rfind(b"\n") + 1], data[data[:-1].rfind(b"\n") + 1 :]
    footer = decode(last)
    assert isinstance(footer, Footer)
    assert footer.sha256 == hashlib.sha256(body).hexdigest()
    assert footer.records == {
        "control": 1, "fact": 1, "finish": 1, "gap": 2, "header": 1, "log": 3, "mark": 1, "probe": 2, "request": 1,
        "stack": 1, "step": 3, "tensor": 1, "tokens": 1,
    }  # fmt: skip
    assert (footer.src, footer.seq) == ("viewer", 1)  # behind the mark
    assert (footer.emitted, footer.dropped) == (14 + 4 + 2 + 1 + 1, 4)


def test_lines_that_are_already_encoded_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    strange = b'{ "type" : "later", "src":"x", "seq":0, "t":1, "mono":1, "new":[1, 2] }\n'
    with TraceWriter(path) as writer:
        writer.write_lines(lines(sample_records()))
        offset = writer.write_lines(strange + strange.replace(b'"seq":0', b'"seq":1'))
        assert writer.records["later"] == 2
    assert path.read_bytes()[offset:].startswith(strange)
    assert verify(path).problems == []


@pytest.mark.parametrize("torn", [b'{"type":"log"', b"x"])
def test_half_a_line_is_refused_and_leaves_the_file_as_it_was(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    writer.write(header(Clock()))
    before = path.read_bytes()
    with pytest.raises(TraceError, match="Only whole lines"):
        writer.write_lines(b'{"type":"later"}\n' + torn)
    assert path.read_bytes() == before
    writer.close(footer=False)


def test_closing_twice_writes_one_footer_and_writing_afterwards_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    clock = Clock()
    writer.write(header(clock))
    writer.close()
    writer.close()
    assert path.read_bytes().count(b'"type":"footer"') == 1
    with pytest.raises(TraceError, match="already closed"):
        writer.write(Log(**clock(), message="late"))


def test_a_trace_can_be_continued_and_each_footer_stays_true(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    clock = Clock()
    clock.seqs["viewer"] = 1  # the first footer's
    with TraceWriter(path, append=True) as writer:
        assert writer.offset == len(data)
        writer.write(Log(**clock("viewer"), message="more"))
    assert path.read_bytes().startswith(data)
    report = verify(path)
    assert (report.problems, report.finished, report.records) == ([], True, 22)


def test_continuing_a_torn_file_takes_nothing_away_and_does_not_glue_records_together(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    torn = lines(sample_records())[:-10]
    path.write_bytes(torn)
    clock = Clock()
    with TraceWriter(path, append=True) as writer:
        writer.write(Log(**clock("log/more"), message="next"))
    assert path.read_bytes().startswith(torn + b"\n")
    with TraceFile(path) as trace:
        index_all(trace)
        kinds = [trace.index.kind_name(i) for i in range(trace.index.n)]
        assert kinds[-3:] == ["damaged", "log", "footer"]
        assert isinstance(trace.record(trace.index.n - 3), Damaged)
        assert trace.index.n == len(sample_records()) + 2


def test_a_process_killed_at_any_moment_loses_at_most_its_last_record(tmp_path: Path) -> None:
    for round_number, least in enumerate((1, 50_000, 400_000)):
        path = tmp_path / f"{round_number}.jsonl"
        child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        wait_for(lambda path=path, least=least: path.stat().st_size > least)  # type: ignore[misc]
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
        child.stdout.close()
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        with TraceFile(path) as trace:
            index_all(trace)
            assert trace.index.n == data.count(b"\n")
            assert not trace.index.by_kind["damaged"]
            logs = trace.index.by_kind["log"]
            assert [trace.index.seq[i] for i in logs] == list(range(len(logs)))  # in order, none missing in between
            assert trace.index.end == len(whole)
        assert len(data) - len(whole) < 8500  # nothing but the record that was being written


def test_threads_share_a_writer_without_tearing_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    writer.write(header(Clock()))

    def work(name: str) -> None:
        clock = Clock()
        for i in range(300):
            writer.write(Log(**clock(name), message=str(i) * (i % 50)))

    threads = [threading.Thread(target=work, args=(f"log/{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    report = verify(path)
    assert (report.problems, report.records) == ([], 1 + 4 * 300 + 1)


def test_a_full_disk_is_one_sentence_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    clock = Clock()
    writer.write(header(clock))
    before = path.read_bytes()
    real, calls = os.write, []

    def write_a_little_then_fail(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, bytes(data)[:5])

    with monkeypatch.context() as patched:
        patched.setattr("ddscope.trace.writer.os.write", write_a_little_then_fail)
        with pytest.raises(TraceError, match=r"^Cannot write the trace .*: No space left on device\.$"):
            writer.write(Log(**clock("log/x"), message="lost"))
    assert path.read_bytes() == before
    clock.seqs.clear()
    writer.write(Log(**clock("log/x"), message="there is room again"))
    writer.close()
    assert verify(path).problems == []


@pytest.mark.parametrize("where", ["missing/folder/t.jsonl", "."])
def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path: Path, where: str) -> None:
    for append in (False, True):
        with pytest.raises(TraceError, match=r"^Cannot write the trace .*\.$"):
            TraceWriter(tmp_path / where, append=append)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs /proc")
def test_nobody_else_may_write_a_new_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    TraceWriter(path).close(footer=False)
    assert not stat.S_IMODE(path.stat().st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
