"""The first paint: the tail and a step are found without an index, in files of any order and size."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ddscope.model import Log, Record, Step
from ddscope.trace import TraceFile, TraceWriter, encode
from ddscope.trace import search as searching
from tests.tracing import Clock, header, index_all, step, write_sample

LONG = 60.0  # seconds: these tests ask what is found, not how fast


def write(path: Path, records: Iterable[Record]) -> None:
    with TraceWriter(path) as writer:
        writer.write_lines(b"".join(map(encode, records)))


def one_after_another(clock: Clock, requests: int, steps: int, size: int = 0) -> Iterator[Record]:
    yield header(clock)
    for r in range(requests):
        for number in range(steps):
            yield step(clock, number, 2 + number, 10, rid=f"r{r}")
            if size:
                yield Log(**clock("log/x"), message="x" * size)


def interleaved(clock: Clock, requests: int, steps: int) -> Iterator[Record]:
    yield header(clock)
    for number in range(steps):
        for r in range(requests):
            yield step(clock, number, 2 + number, 10, rid=f"r{r}")


@pytest.mark.parametrize("n", [0, 1, 2, 5, 19, 20, 21, 1000])
def test_the_tail_is_the_last_whole_records(tmp_path: Path, n: int) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    with TraceFile(path) as trace:
        index_all(trace)
        expected = [(trace.index.offset[i], trace.record(i)) for i in range(trace.index.n)]
        assert trace.tail(n) == (expected[-n:] if n else [])
        with path.open("ab") as file:
            file.write(b'{"type":"log","src":"x"')  # not there yet
        assert trace.tail(n) == (expected[-n:] if n else [])


def test_the_tail_of_a_large_file_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    write(path, one_after_another(Clock(), 3, 400, size=900))
    read: list[int] = []
    real = searching.read_at
    monkeypatch.setattr(
        searching, "read_at", lambda fd, length, offset: read.append(length) or real(fd, length, offset)
    )
    with TraceFile(path, use_sidecar=False) as trace:
        tail = trace.tail(100)
        assert trace.index.n == 0
        assert sum(read) < 400_000 < trace.size
        index_all(trace)
        assert tail == [(trace.index.offset[i], trace.record(i)) for i in range(trace.index.n - 100, trace.index.n)]


@pytest.mark.parametrize("rid", ["r0", "r1", "r4", None])
@pytest.mark.parametrize("number", [0, 1, 150, 298, 299])
def test_a_step_of_sequential_requests_is_found(tmp_path: Path, rid: str | None, number: int) -> None:
    path = shared(tmp_path, "sequential", one_after_another(Clock(), 5, 300, size=400))
    with TraceFile(path, use_sidecar=False) as trace:
        found = trace.find_step(number, rid, budget_s=LONG)
        assert trace.index.n == 0
        index_all(trace)
        newest = trace.index.find_step(number, rid)[-1]
        assert found == [(trace.index.offset[newest], trace.record(newest))]


@pytest.mark.parametrize("rid", ["r0", "r6", None])
@pytest.mark.parametrize("number", [0, 7, 220, 499])
def test_a_step_of_interleaved_requests_is_found(tmp_path: Path, rid: str | None, number: int) -> None:
    path = shared(tmp_path, "interleaved", interleaved(Clock(), 7, 500))
    with TraceFile(path, use_sidecar=False) as trace:
        ((offset, record),) = trace.find_step(number, rid, budget_s=LONG)
        assert isinstance(record, Step)
        assert record.step == number and rid in (None, record.rid)
        assert os.pread(trace._fd, 20, offset).startswith(b'{"type":"step"')


def test_a_request_is_found_by_samples_in_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_WINDOW", 1 << 13)
    path = shared(tmp_path, "sequential", one_after_another(Clock(), 5, 300, size=400))
    read: list[int] = []
    real = searching.read_at
    monkeypatch.setattr(
        searching, "read_at", lambda fd, length, offset: read.append(length) or real(fd, length, offset)
    )
    with TraceFile(path, use_sidecar=False) as trace:
        assert trace.size > searching._SAMPLES * 4 * searching._WINDOW / 2
        ((_, record),) = trace.find_step(100, "r1", budget_s=LONG)
        assert isinstance(record, Step) and (record.rid, record.step) == ("r1", 100)
        assert sum(read) < trace.size


def test_short_requests_do_not_hide_a_long_one(tmp_path: Path) -> None:
    clock = Clock()
    records: list[Record] = [header(clock)]
    for r, steps in enumerate((400, 3, 1, 2, 3)):
        records += [step(clock, number, 2 + number, 10, rid=f"r{r}") for number in range(steps)]
    path = tmp_path / "t.jsonl"
    write(path, records)
    with TraceFile(path, use_sidecar=False) as trace:
        for number, rid in ((350, "r0"), (2, "r4"), (1, "r4"), (3, "r0")):
            ((_, record),) = trace.find_step(number, budget_s=LONG)
            assert isinstance(record, Step)
            assert (record.step, record.rid) == (number, rid)


def test_steps_in_any_order_are_found_by_reading_everything(tmp_path: Path) -> None:
    clock = Clock()
    records: list[Record] = [step(clock, number, 2, 10, rid="r") for number in range(900)]
    random.Random(5).shuffle(records)
    path = tmp_path / "t.jsonl"
    write(path, [header(clock), *records])
    with TraceFile(path, use_sidecar=False) as trace:
        for number in (0, 4, 444, 899):
            found = trace.find_step(number, budget_s=LONG)
            assert [record.step for _, record in found if isinstance(record, Step)] == [number]


def test_every_step_of_that_number_is_found_when_asked(tmp_path: Path) -> None:
    path = shared(tmp_path, "interleaved", interleaved(Clock(), 7, 500))
    with TraceFile(path, use_sidecar=False) as trace:
        found = trace.find_step(42, every=True, budget_s=LONG)
        index_all(trace)
        assert [offset for offset, _ in found] == [trace.index.offset[i] for i in trace.index.find_step(42)]
        assert [record.rid for _, record in found if isinstance(record, Step)] == [f"r{r}" for r in range(7)]


def test_lines_that_another_writer_spaced_are_found_too(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    spaced = b'{"step" : 7 , "rid" : "r", "type" : "step", "src":"e","seq":0,"t":1,"mono":1}\n'
    path.write_bytes(encode(header(clock)) + spaced.replace(b"7", b"70") + spaced)
    with TraceFile(path) as trace:
        for rid in ("r", None):
            ((_, record),) = trace.find_step(7, rid, budget_s=LONG)
            assert isinstance(record, Step) and record.step == 7


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    path = shared(tmp_path, "sequential", one_after_another(Clock(), 5, 300, size=400))
    with TraceFile(path, use_sidecar=False) as trace:
        assert trace.find_step(300, budget_s=LONG) == []
        assert trace.find_step(3, "r9", budget_s=LONG) == []
        assert trace.find_step(-1, budget_s=LONG) == []


def test_text_that_looks_like_a_step_is_not_taken_for_one(tmp_path: Path) -> None:
    clock = Clock()
    bait = '{"type":"step","rid":"r","step":5}'
    records = [header(clock), step(clock, 5, 2, 10, rid="r"), Log(**clock("log/x"), message=bait)]
    path = tmp_path / "t.jsonl"
    write(path, records)
    with TraceFile(path) as trace:
        for rid in ("r", None):
            ((_, record),) = trace.find_step(5, rid, budget_s=LONG)
            assert record == records[1]


def test_hostile_request_names_are_searched_for_as_they_are_written(tmp_path: Path) -> None:
    clock = Clock()
    rid = 'r"\\\x1b[/INST]é\u202e'
    records = [header(clock), *(step(clock, number, 2, 10, rid=rid) for number in range(50))]
    path = tmp_path / "t.jsonl"
    write(path, records)
    with TraceFile(path) as trace:
        assert trace.find_step(31, rid, budget_s=LONG)[0][1] == records[32]


def test_damage_all_over_does_not_raise(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, one_after_another(Clock(), 2, 200, size=300))
    data = bytearray(path.read_bytes())
    rng = random.Random(11)
    for at in rng.sample(range(1000, len(data)), 3000):
        data[at] = rng.randrange(256)
    path.write_bytes(bytes(data))
    with TraceFile(path, use_sidecar=False) as trace:
        for number in range(0, 200, 9):
            for _, record in trace.find_step(number, "r1", budget_s=LONG):
                assert isinstance(record, Step) and record.step == number
        assert len(trace.tail(50)) == 50


def test_a_search_gives_up_in_time(tmp_path: Path) -> None:
    path = shared(tmp_path, "sequential", one_after_another(Clock(), 5, 300, size=400))
    with TraceFile(path, use_sidecar=False) as trace:
        assert trace.find_step(299, "r4", budget_s=0.0) == []  # the first block does not hold it
        assert trace.find_step(0, budget_s=0.0, every=True)  # and that one is always looked at


_MADE: dict[str, bytes] = {}


def shared(tmp_path: Path, name: str, records: Iterable[Record]) -> Path:
    """A larger file, encoded once for all tests of this module."""
    path = tmp_path / f"{name}.jsonl"
    if name not in _MADE:
        write(path, records)
        _MADE[name] = path.read_bytes()
    path.write_bytes(_MADE[name])
    return path
