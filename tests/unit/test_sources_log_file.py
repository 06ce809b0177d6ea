"""Following a log file, one look at a time, and once with its thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddscope.sources.log_file as module
from ddscope.model import Gap, Log, text_bytes
from ddscope.sources import LogFileSource
from ddscope.sources.lines import LONGEST
from ddscope.sources.log_file import start_of_last_lines
from ddscope.trace import decode
from tests.unit.emit_support import wait_for


class Follower:
    """A source that looks when told, and what came of it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.lines: list[bytes] = []
        self.source = LogFileSource(path, self.sink, **options)

    def sink(self, batch: bytes) -> None:
        assert batch.endswith(b"\n")
        self.lines += batch.splitlines()

    def look(self) -> list[bytes | str]:
        """Messages of the new records, in bytes; gaps as their reason."""
        before = len(self.lines)
        while self.source.look():
            pass
        found: list[bytes | str] = []
        for n, line in enumerate(self.lines):
            record = decode(line)
            assert record.seq == n and record.src == f"log/{self.source.path.name}"
            if n < before:
                continue
            if isinstance(record, Log):
                assert record.message is not None
                found.append(text_bytes(record.message) + (b"~" if record.partial else b""))
            else:
                assert isinstance(record, Gap) and record.count is None
                found.append(record.reason)
        return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets time pass for what is only waited for."""

    def pass_time() -> None:
        monkeypatch.setattr(module, "UNFINISHED_S", -1.0)

    return pass_time


def test_new_lines_come_once_and_in_order(log: Path) -> None:
    log.write_bytes(b"one\ntwo\n")
    f = Follower(log, last=None)
    assert f.look() == [b"one", b"two"] and f.source.state == "connected"
    assert f.look() == []
    with log.open("ab") as file:
        file.write(b"three\n\nfo")
    assert f.look() == [b"three", b""]
    with log.open("ab") as file:
        file.write(b"ur\n")
    assert f.look() == [b"four"]


def test_it_begins_with_the_last_lines(log: Path) -> None:
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(5000)))
    assert Follower(log, last=3).look() == [b"line 4997", b"line 4998", b"line 4999"]
    assert Follower(log, last=0).look() == []
    assert len(Follower(log).look()) == 5000
    assert len(Follower(log, last=None).look()) == 5000


@given(st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\n")), st.integers(0, 8), st.integers(1, 9))
def test_the_last_lines_begin_where_splitting_says(data: bytes, lines: int, block: int) -> None:
    fd = os.memfd_create("log")
    try:
        os.write(fd, data)
        start = start_of_last_lines(fd, lines, block)
    finally:
        os.close(fd)
    *whole, open_end = data.split(b"\n")
    each = [line + b"\n" for line in whole] + ([open_end] if open_end else [])
    assert data[start:] == b"".join(each[len(each) - lines :] if lines < len(each) else each)


def test_a_file_that_comes_later_is_read_from_its_beginning(log: Path) -> None:
    f = Follower(log, last=2)
    assert f.look() == [] and f.source.state == "connecting" and "is not there yet" in f.source.reason
    log.write_bytes(b"a\n")
    assert f.look() == [b"a"] and f.source.reason == ""


def test_rotation_loses_no_line_of_either_file(log: Path) -> None:
    log.write_bytes(b"1\n")
    f = Follower(log)
    assert f.look() == [b"1"]
    writer = log.open("ab")
    writer.write(b"2\n")
    writer.flush()
    log.rename(log.with_suffix(".1"))
    assert f.look() == [b"2"], "renamed, and there is no new file yet"
    writer.write(b"3\n")
    writer.flush()
    log.write_bytes(b"4\n" * 3000)
    assert f.look() == [b"3", *[b"4"] * 3000], "a new file is read from its beginning, whatever its length"
    writer.write(b"5\n")
    writer.close()
    with log.open("ab") as file:
        file.write(b"6\n")
    assert sorted(map(str, f.look())) == ["b'5'", "b'6'"], "its writer had not noticed yet"


def test_the_last_words_of_a_rotated_file_are_kept_without_their_end(log: Path) -> None:
    log.write_bytes(b"1\nlast words")
    f = Follower(log)
    assert f.look() == [b"1"]
    log.rename(log.with_suffix(".1"))
    log.write_bytes(b"2\n")
    f.look()
    f.source.stop()
    f.source._work()  # ends at once, and hands on what is left
    assert b"last words" in b"".join(f.lines)


def test_truncation_is_a_gap_and_the_file_is_read_again(log: Path) -> None:
    log.write_bytes(b"1\n2\n")
    f = Follower(log)
    f.look()
    log.write_bytes(b"")
    assert f.look() == ["cursor_lost"]
    with log.open("ab") as file:
        file.write(b"3\n")
    assert f.look() == [b"3"]


def test_a_file_that_was_cut_and_filled_again_beyond_our_place_is_noticed(log: Path) -> None:
    log.write_bytes(b"1\n2\n")
    f = Follower(log)
    f.look()
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(b"a new beginning\n" * 2)
    assert f.look() == ["cursor_lost", b"a new beginning", b"a new beginning"]


def test_a_cut_before_the_first_read_is_noticed(log: Path) -> None:
    log.write_bytes(b"x" * 500 + b"\n")
    f = Follower(log, last=0)
    assert f.look() == []
    log.write_bytes(b"y\n")
    assert f.look() == ["cursor_lost", b"y"]


def test_a_line_without_its_end_is_shown_after_a_while_as_partial(log: Path, soon: Callable[[], None]) -> None:
    log.write_bytes(b"1\nFatal: cannot go on")
    f = Follower(log)
    assert f.look() == [b"1"]
    soon()
    assert f.look() == [b"Fatal: cannot go on~"]
    with log.open("ab") as file:
        file.write(b" because\n")
    assert f.look() == [b" because"]


def test_a_line_longer_than_the_bound_is_cut_into_partial_records(log: Path) -> None:
    long = bytes(range(1, 10)) * 12_000
    log.write_bytes(long + b"\nshort\n")
    got = Follower(log).look()
    assert got[-1] == b"short"
    pieces = [p for p in got[:-1] if isinstance(p, bytes)]
    assert [p.endswith(b"~") for p in pieces] == [True, True, False]
    assert all(len(p) <= LONGEST + 1 for p in pieces)
    assert b"".join(p.removesuffix(b"~") for p in pieces) == long


def test_a_file_that_never_ends_a_line_is_not_kept_in_memory(log: Path) -> None:
    log.write_bytes(b"x" * (3 << 20))
    f = Follower(log, last=None)
    f.look()
    assert f.source._file is not None and len(f.source._file.cutter.rest) <= LONGEST
    assert sum(len(x) for x in f.lines) > 3 << 20 >> 1


@pytest.mark.parametrize(
    "hostile", [b"\xff\xfe\x00", b"\x1b[31mred\x07", b"[/INST] [bold]", "\u2028\x85é".encode(), b"a\rb"]
)
def test_hostile_bytes_arrive_as_they_are(log: Path, hostile: bytes) -> None:
    log.write_bytes(hostile + b"\n")
    f = Follower(log)
    assert f.look() == [hostile]
    is_text = True
    try:
        hostile.decode()
    except UnicodeDecodeError:
        is_text = False
    assert (b'"b64"' in f.lines[0]) is not is_text


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_one_sentence_and_nothing_blocks(log: Path, kind: str) -> None:
    if kind == "folder":
        log.mkdir()
    else:
        os.mkfifo(log)
    f = Follower(log)
    assert (
        f.look() == []
        and f.source.state == "lost"
        and f.source.reason == f"{log} cannot be read: it is not a regular file."
    )


def test_a_file_that_may_not_be_read_is_one_sentence(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(b"x\n")
    if os.geteuid() == 0:  # root may read anything, so the refusal has to be made

        def refuse(*_: Any) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(module.os, "open", refuse)
    else:
        log.chmod(0)
    f = Follower(log)
    f.look()
    assert f.source.state == "lost" and f.source.reason == f"{log} cannot be read: Permission denied."
    monkeypatch.undo()
    log.chmod(0o600)
    assert f.look() == [b"x"] and f.source.state == "connected", "it goes on when it may"


@given(
    st.lists(st.sampled_from([b"line\n", b"part", b"\n", b"\xff\n", b"rotate", b"x" * 70 + b"\n"]), max_size=30),
    st.integers(1, 5),
)
def test_any_writing_and_rotating_is_followed_byte_for_byte(acts: list[bytes], every: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "a.log")
        log.touch()
        f = Follower(log, last=None)
        written = b""
        seen: list[bytes | str] = []
        for n, act in enumerate(acts):
            if act == b"rotate":
                if written and not written.endswith(b"\n"):
                    with log.open("ab") as file:
                        file.write(b"\n")
                    written += b"\n"
                seen += f.look()
                log.rename(Path(folder, f"a.{n}"))
                log.touch()
            else:
                with log.open("ab") as file:
                    file.write(act)
                written += act
            if n % every == 0:
                seen += f.look()
        seen += f.look()
        assert seen == written.split(b"\n")[:-1]


def test_its_thread_follows_until_it_is_stopped(log: Path) -> None:
    got: list[bytes] = []
    source = LogFileSource(log, got.append)
    source.start()
    log.write_bytes(b"a\nb")
    wait_for(lambda: source.received == 1, "the line")
    source.stop()
    assert [decode(line).message for batch in got for line in batch.splitlines()] == ["a", "b"]  # type: ignore[union-attr]
    assert not [t for t in threading.enumerate() if t.name == "source log/server.log"]


def test_a_sink_that_fails_is_one_sentence(log: Path) -> None:
    def full(batch: bytes) -> None:
        raise ValueError("the disk is full")

    log.write_bytes(b"a\n")
    source = LogFileSource(log, full)
    source.start()
    wait_for(lambda: source.state == "lost", "its giving up")
    assert source.reason == f"Lines of {log} cannot be kept: the disk is full"
    source.stop()
