"""Logs of a host over connections that are cut: nothing lost, nothing twice, and what cannot be known is a gap."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddscope.model import Gap, Log, text_bytes
from ddscope.remote import Host
from ddscope.remote.lines import CommandLines, RemoteFile
from ddscope.sources import JournalSource
from tests.integration.host.service import Kept
from tests.integration.host.sshd import Sshd
from tests.integration.test_sources_journal import REMOTE, Journal
from tests.unit.emit_support import wait_for

needs_journal = pytest.mark.skipif(
    not (REMOTE and shutil.which("journalctl")), reason="journalctl and systemd-journal-remote are not installed"
)
DROPS = 3


def texts(kept: Kept) -> list[bytes]:
    """Messages in order, as bytes."""
    return [text_bytes(log.message) for log in kept.of(Log)]


def cut_while(host: Host, sshd: Sshd, kept: Kept, write: Callable[[int], None], parts: int, each: int) -> None:
    """Write in parts, and cut the connection in the middle of DROPS of them, while lines are coming over it."""
    for part in range(parts):
        cut = part in range(1, 2 * DROPS, 2)
        if cut:  # lines of the connection before may still be read: this must be the next one
            wait_for(lambda part=part: host.connections > part // 2, "the connection")  # type: ignore[misc]
        before = len(kept.lines)
        write(each)
        if cut:
            wait_for(lambda before=before: len(kept.lines) > before, "lines")  # type: ignore[misc]
            assert sshd.drop() > 0


# the journal ----------------------------------------------------------------------------------------------------


@needs_journal
def test_a_journal_over_three_cuts_has_every_line_once(host: Host, sshd: Sshd, tmp_path: Path) -> None:
    lines = 50_000
    journal = Journal(tmp_path)
    journal.write(b"first", unit="z.service")
    wait_for(journal.readable, "the journal file")
    kept = Kept()
    source = JournalSource(
        "x.service",
        kept,
        last="all",
        command=["journalctl", f"--file={journal.path}"],
        there=host.command,
        host=host.name,
        name="ct129/x.service",
    )
    source.start()
    wait_for(lambda: source.state == "connected", f"the journal: {source.reason}")
    written = 0

    def write(count: int) -> None:
        nonlocal written
        journal.write(*[b"line %d" % n for n in range(written, written + count)])
        written += count

    cut_while(host, sshd, kept, write, 10, lines // 10)
    wait_for(lambda: len(kept.lines) >= lines, f"{lines} lines, not {len(kept.lines)}: {source.reason}", 180)
    source.stop()
    journal.close()
    assert texts(kept) == [b"line %d" % n for n in range(lines)]
    assert kept.of(Gap) == []
    assert host.connections == 1 + DROPS
    assert {record.src for record in kept.records} == {"journal/ct129/x.service"}
    kept.check_books()


@needs_journal
def test_a_journal_whose_cursor_was_vacuumed_says_so_and_repeats_nothing(
    host: Host, sshd: Sshd, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    first = Journal(folder)
    first.write(*[b"old %d" % n for n in range(5)])
    wait_for(lambda: first.path.exists() and b"old 4" in _cat(host, folder), "the journal")
    kept = Kept()
    command = ["journalctl", f"--directory={folder}"]
    source = JournalSource("x.service", kept, last="all", command=command, there=host.command, host=host.name)
    source.start()
    wait_for(lambda: len(kept.of(Log)) == 5, f"five lines: {source.reason}")
    sshd.vanish()
    first.close()
    first.path.unlink()
    second = Journal(folder, "b.journal")
    second.n = 1000  # later
    second.write(b"new 0", b"new 1")
    wait_for(lambda: b"new 1" in _cat(Host("localhost"), folder), "the new journal")
    sshd.start()
    wait_for(lambda: len(kept.of(Log)) == 7, f"seven lines: {source.reason}")
    source.stop()
    second.close()
    assert texts(kept) == [*(b"old %d" % n for n in range(5)), b"new 0", b"new 1"]
    assert [gap.reason for gap in kept.of(Gap)] == ["cursor_lost"]
    kept.check_books()


def _cat(host: Host, folder: Path) -> bytes:
    return host.run(["journalctl", f"--directory={folder}", "-ocat", "--no-pager"]).out


@needs_journal
def test_a_host_without_journalctl_is_one_sentence(host: Host) -> None:
    kept = Kept()
    source = JournalSource("x.service", kept, command=["no-such-journalctl"], there=host.command, host=host.name)
    source.start()
    wait_for(lambda: source.state == "lost", "the failure")
    source.stop()
    assert source.reason == "no-such-journalctl is not on ct129; use --log-file for a server without systemd."


# a file ---------------------------------------------------------------------------------------------------------


def test_a_log_file_over_three_cuts_has_every_line_once(host: Host, sshd: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"before\n")
    kept = Kept()
    source = RemoteFile(host, str(path), kept, last=0)
    source.start()
    wait_for(lambda: source.state == "connected", "the file")
    written = 0

    def write(count: int) -> None:
        nonlocal written
        with path.open("ab") as file:
            file.write(b"".join(b"line %d\n" % n for n in range(written, written + count)))
        written += count

    write(1)
    wait_for(lambda: len(kept.lines) == 1, f"the first line: {source.reason}")
    cut_while(host, sshd, kept, write, 8, 500)
    wait_for(lambda: len(kept.lines) >= written, f"{written} lines, not {len(kept.lines)}: {source.reason}", 120)
    source.stop()
    assert texts(kept) == [b"line %d" % n for n in range(written)]
    assert kept.of(Gap) == []
    kept.check_books()


@pytest.mark.parametrize("name", ["localhost", "ct129"])
def test_a_rotated_log_file_goes_on_with_the_new_one(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    host = Host("localhost") if name == "localhost" else request.getfixturevalue("host")
    path = tmp_path / "server.log"
    path.write_bytes(b"1\n2\n3\n")
    kept = Kept()
    source = RemoteFile(host, str(path), kept, last=2)
    source.start()
    wait_for(lambda: texts(kept) == [b"2", b"3"], f"the last two: {source.reason}")
    path.rename(tmp_path / "server.log.1")
    with (tmp_path / "server.log.1").open("ab") as old:
        old.write(b"4\n")
    path.write_bytes(b"5\n")
    wait_for(lambda: texts(kept) == [b"2", b"3", b"4", b"5"], f"both: {source.reason}")
    path.write_bytes(b"")
    wait_for(lambda: [gap.reason for gap in kept.of(Gap)] == ["cursor_lost"], "the truncation")
    with path.open("ab") as file:
        file.write(b"6\nunfinished")
    wait_for(lambda: texts(kept)[-1] == b"6", "what came after it")
    source.stop()
    assert texts(kept)[-1] == b"unfinished" and kept.of(Log)[-1].partial
    kept.check_books()


def test_a_log_file_that_is_not_there_is_said_and_waited_for(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    kept = Kept()
    source = RemoteFile(host, str(path), kept)
    source.start()
    words = f"{path} cannot be read on ct129: No such file or directory."
    wait_for(lambda: source.reason == words, f"the sentence, not {source.reason}")
    path.write_bytes(b"hello\n")
    wait_for(lambda: texts(kept) == [b"hello"], "the line")
    source.stop()


# a command ------------------------------------------------------------------------------------------------------


def test_what_a_command_prints_is_read_and_what_was_missed_is_a_gap(host: Host, sshd: Sshd, tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    script = f"echo begun >>{mark}; echo out; echo err >&2; printf '\\377bytes\\n'; while :; do sleep 1; done"
    kept = Kept()
    source = CommandLines(host, script, kept)
    source.start()
    wait_for(lambda: len(kept.of(Log)) == 3, f"three lines: {source.reason}")
    assert sorted(texts(kept)) == [b"err", b"out", b"\xffbytes"]
    sshd.drop()
    wait_for(lambda: len(kept.of(Log)) == 6, f"three more: {source.reason}")
    assert [gap.reason for gap in kept.of(Gap)] == ["disconnected"]
    assert mark.read_text() == "begun\n" * 2
    source.stop()
    kept.check_books()
    assert source.received == 7


@pytest.mark.parametrize("name", ["localhost", "ct129"])
def test_a_silent_command_ends_on_its_host_when_it_is_no_longer_read(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    host = Host("localhost") if name == "localhost" else request.getfixturevalue("host")
    mark = tmp_path / "pid"
    source = CommandLines(host, f"echo $$ >{mark}; exec sleep 300", Kept())
    source.start()
    wait_for(lambda: mark.exists() and mark.read_text().strip(), "the command")
    pid = int(mark.read_text())
    source.stop()
    wait_for(lambda: not _alive(pid), "its end")


@pytest.mark.parametrize("name", ["localhost", "ct129"])
def test_what_follows_a_quiet_log_ends_with_a_viewer_that_was_killed(name: str, sshd: Sshd, tmp_path: Path) -> None:
    """Nothing is left, here or there, although none of them ever writes a line that could not be delivered."""
    quiet, log, pids = tmp_path / "journalctl", tmp_path / "server.log", tmp_path / "pids"
    quiet.write_text(f"#!/bin/sh\necho $$ >>{pids}\nexec sleep 3000\n")
    quiet.chmod(0o755)
    log.touch()
    code = f"""
import sys, time
from ddscope.remote import Host
from ddscope.remote.lines import CommandLines, RemoteFile
from ddscope.sources import JournalSource
host = Host({name!r}, ssh={sshd.ssh!r})
sink = lambda lines: None
file = RemoteFile(host, {str(log)!r}, sink)
sources = [
    JournalSource("x.service", sink, command=[{str(quiet)!r}], there=host.command, host=host.name),
    CommandLines(host, "echo $$ >>{pids}; sleep 3000 | sleep 3000", sink), file,
]
for source in sources:
    source.start()
while file.state != "connected":
    time.sleep(0.01)
print(host.folder, flush=True)
time.sleep(3000)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout is not None
        folder = viewer.stdout.readline().strip()
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, "both commands")
        groups = {os.getpgid(int(pid)) for pid in pids.read_text().split()}
        viewer.kill()
    try:
        wait_for(lambda: not [pid for pid in _all() if _group(pid) in groups or _holds(pid, log)], "the end")
    finally:
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    wait_for(lambda: not [pid for pid in _all() if f"{sshd.folder}/ssh_config".encode() in _line(pid)], "ssh's end")
    shutil.rmtree(folder, ignore_errors=True)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _alive(int(name))]


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _holds(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    try:
        return any(
            os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), path.stat()) for fd in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def test_a_command_that_fails_is_said(host: Host) -> None:
    source = CommandLines(host, "echo 'no container named x' >&2; exit 3", Kept())
    source.start()
    wait_for(lambda: source.state == "lost", "the failure")
    assert "ended with status 3" in source.reason
    source.stop()


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False
