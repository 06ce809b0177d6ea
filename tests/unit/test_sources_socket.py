"""The socket source against real emitters: reconnecting, restarting, commands, and who is trusted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ddscope.sources import SocketSource, SourceError
from ddscope_hooks.emit import Emitter
from tests.unit.emit_support import HEADER, Books, wait_for


class Spool:
    """A sink that keeps the books."""

    def __init__(self) -> None:
        self.books = Books()
        self.batches: list[bytes] = []

    def __call__(self, batch: bytes) -> None:
        self.batches.append(batch)
        self.books.take_all(batch)


@pytest.fixture
def spool() -> Spool:
    return Spool()


def listening(path: Path, **options: Any) -> Emitter:
    emitter = Emitter("engine/0", HEADER, **options)
    emitter.listen(f"unix:{path}")
    return emitter


def test_it_waits_for_an_engine_that_comes_later(tmp_path: Path, spool: Spool) -> None:
    source = SocketSource(tmp_path / "s", spool)
    assert source.state == "connecting"
    source.start()
    wait_for(lambda: "No such file" in source.reason, "the reason why it waits")
    emitter = listening(tmp_path / "s")
    wait_for(lambda: spool.books.of("header"), "the header")
    assert source.state == "connected" and source.reason == ""
    emitter.emit("mark", {"n": 1})
    wait_for(lambda: spool.books.of("mark"), "the mark")
    assert spool.books.gaps() == [], "it said hello, so it missed nothing"
    source.stop()
    emitter.close()
    assert all(batch.endswith(b"\n") for batch in spool.batches)


def test_after_a_lost_connection_it_goes_on_and_what_it_missed_is_a_gap(tmp_path: Path, spool: Spool) -> None:
    emitter = listening(tmp_path / "s")
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    emitter.emit("request", {"rid": "a", "prompt_len": 1})
    wait_for(lambda: spool.books.of("request"), "the request")
    held = source._sock
    assert held is not None
    connections = source.counters.connections
    held.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: not emitter.counters.viewers or source.counters.connections > connections, "the loss")
    for n in range(500):
        emitter.emit("mark", {"n": n})
    emitter.emit("finish", {"rid": "a", "reason": "stop", "emitted": 1, "steps": 1})
    wait_for(lambda: spool.books.of("finish"), "the end of the request")
    wait_for(lambda: spool.books.emitted["engine/0"] == emitter.counters.emitted, "all seqs")
    assert source.counters.connections > connections
    assert {r["src"] for r in spool.books.records} == {"engine/0"}
    assert len(spool.books.of("header")) == 1
    source.stop()
    emitter.close()


def test_connected_is_an_engine_that_answers_not_a_socket_that_takes_connections(tmp_path: Path, spool: Spool) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:  # as a forwarded socket whose other end has nobody
        deaf.bind(str(tmp_path / "s"))
        deaf.listen(16)
        source = SocketSource(tmp_path / "s", spool)
        source.start()
        wait_for(lambda: "has said nothing yet" in source.reason, "the connection")
        assert (source.state, source.counters.connections) == ("connecting", 0)
    (tmp_path / "s").unlink()
    emitter = listening(tmp_path / "s")
    wait_for(lambda: source.state == "connected", "the engine")
    emitter.emit("mark", {"n": 1})
    wait_for(lambda: spool.books.of("mark"), "the mark")
    lost = source._sock
    assert lost is not None
    lost.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: source.counters.connections == 2, "an answer, though nothing is new")
    assert source.state == "connected"
    source.stop()
    emitter.close()


def test_a_restarted_engine_is_another_source(tmp_path: Path, spool: Spool) -> None:
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    for n in range(3):
        emitter = listening(tmp_path / "s")
        wait_for(lambda n=n: len(spool.books.of("header")) == n + 1, "the header")  # type: ignore[misc]
        emitter.emit("mark", {"n": n})
        wait_for(lambda n=n: len(spool.books.of("mark")) == n + 1, "the mark")  # type: ignore[misc]
        emitter.close()
    assert [r["src"] for r in spool.books.of("mark")] == ["engine/0", "engine/0#2", "engine/0#3"]
    wait_for(lambda: source.state == "lost", "the loss being noticed")
    source.stop()


def test_commands_given_before_the_engine_is_there_reach_it_in_order(tmp_path: Path, spool: Spool) -> None:
    got: list[Any] = []
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    source.send("submit", {"prompt": "hé"}, by="test")
    source.send("pause", {})
    emitter = listening(tmp_path / "s", control=True, on_control=got.append)
    wait_for(lambda: len(got) == 2, "both commands")
    source.send("resume", {})
    wait_for(lambda: len(got) == 3, "the third")
    assert got[0] == {"type": "control", "command": "submit", "args": {"prompt": "hé"}, "by": "test"}
    assert [m["command"] for m in got] == ["submit", "pause", "resume"] and got[1]["by"] == "viewer"
    source.stop()
    emitter.close()


def test_a_command_that_waited_is_not_lost_with_a_connection_that_breaks_at_once(tmp_path: Path, spool: Spool) -> None:
    got: list[Any] = []
    source = SocketSource(tmp_path / "s", spool)
    source.send("submit", {"prompt": "a"})
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(SourceError, match="took no command"):
        source._serve(ours)
    source._sock = None
    emitter = listening(tmp_path / "s", control=True, on_control=got.append)
    source.start()
    wait_for(lambda: [m["command"] for m in got] == ["submit"], "the command")
    source.stop()
    emitter.close()


def test_a_command_to_a_lost_engine_is_refused_in_one_sentence_not_kept(tmp_path: Path, spool: Spool) -> None:
    emitter = listening(tmp_path / "s", control=True, on_control=print)
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    wait_for(lambda: source.state == "connected", "the connection")
    emitter.close()
    wait_for(lambda: source.state == "lost", "the loss")
    with pytest.raises(SourceError, match="`pause` was not sent: the engine is not connected"):
        source.send("pause", {})
    source.stop()
    with pytest.raises(SourceError):
        source.send("pause", {})


def test_a_killed_engine_is_noticed_and_what_it_sent_is_kept(tmp_path: Path, spool: Spool) -> None:
    code = (
        "import sys,time; from ddscope_hooks.emit import Emitter\n"
        "e=Emitter('engine/0',{}); e.listen('unix:'+sys.argv[1])\n"
        "while 1: e.emit('mark',{'pad':'x'*500}); time.sleep(0.001)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")])
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    wait_for(lambda: len(spool.books.of("mark")) > 50, "marks")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: source.state == "lost", "the loss")
    assert "closed the connection" in source.reason or "Connection refused" in source.reason
    with closing(listening(tmp_path / "s")):
        wait_for(lambda: len(spool.books.of("header")) == 2, "the next engine at the same path")
    source.stop()


def test_a_sink_that_fails_stops_the_source_with_its_sentence(tmp_path: Path) -> None:
    def full(batch: bytes) -> None:
        raise ValueError("Cannot write the trace: No space left on device.")

    emitter = listening(tmp_path / "s")
    source = SocketSource(tmp_path / "s", full)
    source.start()
    wait_for(lambda: source.state == "lost", "its giving up")
    assert source.reason.endswith("cannot be kept: Cannot write the trace: No space left on device.")
    source.stop()
    emitter.close()


def test_a_path_that_is_no_socket_is_not_followed(tmp_path: Path, spool: Spool) -> None:
    (tmp_path / "s").write_text("")
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    wait_for(lambda: source.reason.endswith("is not a socket."), "the reason")
    assert source.state == "connecting"
    source.stop()


def test_a_symbolic_link_is_not_followed(tmp_path: Path, spool: Spool) -> None:
    emitter = listening(tmp_path / "real")
    (tmp_path / "s").symlink_to(tmp_path / "real")
    source = SocketSource(tmp_path / "s", spool)
    source.start()
    wait_for(lambda: source.reason.endswith("is not a socket."), "the reason")
    assert spool.batches == []
    source.stop()
    emitter.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
def test_another_users_socket_is_not_followed_unless_that_user_is_named(tmp_path: Path, spool: Spool) -> None:
    code = (
        "import os,socket,sys\n"
        "if sys.argv[2] == 'process': os.setuid(65534)\n"
        "s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "print('ready', flush=True)\n"
        "kept=[]\n"
        "while 1:\n c,_=s.accept(); kept.append(c)\n"
        ' try: c.sendall(b\'{"type":"header","src":"x","seq":0,"t":1,"mono":1}\\n\')\n'
        " except OSError: pass"
    )
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    for whose in ("file", "process"):
        path = tmp_path / whose
        process = subprocess.Popen([sys.executable, "-S", "-c", code, str(path), whose], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        os.chown(path, 65534 if whose == "file" else 0, 0)  # once the file is a stranger's, once only the process
        stranger = SocketSource(path, spool)
        stranger.start()
        wait_for(lambda s=stranger: s.reason.endswith("belongs to user id 65534: not followed."), "the refusal")  # type: ignore[misc]
        stranger.stop()
        assert spool.batches == []
        named = Spool()
        trusting = SocketSource(path, named, uid=65534)
        trusting.start()
        wait_for(lambda n=named: n.batches, "records of the user who was named")  # type: ignore[misc]
        trusting.stop()
        process.kill()
        process.wait()


def test_stop_ends_the_thread_and_may_be_called_in_any_state(tmp_path: Path, spool: Spool) -> None:
    never = SocketSource(tmp_path / "s", spool)
    never.stop()
    waiting = SocketSource(tmp_path / "s", spool)
    waiting.start()
    waiting.stop()
    waiting.stop()
    assert not [t for t in threading.enumerate() if t.name == "source s"]


@pytest.mark.parametrize("seed", range(2))
def test_viewers_that_lose_and_find_their_engine_at_random_keep_whole_books(tmp_path: Path, seed: int) -> None:
    """Real threads on both sides: several emit, several viewers lose their connection or stop reading for a moment."""
    rng = random.Random(seed)
    emitter = listening(tmp_path / "s", ring=1 << 14, queue_bytes=1 << 17, token_text=lambda ids: [str(i) for i in ids])
    spools = [Spool() for _ in range(3)]
    sources = [SocketSource(tmp_path / "s", spool) for spool in spools]
    for source in sources:
        source.start()
    done = threading.Event()

    def work(who: int) -> None:
        n = 0
        while not done.is_set():
            rid = f"{who}-{n // 40}"
            if n % 40 == 0:
                emitter.emit("request", {"rid": rid, "prompt_len": 1, "prompt_ids": [n % 977]})
            emitter.emit("step", {"rid": rid, "step": n % 40, "emitted": [n % 1009], "pad": "x" * 400})
            if n % 40 == 39:
                emitter.emit("finish", {"rid": rid, "reason": "stop", "emitted": 40, "steps": 40})
            n += 1
            if n % 20 == 0:
                time.sleep(0.002)

    threads = [threading.Thread(target=work, args=(w,)) for w in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        victim = rng.choice(sources)
        held = victim._sock
        if held is not None and rng.random() < 0.7:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        else:
            with victim._sending:  # a reconnect waits for this, as for a viewer that is busy
                time.sleep(rng.random() * 0.1)
        time.sleep(rng.random() * 0.08)
    done.set()
    for thread in threads:
        thread.join()
    wait_for(lambda: emitter.counters.in_flight == 0, "the ring")
    wait_for(
        lambda: all(s.books.emitted.get("engine/0") == emitter.counters.emitted for s in spools), "everybody's last seq"
    )
    for source, spool in zip(sources, spools, strict=True):
        source.stop()
        assert source.counters.malformed == 0
        assert len(spool.books.of("header")) == 1
        assert source.counters.received + source.counters.dropped == emitter.counters.emitted
        opened = {r["rid"] for r in spool.books.of("request")}
        closed = {r["rid"] for r in spool.books.of("finish")}
        if emitter.counters.dropped == 0:  # else the ring may have lost an end or a beginning
            assert closed <= opened, "an end without its beginning"
            assert len(opened - closed) <= 2, "a request that ended is left open"
    assert max(source.counters.connections for source in sources) > 2
    emitter.close()
