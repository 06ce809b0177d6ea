"""The journal source against the real journalctl, on journal files that systemd-journal-remote writes meanwhile."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.model import Gap, Log, text_bytes
from ddscope.sources import JournalSource
from ddscope.trace import decode
from tests.unit.emit_support import wait_for

REMOTE = next(
    (
        p
        for p in ("/usr/lib/systemd/systemd-journal-remote", "/lib/systemd/systemd-journal-remote")
        if os.path.exists(p)
    ),
    "",
)
pytestmark = pytest.mark.skipif(
    not (REMOTE and shutil.which("journalctl")), reason="journalctl and systemd-journal-remote are not installed"
)
BOOT = "0123456789abcdef0123456789abcdef"
T0 = 1_700_000_000_000_000


class Journal:
    """A journal file that grows."""

    def __init__(self, folder: Path, name: str = "a.journal") -> None:
        self.path = folder / name
        self.n = 0
        self._process = subprocess.Popen(
            [REMOTE, "-o", str(self.path), "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def readable(self) -> bool:
        """Whether journalctl can open it; a moment ago it was made."""
        shown = subprocess.run(["journalctl", f"--file={self.path}", "-n1", "-ocat"], capture_output=True, check=False)
        return shown.returncode == 0 and shown.stdout == b"first\n"

    def write(self, *messages: bytes, unit: str = "x.service", **fields: str) -> None:
        assert self._process.stdin is not None
        for message in messages:
            entry = {
                "__REALTIME_TIMESTAMP": T0 + self.n * 1000, "__MONOTONIC_TIMESTAMP": 5000 + self.n, "_BOOT_ID": BOOT,
                "_SYSTEMD_UNIT": unit, "PRIORITY": 6, "_PID": 77, "SYSLOG_IDENTIFIER": "srv", **fields,
            }  # fmt: skip
            self.n += 1
            text = "".join(f"{name}={value}\n" for name, value in entry.items()).encode()
            self._process.stdin.write(text + b"MESSAGE\n" + struct.pack("<Q", len(message)) + message + b"\n\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Following:
    """A journal source with what came of it."""

    def __init__(
        self, *journals: Journal, unit: str = "x.service", program: str = "journalctl", **options: object
    ) -> None:
        self.lines: list[bytes] = []
        command = [program, *(f"--file={journal.path}" for journal in journals)]
        self.source = JournalSource(unit, self._sink, command=command, **options)  # type: ignore[arg-type]
        self.source.start()

    def _sink(self, batch: bytes) -> None:
        self.lines += batch.splitlines()

    def records(self) -> list[Log | Gap]:
        records = [decode(line) for line in list(self.lines)]
        seq = 0
        for record in records:
            assert isinstance(record, (Log, Gap)) and record.src == f"journal/{self.source.unit}"
            seq += record.count if isinstance(record, Gap) and record.count is not None else 1
            assert record.seq == seq - 1, "gapless"
        return records  # type: ignore[return-value]

    def messages(self) -> list[bytes | str]:
        return [text_bytes(r.message or "") if isinstance(r, Log) else f"{r.reason} {r.count}" for r in self.records()]

    def expect(self, *messages: bytes | str) -> None:
        wait_for(lambda: len(self.messages()) >= len(messages), f"{len(messages)} records; {self.source.reason}")
        assert self.messages() == list(messages)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    made.write(b"first", unit="z.service")
    wait_for(made.readable, "the journal file")
    yield made
    made.close()


@pytest.fixture
def stop() -> Iterator[list[Following]]:
    running: list[Following] = []
    yield running
    for each in running:
        each.source.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("source journal/")]


def test_all_entries_of_the_unit_come_then_the_new_ones(journal: Journal, stop: list[Following]) -> None:
    journal.write(*[b"%d" % n for n in range(60)])
    journal.write(b"another's", unit="y.service")
    f = Following(journal)
    stop.append(f)
    f.expect(*[b"%d" % n for n in range(60)])
    assert f.source.state == "connected" and f.source.reason == ""
    journal.write(b"new")
    f.expect(*[b"%d" % n for n in range(60)], b"new")
    record = f.records()[-1]
    assert isinstance(record, Log)
    assert (record.t, record.mono, record.unit, record.pid, record.priority, record.ident, record.partial) == (
        T0 + 62_000, 5062, "x.service", 77, 6, "srv", None,
    )  # fmt: skip
    assert record.cursor == f.source.cursor


def test_only_the_last_lines_when_asked(journal: Journal, stop: list[Following]) -> None:
    journal.write(*[b"%d" % n for n in range(30)])
    whole = Following(journal)
    stop.append(whole)
    whole.expect(*[b"%d" % n for n in range(30)])
    f = Following(journal, last=3)
    stop.append(f)
    f.expect(b"27", b"28", b"29")


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xfe\x00 binary",
        b"two\nlines\n",
        b"",
        b"\x1b[31m[/INST]\r",
        "é\u2028".encode(),
        b"x" * 100_000,
        b"A=1\n\nB=2",
    ],
)
def test_a_message_arrives_byte_for_byte(journal: Journal, stop: list[Following], message: bytes) -> None:
    journal.write(b"before", message, b"after")
    f = Following(journal)
    stop.append(f)
    f.expect(b"before", message, b"after")


def test_a_line_that_journald_cut_is_partial(journal: Journal, stop: list[Following]) -> None:
    journal.write(b"beginning", _LINE_BREAK="line-max")
    journal.write(b"end", _LINE_BREAK="eof")
    f = Following(journal)
    stop.append(f)
    f.expect(b"beginning", b"end")
    assert [r.partial for r in f.records() if isinstance(r, Log)] == [True, None]


def test_what_journald_suppressed_is_a_gap_before_its_notice(journal: Journal, stop: list[Following]) -> None:
    journal.write(b"one")
    journal.write(b"Suppressed 480 messages from x.service", N_DROPPED="480")
    journal.write(b"two")
    f = Following(journal)
    stop.append(f)
    f.expect(b"one", "rate_limited 480", b"Suppressed 480 messages from x.service", b"two")


def test_resuming_gives_all_that_is_pending_and_nothing_twice(journal: Journal, stop: list[Following]) -> None:
    journal.write(*[b"%d" % n for n in range(5)])
    first = Following(journal)
    first.expect(*[b"%d" % n for n in range(5)])
    first.source.stop()
    journal.write(b"another's", unit="y.service")
    journal.write(*[b"%d" % n for n in range(5, 65)])
    second = Following(journal, cursor=first.source.cursor)
    stop.append(second)
    second.expect(*[b"%d" % n for n in range(5, 65)])
    journal.write(b"live")
    second.expect(*[b"%d" % n for n in range(5, 65)], b"live")


@pytest.mark.parametrize("cursor", ["nonsense", "s=00000000000000000000000000000000;i=1;b=00;m=1;t=1;x=1"])
def test_a_cursor_that_is_gone_is_said_and_everything_is_shown(
    journal: Journal, stop: list[Following], cursor: str
) -> None:
    journal.write(b"1", b"2")
    f = Following(journal, cursor=cursor)
    stop.append(f)
    f.expect("cursor_lost None", b"1", b"2")


def test_when_journalctl_is_killed_it_is_started_again_where_it_was(
    journal: Journal, stop: list[Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddscope.sources.journal.BACKOFF_S", (0.05, 0.1))
    journal.write(b"1", b"2")
    f = Following(journal)
    stop.append(f)
    f.expect(b"1", b"2")
    assert _journalctls(journal.path, kill=True) == 1
    journal.write(b"3")
    f.expect(b"1", b"2", b"3")  # and no gap: the cursor shows that nothing is missing
    assert f.source.state == "connected"


def test_stopping_leaves_no_journalctl_behind(journal: Journal) -> None:
    journal.write(b"1")
    f = Following(journal)
    f.expect(b"1")
    assert _journalctls(journal.path) == 1
    f.source.stop()
    assert _journalctls(journal.path) == 0


def test_a_unit_without_entries_is_waited_for(journal: Journal, stop: list[Following]) -> None:
    journal.write(b"1")
    f = Following(journal, unit="quiet.service")
    stop.append(f)
    wait_for(lambda: f.source.reason == "The journal has no entry of quiet.service yet.", "the reason")
    journal.write(b"hello", unit="quiet.service")
    wait_for(lambda: b"hello" in f.messages(), "its first entry")
    assert f.source.state == "connected"


def test_a_machine_without_journalctl_is_one_sentence_and_a_gap(journal: Journal, stop: list[Following]) -> None:
    f = Following(journal, program="no-such-journalctl")
    stop.append(f)
    wait_for(lambda: f.source.state == "lost", "the failure")
    assert f.source.reason == "no-such-journalctl is not on this machine; use --log-file for a server without systemd."
    f.expect("disconnected None")


def test_an_option_that_journalctl_refuses_is_one_sentence(journal: Journal, stop: list[Following]) -> None:
    f = Following(journal)
    f.source.stop()
    lines: list[bytes] = []
    source = JournalSource("x.service", lines.append, command=["journalctl", "--no-such-option"])
    source.start()
    wait_for(lambda: source.state == "lost", "the failure")
    assert source.reason.startswith("journalctl ended with status 1: journalctl: unrecognized option")
    source.stop()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be somebody else")
def test_a_journal_that_may_not_be_read_is_one_sentence(
    journal: Journal, tmp_path: Path, stop: list[Following]
) -> None:
    journal.write(b"1")
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o711)
    program = tmp_path / "journalctl-as-nobody"
    program.write_text('#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups journalctl "$@"\n')
    program.chmod(0o755)
    journal.path.chmod(0o600)
    f = Following(journal, program=str(program))
    stop.append(f)
    wait_for(lambda: f.source.state == "lost", "the failure")
    assert f.source.reason == (
        "This user may not read the journal of x.service: join the group systemd-journal, or be root."
    )
    f.expect("disconnected None")


def _journalctls(path: Path, kill: bool = False) -> int:
    """How many journalctl follow this file."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"journalctl") and f"--file={path}".encode() in words:
            found += 1
            if kill:
                os.kill(int(pid), 9)
    return found
