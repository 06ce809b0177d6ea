"""The sidecar is a cache: it saves time, and nothing about it can break or mislead a reader."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import msgspec
import pytest

from ddscope.model import Log
from ddscope.trace import TraceFile, TraceWriter, encode, sidecar
from ddscope.trace import file as trace_file
from tests.tracing import Clock, index_all, lines, sample_records, write_sample
from tests.unit.test_trace_index import columns


@pytest.fixture(autouse=True)
def every_file_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "SIDECAR_FROM", 1)


def opened(path: Path) -> tuple[int, dict[str, object]]:
    """(records known at once, everything after a poll)."""
    with TraceFile(path) as trace:
        at_once = trace.index.n
        index_all(trace)
        return at_once, columns(trace.index)


def rebuilt(path: Path) -> dict[str, object]:
    with TraceFile(path, use_sidecar=False) as trace:
        return columns(index_all(trace).index)


def test_a_second_opening_knows_everything_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    first = opened(path)
    assert first[0] == 0
    assert (tmp_path / "t.jsonl.ddx").exists()
    assert opened(path) == (20, first[1])
    assert first[1] == rebuilt(path)


def test_a_file_that_grew_is_indexed_from_where_the_sidecar_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    clock = Clock()
    data = lines(sample_records())
    path.write_bytes(data + b'{"type":"lo')
    assert opened(path)[0] == 0
    with path.open("ab") as file:
        file.write(b'g","src":"log/z","seq":0,"t":1,"mono":1,"message":"x"}\n')
        file.write(b"".join(encode(Log(**clock("log/x"), message="y")) for _ in range(40)))
    at_once, after = opened(path)
    assert at_once == len(sample_records())
    assert after == rebuilt(path)
    assert after["n"] == len(sample_records()) + 41


def test_small_files_get_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "SIDECAR_FROM", 1 << 20)
    path = tmp_path / "t.jsonl"
    write_sample(path)
    opened(path)
    assert os.listdir(tmp_path) == ["t.jsonl"]


def test_a_growing_file_does_not_write_one_at_every_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    real = sidecar.save
    monkeypatch.setattr(sidecar, "save", lambda path, index, fd: saved.append(index.n) or real(path, index, fd))
    path = tmp_path / "t.jsonl"
    clock = Clock()
    with TraceWriter(path) as writer:
        for record in sample_records():
            writer.write(record)
        with TraceFile(path) as trace:
            for _ in range(300):
                writer.write(Log(**clock("log/x"), message="y"))
                trace.poll()
    assert len(saved) < 12
    assert saved[-1] == len(sample_records()) + 300  # closing brings it up to date
    assert opened(path)[1] == rebuilt(path)


@pytest.mark.parametrize("change", ["edited", "touched", "cut", "other head", "other tail"])
def test_a_file_that_is_another_one_now_is_indexed_anew(tmp_path: Path, change: str) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    opened(path)
    if change == "edited":
        path.write_bytes(data.replace(b"generate", b"GENERATE"))
    elif change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "cut":
        path.write_bytes(data[:-200])
    elif change == "other head":
        path.write_bytes(data.replace(b"server-a", b"server-b") + data.split(b"\n")[1] + b"\n")
    else:
        path.write_bytes(data.replace(b'"type":"footer"', b'"type":"fooler"') + data.split(b"\n")[1] + b"\n")
    at_once, after = opened(path)
    assert at_once == 0
    assert after == rebuilt(path)


def test_any_damage_to_the_sidecar_is_noticed_and_the_index_built_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    right = opened(path)[1]
    ddx = tmp_path / "t.jsonl.ddx"
    good = ddx.read_bytes()
    rng = random.Random(3)
    damages = [b"", b"\n", b"{}\n", b"null\n" + good, good[:-1], good + b"\0", good[: len(good) // 2], os.urandom(500)]
    for _ in range(200):
        at = rng.randrange(len(good))
        damages.append(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
    for damage in damages:
        ddx.write_bytes(damage)
        with TraceFile(path) as trace:
            index_all(trace)
            assert columns(trace.index) == right


def test_a_made_up_sidecar_with_a_right_checksum_cannot_point_outside(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    right = opened(path)[1]
    for column, value in (
        ("src", 99), ("rid", 99), ("kind", 200), ("offset", 10**12), ("offset", -1), ("length", 10**12), ("length", -5),
    ):  # fmt: skip
        with TraceFile(path, use_sidecar=False) as trace:
            index_all(trace)
            getattr(trace.index, column)[3] = value
            assert sidecar.save(tmp_path / "t.jsonl.ddx", trace.index, trace._fd)
        assert opened(path) == (0, right)
    for rows in ("by_kind", "steps_of"):
        with TraceFile(path, use_sidecar=False) as trace:
            index_all(trace)
            getattr(trace.index, rows)["step" if rows == "by_kind" else "r1"][0] = 77
            assert sidecar.save(tmp_path / "t.jsonl.ddx", trace.index, trace._fd)
        assert opened(path) == (0, right)


def test_a_sidecar_of_another_machine_or_version_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    right = opened(path)[1]
    ddx = tmp_path / "t.jsonl.ddx"
    _, first, body = ddx.read_bytes().split(b"\n", 2)
    for name, value in (("layout", "big"), ("format", "ddscope-index-0")):
        rest = msgspec.json.encode(msgspec.json.decode(first) | {name: value}) + b"\n" + body
        ddx.write_bytes(b"%08x\n" % zlib.crc32(rest) + rest)
        assert opened(path) == (0, right)
        assert opened(path) == (20, right)  # and was written anew


def test_a_folder_that_takes_no_sidecar_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    (tmp_path / "t.jsonl.ddx").mkdir()
    (tmp_path / "t.jsonl.ddx" / "in the way").touch()
    assert opened(path) == (0, rebuilt(path))
    assert sorted(os.listdir(tmp_path)) == ["t.jsonl", "t.jsonl.ddx"]  # no temporary file is left

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    other = tmp_path / "other.jsonl"
    write_sample(other)
    with monkeypatch.context() as patched:
        patched.setattr(sidecar, "open", refuse, raising=False)
        assert opened(other) == (0, rebuilt(other))
    assert "other.jsonl.ddx" not in os.listdir(tmp_path)


def test_no_sidecar_is_read_or_written_when_none_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    rebuilt(path)
    assert os.listdir(tmp_path) == ["t.jsonl"]
