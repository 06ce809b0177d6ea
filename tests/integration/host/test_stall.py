"""A connection that stands and carries nothing, and a laptop that slept: all goes on, and what was missed is marked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddscope.model import Gap, Log, Record, text_bytes
from ddscope.remote.attached import AttachedHost, Wanted
from ddscope.session import Session
from ddscope.trace import TraceFile, verify
from tests.integration.emitting_server import ROOT, Server
from tests.integration.host.service import Service, connections
from tests.integration.host.sshd import NAME, Sshd, descendants
from tests.integration.host.test_attached import FAST
from tests.unit.emit_support import wait_for

MANY = 40


def write(log: Path, first: int) -> None:
    """Lines from a number on."""
    with log.open("a") as file:
        file.write("".join(f"line {n}\n" for n in range(first, first + MANY)))


def records(path: Path) -> list[Record]:
    """All of a finished trace."""
    trace = TraceFile(path)
    while trace.poll(1.0):
        pass
    return [record for n in range(trace.index.n) if isinstance(record := trace.record(n), Record)]


def told(trace: Path, words: bytes) -> bool:
    """Whether a growing trace has them."""
    return trace.exists() and words in trace.read_bytes()


def lines(found: list[Record]) -> list[int]:
    """Numbers of the lines of the log."""
    said = [text_bytes(one.message).decode() for one in found if isinstance(one, Log) and one.src == "log/server.log"]
    return [int(text.split()[1]) for text in said if text.startswith("line ")]


def test_a_connection_that_stalls_is_given_up_and_everything_goes_on(
    hooked: Server,
    sshd: Sshd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ddscope.remote.host.ALIVE_S", 1)
    log, out = tmp_path / "server.log", tmp_path / "t.jsonl"
    write(log, 0)
    wanted = Wanted(pid=hooked.process.pid, log_files=[str(log)], **{**FAST, "probe": False})
    host = AttachedHost(NAME, wanted, ssh=sshd.ssh)
    with Session.run(hosts=[host], out=out) as session:
        assert session.wait_for(lambda store: connections(session) == 1 and len(store.logs()) >= MANY, 60)
        hooked.tell("request r1", "steps 50")
        assert session.wait_for(lambda store: store.totals().steps == 50, 60), session.sources

        stalled = sshd.sessions
        assert stalled
        for pid in stalled:
            os.kill(pid, signal.SIGSTOP)
        try:
            write(log, MANY)
            hooked.tell("steps 50")  # they go into the connection, and never come out of it
            wait_for(lambda: host.host.connections == 2, "another connection", 120)
            assert session.wait_for(lambda _: connections(session) == 2, 60), session.sources
            wait_for(lambda: told(out, b"line %d" % (2 * MANY - 1)), "the lines of the time between")
        finally:
            for pid in stalled:
                os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not set(stalled) & set(sshd.sessions), "the end of what was stalled")
        write(log, 2 * MANY)
        hooked.tell("steps 50", "finish")
        assert session.wait_for(lambda store: store.requests()[0].state == "finished", 60)
        wait_for(lambda: told(out, b"line %d" % (3 * MANY - 1)), "the last lines")
        states = lambda _: {status.state for status in session.sources} == {"connected"}  # noqa: E731
        assert session.wait_for(states, 60) and host.host.connections == 2, session.sources
        assert [row.step for row in session.store.steps("r1")] == [*range(50), *range(100, 150)]
    hooked.end()
    assert verify(out).problems == []
    found = records(out)
    assert lines(found) == list(range(3 * MANY)), "every line once"
    gaps = [(gap.src, gap.count, gap.reason) for gap in found if isinstance(gap, Gap)]
    assert sorted(gaps) == [("engine/0", 50, "disconnected"), ("probe", None, "disconnected")]


def test_after_a_laptop_slept_and_its_host_had_given_it_up_all_goes_on(
    service: Service, sshd: Sshd, tmp_path: Path
) -> None:
    log, out = tmp_path / "server.log", tmp_path / "t.jsonl"
    write(log, 0)
    command = [
        sys.executable, "-m", "ddscope", "record", "--host", NAME, "--port", str(service.port),
        "--log-file", str(log), "--no-probe", "-o", str(out),
    ]  # fmt: skip

    with subprocess.Popen(
        command, env={**os.environ, **sshd.environ}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as laptop:
        try:
            wait_for(lambda: told(out, b"line %d" % (MANY - 1)) and told(out, b'"rung":"health"'), "the records")
            asleep = [laptop.pid, *descendants(laptop.pid)]
            for pid in asleep:
                os.kill(pid, signal.SIGSTOP)
            assert sshd.drop() > 0
            write(log, MANY)
            for pid in reversed(asleep):
                os.kill(pid, signal.SIGCONT)
            wait_for(lambda: told(out, b"line %d" % (2 * MANY - 1)), "the lines of the night")
            wait_for(lambda: out.read_bytes().rpartition(b'"disconnected"')[2].count(b'"rung":"health"'), "the rungs")
        finally:
            laptop.send_signal(signal.SIGINT)
        said = laptop.communicate(timeout=60)[0]
    assert laptop.returncode in (0, 1), said
    assert verify(out).problems == []
    found = records(out)
    assert lines(found) == list(range(2 * MANY)), "every line once"
    assert [gap.reason for gap in found if isinstance(gap, Gap) and gap.src == "probe"] == ["disconnected"]
