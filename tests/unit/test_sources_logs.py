"""Log files and journals as sources: real files that grow, rotate and shrink; the export format by its description."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope.model import Gap, Log, text_bytes
from ddscope.sources import JournalSource, LogFileSource
from ddscope.sources.export import ExportError, ExportParser
from ddscope.sources.lines import LONGEST, priority_of, stamp_of
from ddscope.trace import decode


class Sink:
    """Records in order; `wait` blocks until a condition holds."""

    def __init__(self) -> None:
        self.records: list[object] = []
        self._news = threading.Condition()

    def __call__(self, lines: bytes) -> None:
        with self._news:
            self.records += [decode(line) for line in lines.splitlines(keepends=True)]
            self._news.notify_all()

    def wait(self, found: Callable[[list[object]], bool], timeout: float = 20) -> None:
        with self._news:
            assert self._news.wait_for(lambda: found(self.records), timeout), self.records[-5:]

    @property
    def messages(self) -> list[bytes]:
        return [text_bytes(r.message) for r in self.records if isinstance(r, Log) and r.message is not None]


def gapless(sink: Sink) -> bool:
    return [r.seq for r in sink.records] == list(range(len(sink.records)))  # type: ignore[attr-defined]


def until(holds: Callable[[], bool], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., tuple[Path, Sink, LogFileSource]]]:
    sources: list[LogFileSource] = []

    def start(content: bytes | None = None, **options: int) -> tuple[Path, Sink, LogFileSource]:
        path, sink = tmp_path / "server.log", Sink()
        if content is not None:
            path.write_bytes(content)
        source = LogFileSource(path, sink, **options)  # type: ignore[arg-type]
        sources.append(source)
        source.start()
        return path, sink, source

    yield start
    for source in sources:
        source.stop()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_are_told_as_they_come_and_the_rest_at_the_end(follow) -> None:  # type: ignore[no-untyped-def]
    path, sink, source = follow(b"one\ntwo\nthr")
    sink.wait(lambda rs: len(rs) == 2)
    append(path, b"ee\nfour")
    sink.wait(lambda rs: len(rs) == 3)
    source.stop()
    assert sink.messages == [b"one", b"two", b"three", b"four"]
    assert [r.partial for r in sink.records] == [None, None, None, True]
    assert gapless(sink)


def test_a_file_that_is_not_there_yet_is_waited_for(follow) -> None:  # type: ignore[no-untyped-def]
    path, sink, source = follow()
    assert source.state == "connecting"
    assert "not there yet" in source.reason
    path.write_bytes(b"late\n")
    sink.wait(lambda rs: len(rs) == 1)
    assert source.state == "connected"


def test_rotation_loses_and_doubles_nothing(follow) -> None:  # type: ignore[no-untyped-def]
    path, sink, _ = follow(b"0\n")
    for number in range(1, 40):
        append(path, b"%d\n" % number)
        if number % 10 == 5:
            # The file is being read; its last lines may not have been when it is moved away.
            seen = max(1, number - 8)
            sink.wait(lambda rs, seen=seen: len(rs) >= seen)
            path.rename(path.with_suffix(f".{number}"))
            path.touch()
            count = number + 1
            sink.wait(lambda rs, count=count: len(rs) == count)
    sink.wait(lambda rs: len(rs) == 40)
    assert sink.messages == [b"%d" % number for number in range(40)]
    assert gapless(sink)


def test_a_truncated_file_is_read_from_its_start_with_a_gap(follow) -> None:  # type: ignore[no-untyped-def]
    path, sink, _ = follow(b"long line before\n")
    sink.wait(lambda rs: len(rs) == 1)
    os.truncate(path, 0)
    append(path, b"new\n")
    sink.wait(lambda rs: bool(rs) and isinstance(rs[-1], Log) and rs[-1].message == "new")
    assert [type(r) for r in sink.records] == [Log, Gap, Log]
    assert sink.records[1].reason == "cursor_lost"  # type: ignore[attr-defined]


def test_hostile_bytes_are_kept(follow) -> None:  # type: ignore[no-untyped-def]
    lines = [b"\xff\xfe\x00", b"\x1b[31mred\x1b[0m", b"[/INST] [bold]", b"\r progress 10%\r progress 20%", b"\xe2\x80"]
    _, sink, _ = follow(b"\n".join(lines) + b"\n")
    sink.wait(lambda rs: len(rs) == len(lines))
    assert sink.messages == lines


def test_a_line_longer_than_the_limit_comes_in_marked_pieces(follow) -> None:  # type: ignore[no-untyped-def]
    long = bytes(range(32, 127)) * (3 * LONGEST // 95)
    _, sink, _ = follow(long + b"\nshort\n")
    sink.wait(lambda rs: bool(rs) and rs[-1].message == "short")  # type: ignore[attr-defined]
    assert b"".join(sink.messages[:-1]) == long
    assert [r.partial for r in sink.records[:-2]] == [True] * (len(sink.records) - 2)


@pytest.mark.parametrize("last", [0, 1, 3, 100])
def test_only_the_last_lines_are_told_when_asked(last: int, follow) -> None:  # type: ignore[no-untyped-def]
    path, sink, source = follow(b"".join(b"%d\n" % n for n in range(10)), last=last)
    until(lambda: source.state == "connected")
    append(path, b"end\n")
    sink.wait(lambda rs: bool(rs) and rs[-1].message == "end")  # type: ignore[attr-defined]
    assert sink.messages == [*([b"%d" % n for n in range(10)][-last:] if last else []), b"end"]


def test_an_unreadable_path_says_why(tmp_path: Path) -> None:
    source = LogFileSource(tmp_path, Sink())  # a folder
    source.start()
    until(lambda: source.state != "connecting")
    source.stop()
    assert source.state == "lost"
    assert "cannot be read" in source.reason


def test_times_and_levels_of_known_prefixes() -> None:
    assert priority_of(b"[2026-11-30 14:02:11] WARNING something ERROR") == 4
    assert priority_of(b"no level") is None
    a, b = stamp_of(b"[2026-11-30 14:02:11.25 TP0] x"), stamp_of(b"2026-11-30T14:02:11 x")
    assert a is not None
    assert b is not None
    assert a - b == 250_000
    assert stamp_of(b"[2026-13-41 99:99:99] x") is None
    assert stamp_of(b"Traceback") is None


names = st.from_regex(rb"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True)
entries = st.lists(st.dictionaries(names, st.binary(max_size=60), min_size=1, max_size=6), max_size=6)


def exported(entry: dict[bytes, bytes]) -> bytes:
    fields = []
    for name, value in entry.items():
        if b"\n" in value or not all(32 <= c < 127 for c in value):
            fields.append(name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n")
        else:
            fields.append(name + b"=" + value + b"\n")
    return b"".join(fields) + b"\n"


@given(entries, st.data())
def test_export_entries_are_parsed_however_they_are_cut(wanted: list[dict[bytes, bytes]], data: st.DataObject) -> None:
    stream, parser, got = b"".join(map(exported, wanted)), ExportParser(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += list(parser.feed(stream[:size]))
        stream = stream[size:]
    assert [*got, *parser.finish()] == wanted


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(ExportError, match="damaged"):
        list(ExportParser().feed(b"MESSAGE\n" + struct.pack("<Q", 1 << 60) + b"x"))


def test_a_machine_without_journalctl_says_so() -> None:
    source = JournalSource("x.service", Sink(), command=["/nonexistent/journalctl"])
    source.start()
    assert source._thread is not None
    source._thread.join(10)
    assert source.state == "lost"
    assert "--log-file" in source.reason
    source.stop()


def entry(number: int, message: bytes = b"m") -> dict[bytes, bytes]:
    return {
        b"__CURSOR": b"c%d" % number,
        b"__REALTIME_TIMESTAMP": b"%d" % (1_790_000_000_000_000 + number),
        b"__MONOTONIC_TIMESTAMP": b"%d" % number,
        b"_PID": b"4100",
        b"PRIORITY": b"3",
        b"MESSAGE": message,
    }


def fake_journalctl(folder: Path, body: str) -> list[str]:
    """A stand-in for the program, not for its format: it lets a run end where a real one would be cut off."""
    script = folder / "journalctl"
    script.write_text(f"#!{sys.executable}\nimport sys, time\nout = sys.stdout.buffer\n{body}\n", "utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def test_after_journalctl_ends_it_resumes_at_the_cursor_and_doubles_nothing(tmp_path: Path) -> None:
    first, again = b"".join(exported(entry(n)) for n in range(3)), b"".join(exported(entry(n)) for n in range(2, 5))
    body = (
        f"resumed = '--cursor=c2' in sys.argv\n"
        f"out.write({again!r} if resumed else {first!r}); out.flush()\n"
        f"time.sleep(600 if resumed else 0)"
    )
    sink = Sink()
    source = JournalSource("x.service", sink, command=fake_journalctl(tmp_path, body))
    source.start()
    sink.wait(lambda rs: len(rs) >= 5)
    source.stop()
    assert [r.cursor for r in sink.records] == ["c0", "c1", "c2", "c3", "c4"]  # type: ignore[attr-defined]
    assert gapless(sink)


def test_a_cursor_that_is_gone_leaves_a_gap(tmp_path: Path) -> None:
    body = (
        f"resumed = any(a.startswith('--cursor') for a in sys.argv)\n"
        f"out.write({exported(entry(9))!r} if resumed else {exported(entry(0))!r}); out.flush()\n"
        f"time.sleep(600 if resumed else 0)"
    )
    sink = Sink()
    source = JournalSource("x.service", sink, command=fake_journalctl(tmp_path, body))
    source.start()
    sink.wait(lambda rs: len(rs) >= 3)
    source.stop()
    assert [type(r) for r in sink.records] == [Log, Gap, Log]


REMOTE = "/lib/systemd/systemd-journal-remote"


@pytest.mark.skipif(
    not (shutil.which("journalctl") and os.path.exists(REMOTE)),
    reason="needs journalctl and systemd-journal-remote (Debian: systemd, systemd-journal-remote)",
)
def test_a_real_journal_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    messages = [b"plain", b"two\nlines", b"\x1b[31mred\xff", b"x" * 6000]
    base = {b"_BOOT_ID": b"5c0ffee05c0ffee05c0ffee05c0ffee0", b"_SYSTEMD_UNIT": b"x.service"}
    stream = b"".join(
        exported({k: v for k, v in entry(n, m).items() if k != b"__CURSOR"} | base) for n, m in enumerate(messages, 1)
    )
    journal = tmp_path / "a.journal"
    subprocess.run([REMOTE, "-o", str(journal), "-"], input=stream, check=True, capture_output=True)
    sink = Sink()
    source = JournalSource("x.service", sink, command=["journalctl", f"--file={journal}"])
    source.start()
    sink.wait(lambda rs: len(rs) >= len(messages))
    source.stop()
    assert sink.messages == messages
    assert all(r.cursor and r.pid == 4100 and r.priority == 3 for r in sink.records)  # type: ignore[attr-defined]
