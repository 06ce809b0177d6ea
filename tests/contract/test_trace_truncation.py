"""A trace cut at every byte offset: at most the last record is lost, and nothing raises but the sentence of a reader
that has not even a header left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.trace import TraceError, TraceFile, recover, stats, verify
from tests.tracing import index_all, sample_records, write_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_sample(tmp_path_factory.mktemp("sample") / "t.jsonl")


def cuts(path: Path, sample: bytes, every: int = 1) -> Iterator[int]:
    """Every length that the file can be cut to, longest first, with the file cut to it."""
    path.write_bytes(sample)
    for cut in range(len(sample), -1, -every):
        os.truncate(path, cut)
        yield cut


def test_a_trace_cut_anywhere_loses_at_most_the_last_record(sample: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    header_end = sample.index(b"\n") + 1
    expected = sample_records()
    for cut in cuts(path, sample):
        whole = sample[:cut].count(b"\n")
        if cut < header_end:
            with pytest.raises(TraceError) as refusal:
                TraceFile(path, use_sidecar=False)
            assert str(refusal.value).startswith(str(path)) and str(refusal.value).endswith(".")
            continue
        with TraceFile(path, use_sidecar=False) as trace:
            index_all(trace)
            assert trace.index.n == whole
            assert not trace.index.by_kind["damaged"] and trace.trouble is None
            assert trace.record(whole - 1) == (expected[whole - 1] if whole <= len(expected) else trace.tail(1)[0][1])
            assert [record for _, record in trace.tail(3)] == [trace.record(i) for i in range(max(0, whole - 3), whole)]
            assert trace.progress == (sample[:cut].rfind(b"\n") + 1, cut)
            assert trace.header() == expected[0]


def test_a_growing_trace_cut_anywhere_is_waited_for(sample: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for cut in range(sample.index(b"\n") + 1):
        path.write_bytes(sample[:cut])
        with path.open("ab") as rest, TraceFile(path, use_sidecar=False, growing=True) as trace:
            assert trace.poll() == 0 and trace.index.n == 0 and trace.trouble is None
            assert trace.tail(5) == [] and trace.find_step(0) == []
            rest.write(sample[cut:])
            rest.flush()
            assert trace.poll(1.0) == sample.count(b"\n")
        path.unlink()


def test_a_trace_cut_anywhere_verifies_to_that_one_problem(sample: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for cut in cuts(path, sample, every=3):
        if cut <= sample.index(b"\n"):
            break
        report = verify(path)
        start, number = sample[:cut].rfind(b"\n") + 1, sample[:cut].count(b"\n")
        expected = [(start, number)] if start < cut else []
        assert [(problem.offset, problem.record) for problem in report.problems] == expected
        assert report.finished == (cut == len(sample))


def test_a_trace_cut_anywhere_is_recovered_to_its_last_whole_record(sample: bytes, tmp_path: Path) -> None:
    path, copy = tmp_path / "t.jsonl", tmp_path / "copy.jsonl"
    for cut in cuts(path, sample, every=7):
        copy.unlink(missing_ok=True)
        if cut <= sample.index(b"\n"):
            with pytest.raises(TraceError):
                recover(path, copy)
            assert not copy.exists()
            continue
        report = recover(path, copy)
        whole = sample[: sample[:cut].rfind(b"\n") + 1]
        assert copy.read_bytes().startswith(whole)
        assert report.kept == whole.count(b"\n")
        assert verify(copy).problems == [] and verify(copy).finished
        assert stats(path).records == whole.count(b"\n")
