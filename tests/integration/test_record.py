"""`ddscope record` against real processes that emit: ranks, restarts, kills, stopped and late viewers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Fact, Gap, Header, Record, Request, Step
from ddscope.session import Session
from ddscope.trace import TraceFile, stats, verify
from tests.integration.emitting_server import ROOT, Server
from tests.unit.emit_support import wait_for

Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers, and ends those that are left."""
    servers: list[Server] = []

    def starting(name: str, rank: int = 0) -> Server:
        servers.append(Server(tmp_path / "s" / f"{name}.sock", rank))
        return servers[-1]

    yield starting
    for server in servers:
        server.end()


class Recorder:
    """`ddscope record` as a process, with what it says on standard error."""

    def __init__(self, *args: str | Path) -> None:
        command = [sys.executable, "-m", "ddscope", "record", *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))

    def connected(self, count: int = 1) -> None:
        """Wait until it follows so many sockets."""
        wait_for(lambda: sum(line.endswith(": connected") for line in self.said) >= count, f"{count} connections")

    def ended(self) -> tuple[int, str]:
        """Exit status and standard output; fails when it does not end."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        status = self.process.wait(30)
        self._reader.join(10)
        self.process.stdout.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        assert "Traceback" not in "\n".join(self.said)
        return status, out


@contextmanager
def recording(*args: str | Path) -> Iterator[Recorder]:
    """A recorder that does not outlive the test."""
    recorder = Recorder(*args)
    try:
        yield recorder
    finally:
        if recorder.process.poll() is None:
            recorder.process.kill()
            recorder.process.wait()


def records_of(path: Path) -> list[Record]:
    """All records of a trace that can be read."""
    with TraceFile(path, use_sidecar=False) as trace:
        while trace.poll(1.0):
            pass
        return [found for number in range(trace.index.n) if isinstance(found := trace.record(number), Record)]


def steps_in(path: Path) -> Callable[[int], bool]:
    """Whether so many steps are in a growing trace."""
    return lambda count: path.exists() and path.read_bytes().count(b'{"type":"step"') >= count


def settled(path: Path, *servers: Server) -> Callable[[], bool]:
    """Whether a growing trace has everything that servers have emitted."""

    def reached() -> bool:
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # the last one may be half written
        last: dict[str, int] = {}
        for line in lines:
            record = json.loads(line)
            last[record["src"]] = record["seq"]
        told = [json.loads(server.tell("counters")) for server in servers]
        return sorted(last[src] + 1 for src in last if src.startswith("engine/")) == sorted(
            t["emitted"] for t in told
        ) and not any(t["in_flight"] for t in told)

    return reached


def sound(path: Path) -> None:
    """Every invariant holds, and the books of every source balance."""
    assert [(p.record, p.text) for p in verify(path).problems] == []
    for name, book in stats(path).sources.items():
        assert book["emitted"] == book["received"] + book["dropped"], name


def test_two_ranks_are_two_sources_on_one_axis_and_count_once(tmp_path: Path, start: Start) -> None:
    ranks = [start("0"), start("1", rank=1)]
    out = tmp_path / "t.jsonl"
    with recording("--socket", ranks[0].socket, "--socket", ranks[1].socket, "-o", out, "--json") as recorder:
        recorder.connected(2)
        for rank in reversed(ranks):  # the second rank's records come first
            rank.tell("request a", "steps 30", "finish")
        wait_for(settled(out, *ranks), "all records")
        recorder.process.send_signal(signal.SIGINT)
        status, said = recorder.ended()
    summary: dict[str, Any] = json.loads(said)
    assert (status, summary["ended"], summary["steps"], summary["tokens"]) == (0, "interrupted", 30, 60)
    assert (summary["dropped"], summary["tau"], summary["findings"]) == (0, 2.0, [])
    assert {name for name in summary["sources"] if name.startswith("engine/")} == {"engine/0", "engine/1"}
    assert summary["requests"] == [
        {
            "rid": "a",
            "tokens": 60,
            "steps": 30,
            "tau": 2.0,
            "tokens_per_s": summary["requests"][0]["tokens_per_s"],
            "state": "length",
        }
    ]
    sound(out)
    told = stats(out)
    assert (told.steps, told.types["step"], told.requests[0].steps, told.tau) == (30, 60, 30, 2.0)


def test_a_step_in_which_ranks_differ_is_found(tmp_path: Path, start: Start) -> None:
    ranks = [start("0"), start("1", rank=1)]
    out = tmp_path / "t.jsonl"
    with recording("--socket", tmp_path / "s", "-o", out) as recorder:
        recorder.connected(2)
        ranks[0].tell("request a", "steps 20")
        ranks[1].tell("request a", "steps 8", "differ", "steps 12")
        wait_for(settled(out, *ranks), "all records")
        recorder.process.send_signal(signal.SIGTERM)
        status, said = recorder.ended()
    assert status == 1
    assert "hang.rank_divergence (counts)" in said
    assert "Ranks 0, 1 emit different tokens, first at step 8 of request a." in " ".join(said.split())
    assert "Recorded (interrupted)" in said


def test_it_ends_when_every_server_was_killed_and_has_what_they_told(tmp_path: Path, start: Start) -> None:
    ranks = [start("0"), start("1", rank=1)]
    out = tmp_path / "t.jsonl"
    with recording("--socket", f"{tmp_path}/s/*.sock", "-o", out, "--json") as recorder:
        recorder.connected(2)
        for rank in ranks:
            rank.tell("request a", "steps 9")
        wait_for(settled(out, *ranks), "all records")
        ranks[0].kill()
        wait_for(lambda: any(line.startswith("0.sock: lost") for line in recorder.said), "the loss")
        ranks[1].tell("steps 1")
        wait_for(settled_rank(out, 10), "the step of the rank that is left")
        ranks[1].kill()
        status, said = recorder.ended()
    assert (status, json.loads(said)["ended"]) == (0, "every server is gone")
    sound(out)


def settled_rank(path: Path, steps: int) -> Callable[[], bool]:
    """Whether so many steps of rank 1 are in a growing trace."""
    return lambda: path.read_bytes().count(b'{"type":"step","src":"engine/1"') >= steps


def test_a_server_that_is_started_again_behind_its_socket_goes_on_as_a_source_of_its_own(
    tmp_path: Path, start: Start
) -> None:
    first = start("0")
    out = tmp_path / "t.jsonl"
    with recording("--socket", first.socket, "--wait", "30", "-o", out, "--json") as recorder:
        recorder.connected()
        first.tell("request a", "steps 5")
        wait_for(lambda: steps_in(out)(5), "five steps")
        first.kill()
        second = start("0")
        recorder.connected(2)
        second.tell("request a", "steps 7", "finish")  # a client that sends the same id again
        wait_for(lambda: steps_in(out)(12), "the steps of the second server")
        recorder.process.send_signal(signal.SIGINT)
        status, said = recorder.ended()
    summary = json.loads(said)
    assert status == 0 and {"engine/0", "engine/0#2"} <= summary["sources"].keys()
    assert summary["steps"] == 12
    sound(out)
    headers = [record.src for record in records_of(out) if isinstance(record, Header)]
    assert headers == ["engine/0", "engine/0#2"]


def test_a_rank_that_comes_later_into_a_folder_is_followed(tmp_path: Path, start: Start) -> None:
    first = start("0")
    out = tmp_path / "t.jsonl"
    with recording("--socket", tmp_path / "s", "-o", out, "--json") as recorder:
        recorder.connected()
        first.tell("request a", "steps 5")
        second = start("1", rank=1)
        recorder.connected(2)
        second.tell("request a", "steps 5")
        wait_for(settled(out, first, second), "all records")
        recorder.process.send_signal(signal.SIGINT)
        status, said = recorder.ended()
    assert status == 0 and "engine/1" in json.loads(said)["sources"]
    sound(out)


def test_a_viewer_that_is_stopped_loses_records_and_slows_nobody(tmp_path: Path, start: Start) -> None:
    server = start("0")
    stopped, other = tmp_path / "stopped.jsonl", tmp_path / "other.jsonl"
    with (
        recording("--socket", server.socket, "-o", stopped, "--json") as one,
        recording("--socket", server.socket, "-o", other, "--json") as two,
    ):
        one.connected()
        two.connected()
        server.tell("request a", "steps 3")
        wait_for(lambda: steps_in(stopped)(3) and steps_in(other)(3), "both viewers")
        one.process.send_signal(signal.SIGSTOP)
        # Far more than a viewer's queue and the kernel's buffers hold (8 MiB).
        server.tell("steps 40000")
        wait_for(lambda: steps_in(other)(40003), "the viewer that reads")
        one.process.send_signal(signal.SIGCONT)
        server.tell("steps 1", "finish")
        wait_for(settled(stopped, server), "the viewer that was stopped")
        for recorder in (one, two):
            recorder.process.send_signal(signal.SIGINT)
        (status, said), (_, said_other) = one.ended(), two.ended()
    lost, whole = json.loads(said), json.loads(said_other)
    assert whole["dropped"] == 0 and whole["steps"] == 40004
    assert lost["dropped"] > 0 and "ring_full" in lost["gaps"]
    assert lost["steps"] + lost["dropped"] >= 40004
    assert status in (0, 1)
    sound(stopped)
    sound(other)


def test_who_comes_late_gets_header_facts_texts_and_the_open_requests(tmp_path: Path, start: Start) -> None:
    server = start("0")
    server.tell("request a", "steps 12", "finish", "request b", "steps 4", 'fact versions {"sglang": "0.5.23"}')
    out = tmp_path / "t.jsonl"
    with recording("--socket", server.socket, "-o", out, "--json") as recorder:
        recorder.connected()
        server.tell("steps 2")
        wait_for(settled(out, server), "all records")
        recorder.process.send_signal(signal.SIGINT)
        status, said = recorder.ended()
    assert status == 0
    late = json.loads(said)
    assert late["dropped"] == 0 and late["sources"]["engine/0"]["before_it_began"] > 12
    sound(out)
    records = records_of(out)
    assert isinstance(records[0], Header)
    assert [record.rid for record in records if isinstance(record, Request)] == ["b"]
    facts = {record.name for record in records if isinstance(record, Fact)}
    assert {"hooks.taps", "hooks.sampling", "versions"} <= facts
    assert {record.reason for record in records if isinstance(record, Gap)} == {"joined_late"}
    assert [record.step for record in records if isinstance(record, Step)] == [4, 5]
    with Session.replay(out, use_sidecar=False) as replay:
        assert replay.wait_for(lambda store: store.settled, 20.0)
        row = replay.store.requests()[0]
        assert (row.rid, row.prompt_len, row.steps) == ("b", 2, 2)
        text = replay.store.text("b", prompt=False).plain
        assert text == "⟨7 tokens missing⟩w5w5w6w5w6w7", "tokens that no record holds are counted"


def test_it_ends_after_its_time_and_tells_a_person_what_was_recorded(tmp_path: Path, start: Start) -> None:
    server = start("0")
    server.tell("request a", "steps 3", "finish")
    out = tmp_path / "t.jsonl"
    with recording("--socket", server.socket, "-o", out, "--for", "0.5") as recorder:
        status, said = recorder.ended()
    assert status == 0
    assert "No findings." in said and "Recorded (0.5 seconds are over)" in said
    assert "engine/0" in said and "0 requests" in said
    sound(out)


def test_it_waits_for_a_server_that_is_just_starting(tmp_path: Path, start: Start) -> None:
    out = tmp_path / "t.jsonl"
    with recording("--socket", tmp_path / "s" / "0.sock", "-o", out, "--wait", "60", "--json") as recorder:
        wait_for(lambda: recorder.said, "why it waits")
        assert recorder.said[0].startswith("Waiting. There is no socket at ")
        server = start("0")
        recorder.connected()
        server.tell("request a", "steps 3")
        wait_for(lambda: steps_in(out)(3), "its steps")
        recorder.process.send_signal(signal.SIGINT)
        status, said = recorder.ended()
    assert (status, json.loads(said)["steps"]) == (0, 3)


def test_a_session_steers_what_every_rank_records(tmp_path: Path, start: Start) -> None:
    ranks = [start("0"), start("1", rank=1)]
    with Session.run(servers=[str(tmp_path / "s")], out=tmp_path / "t.jsonl") as session:
        assert session.attached and not session.can_control
        assert session.wait_for(lambda store: len(store.ranks()) == 2, 20.0)
        session.control("sampling", every=4)

        def every() -> list[int | None]:
            return [rank.sampling.every for rank in session.store.ranks() if rank.sampling is not None]

        assert session.wait_for(lambda _: every() == [4, 4], 20.0)
        session.control("pause")
        assert session.wait_for(lambda store: "control.refused" in store.facts(), 20.0)
        assert sorted(status.name for status in session.engines) == ["0.sock", "1.sock"]
        ranks[0].kill()
        ranks[1].kill()
        assert session.wait_for(lambda _: session.gone_s is not None, 20.0)
