"""The emitter with its threads and real sockets: viewers, commands, faults, forks, the end of the process."""

from __future__ import annotations

import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ddscope_hooks.emit import EmitError, Emitter
from tests.unit.emit_support import HEADER, Books, RawViewer, emitting, step, wait_for

STOP_S = float(os.environ.get("DDSCOPE_STOP_S", "3"))
"""How long a viewer is stopped. 30 s is what is promised; a few show the same, since the queue is full after one."""


def run(code: str, *args: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *args], stdout=subprocess.PIPE, **options)


def test_several_viewers_get_the_same_lines(tmp_path: Path) -> None:
    with emitting(tmp_path) as (emitter, path):
        viewers = [RawViewer(path) for _ in range(3)]
        for v in viewers:
            v.until(lambda b: b.of("header"), "the header")
        for n in range(500):
            emitter.emit("mark", {"n": n})
        for v in viewers:
            v.until(lambda b: len(b.of("mark")) == 500, "500 marks")
        assert viewers[0].books.records == viewers[1].books.records == viewers[2].books.records
        assert [v.sent for v in emitter.counters.viewers] == [501] * 3


def test_records_emitted_before_anybody_listens_are_not_lost(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    for n in range(10):
        emitter.emit("fact", {"name": f"f{n}", "value": n})
    assert emitter.counters.in_flight == 10
    v = RawViewer(emitter.listen(f"unix:{tmp_path}/s"))
    assert len(v.until(lambda b: len(b.of("fact")) == 10, "the facts").gaps()) == 0
    emitter.close()


def test_emit_never_raises_whatever_it_is_given(tmp_path: Path) -> None:
    class Hostile(dict[str, Any]):
        def keys(self) -> Any:
            raise RuntimeError("no keys")

    with emitting(tmp_path) as (emitter, path):
        v = RawViewer(path)
        v.until(lambda b: b.of("header"), "the header")
        given: list[tuple[Any, Any]] = [
            ("x", None), ("x", 3), ("x", Hostile(a=1)), (None, {}), (3, {}), ("x", {1: 2}), ("x", {"a": object()}),
            ([], {}),
        ]  # fmt: skip
        for type_, fields in given:
            emitter.emit(type_, fields)
        emitter.emit("mark", {"last": True})
        books = v.until(lambda b: b.of("mark") and len(b.of("fact")) >= 2, "the record after them, and the reports")
        taps = {r["value"]["tap"] for r in books.of("fact")}
        assert "emit" in taps and any(tap.startswith("encode") for tap in taps)


def test_emitting_from_many_threads_loses_nothing_uncounted(tmp_path: Path) -> None:
    with emitting(tmp_path, ring=256, queue_bytes=1 << 16) as (emitter, path):
        v = RawViewer(path)
        v.until(lambda b: b.of("header"), "the header")

        def work(who: int) -> None:
            for n in range(3000):
                emitter.emit("mark", {"who": who, "n": n, "pad": "x" * 50})

        threads = [threading.Thread(target=work, args=(w,)) for w in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        v.until(lambda b: b.emitted["engine/0"] == 1 + 4 * 3000, "all 12,000, as records or in gaps")
        for who in range(4):
            mine = [r["n"] for r in v.books.of("mark") if r["who"] == who]
            assert mine == sorted(mine)


def test_a_tap_that_faults_is_told_to_stay_off_and_reported_once(tmp_path: Path) -> None:
    with emitting(tmp_path) as (emitter, path):
        v = RawViewer(path)
        v.until(lambda b: b.of("header"), "the header")
        calls = 0

        def hook() -> None:
            nonlocal calls
            calls += 1
            raise ValueError("the tap is wrong")

        off = False
        for _ in range(5):  # an engine's loop around a wrapped hook
            if not off:
                try:
                    hook()
                except Exception as error:
                    off = emitter.fault("verify", error)
            emitter.emit("mark", {})
        emitter.fault("verify", ValueError("again"))
        books = v.until(lambda b: len(b.of("mark")) == 5 and b.of("fact"), "the engine going on")
        assert calls == 1
        assert [r["value"]["tap"] for r in books.of("fact")] == ["verify"]
        assert [(count, reason) for _, count, reason in books.gaps() if reason == "hook_fault"] == [
            (None, "hook_fault")
        ]


def test_commands_reach_the_handler_and_rubbish_does_not(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []
    with emitting(tmp_path, control=True, on_control=got.append) as (emitter, path):
        v = RawViewer(path)
        v.say(type="control", command="pause", args={"a": [1]}, by="me")
        v.sock.sendall(b'not json\n[1]\n{"type":"control"}\n{"type":"control","command":"x","args":3}\n\n\xff\xfe\n')
        v.say(type="control", command="resume")
        wait_for(lambda: len(got) == 2, "the second command")
        assert got[0] == {"type": "control", "command": "pause", "args": {"a": [1]}, "by": "me"}
        assert got[1] == {"type": "control", "command": "resume", "args": {}, "by": None}
        assert emitter.counters.control == 2 and emitter.counters.control_refused == 5


def test_commands_are_refused_unless_control_is_asked_for(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []
    with emitting(tmp_path, on_control=got.append) as (emitter, path):
        v = RawViewer(path)
        v.say(type="control", command="shutdown")
        v.until(lambda b: b.of("header"), "the header")
        wait_for(lambda: emitter.counters.control_refused == 1, "the refusal")
        assert got == []


def test_a_handler_that_raises_is_reported_once_and_stays_in_use(tmp_path: Path) -> None:
    got: list[Any] = []

    def handler(message: dict[str, Any]) -> None:
        got.append(message["command"])
        raise RuntimeError("cannot")

    with emitting(tmp_path, control=True, on_control=handler) as (_, path):
        v = RawViewer(path)
        for n in range(3):
            v.say(type="control", command=f"c{n}")
        wait_for(lambda: got == ["c0", "c1", "c2"], "three commands")
        books = v.until(lambda b: b.of("fact"), "the report")
        assert [r["value"]["tap"] for r in books.of("fact")] == ["control"]


def test_a_line_without_an_end_costs_the_viewer_its_connection_and_nobody_else(tmp_path: Path) -> None:
    with emitting(tmp_path, control=True, on_control=print) as (emitter, path):
        good, bad = RawViewer(path), RawViewer(path)
        good.until(lambda b: b.of("header"), "the header")
        bad.sock.setblocking(True)
        with pytest.raises(OSError):
            bad.sock.sendall(b"x" * (64 << 20))
        emitter.emit("mark", {})
        good.until(lambda b: b.of("mark"), "the mark")


def test_a_viewer_that_only_listens_may_close_its_sending_side(tmp_path: Path) -> None:
    with emitting(tmp_path) as (emitter, path):
        v = RawViewer(path)
        v.sock.shutdown(1)
        v.until(lambda b: b.of("header"), "the header")
        emitter.emit("mark", {})
        v.until(lambda b: b.of("mark"), "the mark")
        v.close()
        wait_for(lambda: not emitter.counters.viewers, "the viewer's end being noticed")


def test_viewers_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    with emitting(tmp_path) as (emitter, path):
        before = len(os.listdir("/proc/self/fd"))
        for n in range(50):
            v = RawViewer(path)
            if n % 3:
                v.until(lambda b: b.of("header"), "the header")
            emitter.emit("mark", {"pad": "x" * 1000})
            v.close()
        wait_for(lambda: not emitter.counters.viewers, "all being gone")
        wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, "all their sockets being closed")


def test_close_sends_what_waits_and_may_be_called_again(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    path = emitter.listen(f"unix:{tmp_path}/s")
    v = RawViewer(path)
    v.until(lambda b: b.of("header"), "the header")
    for n in range(2000):
        emitter.emit("mark", {"n": n})
    closing = threading.Thread(target=emitter.close)
    closing.start()
    v.until(lambda b: len(b.of("mark")) == 2000, "what was emitted before close")
    closing.join()
    v.until(lambda b: v.ended, "the end") if not v.ended else None
    assert not os.path.exists(path)
    emitter.close()
    emitter.emit("mark", {})  # does nothing, raises nothing
    with pytest.raises(EmitError, match="closed"):
        emitter.listen(f"unix:{tmp_path}/s")


def test_close_does_not_wait_for_a_viewer_that_does_not_read(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    v = RawViewer(emitter.listen(f"unix:{tmp_path}/s"))
    v.until(lambda b: b.of("header"), "the header")
    for n in range(3000):
        emitter.emit("mark", {"n": n, "pad": "x" * 1000})
    start = time.monotonic()
    emitter.close(timeout=0.3)
    assert time.monotonic() - start < 5


def test_threads_end_with_close_and_nothing_keeps_the_emitter_alive(tmp_path: Path) -> None:
    import weakref

    emitter = Emitter("engine/0", HEADER)
    emitter.listen(f"unix:{tmp_path}/s")
    emitter.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("ddscope-emit")]
    ref = weakref.ref(emitter)
    del emitter
    gc.collect()
    assert ref() is None


def test_a_header_that_cannot_be_encoded_is_refused_in_one_sentence() -> None:
    with pytest.raises(EmitError, match="header cannot be encoded: object"):
        Emitter("engine/0", {"engine": object()})


def test_in_a_forked_child_the_emitter_is_inert_and_the_parents_goes_on(tmp_path: Path) -> None:
    with emitting(tmp_path) as (emitter, path):
        recording = emitter.listen(f"file:{tmp_path}/t.jsonl")
        v = RawViewer(path)
        v.until(lambda b: b.of("header"), "the header")
        emitter.emit("mark", {"who": "parent"})
        child = os.fork()
        if child == 0:
            try:
                emitter.emit("mark", {"who": "child"})
                emitter.fault("tap", ValueError())
                emitter.counters  # noqa: B018 - must not wait for a lock that a thread of the parent held
                emitter.close()
                own = Emitter("engine/1", HEADER)  # a child may have an emitter of its own
                own.listen(f"file:{tmp_path}/child.jsonl")
                own.emit("mark", {"who": "child"})
                own.close()
                os._exit(0 if os.path.exists(path) else 3)
            except BaseException:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        emitter.emit("mark", {"who": "parent"})
        v.until(lambda b: len(b.of("mark")) == 2, "both marks of the parent")
        assert {r["who"] for r in v.books.of("mark")} == {"parent"}
    books = Books()
    books.take_all(Path(recording).read_bytes())
    assert [r["who"] for r in books.of("mark")] == ["parent", "parent"]
    assert b'"who":"child"' in Path(tmp_path, "child.jsonl").read_bytes()


def test_a_process_that_ends_normally_loses_nothing(tmp_path: Path) -> None:
    code = """
        import sys
        from ddscope_hooks.emit import Emitter
        e = Emitter("engine/0", {})
        e.listen("file:" + sys.argv[1])
        for n in range(3000):
            e.emit("mark", {"n": n})
    """
    path = tmp_path / "t.jsonl"
    assert run(code, str(path)).wait(60) == 0
    books = Books()
    books.take_all(path.read_bytes())
    assert [r["n"] for r in books.of("mark")] == list(range(3000))
    assert books.records[-1]["type"] == "footer"


def test_a_process_that_is_killed_leaves_whole_lines_and_its_viewer_what_was_sent(tmp_path: Path) -> None:
    code = """
        import sys, time
        from ddscope_hooks.emit import Emitter
        e = Emitter("engine/0", {})
        e.listen("file:" + sys.argv[1])
        print(e.listen("unix:" + sys.argv[2]), flush=True)
        n = 0
        while True:
            e.emit("mark", {"n": n, "pad": "x" * 300})
            n += 1
            time.sleep(0.0005)
    """
    file, path = tmp_path / "t.jsonl", str(tmp_path / "s")
    process = run(code, str(file), path)
    assert process.stdout is not None
    process.stdout.readline()
    v = RawViewer(path)
    v.until(lambda b: len(b.of("mark")) > 100, "some marks")
    process.kill()
    process.wait()
    v.until(lambda b: v.ended, "the end of the connection") if not v.ended else None
    books = Books()
    data = file.read_bytes()
    assert data.endswith(b"\n"), "a half line"
    books.take_all(data)
    assert len(books.of("mark")) > 100


VIEWER = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
out = open(sys.argv[2], "wb", buffering=0)
while data := s.recv(1 << 16):
    out.write(data)
"""


@pytest.mark.slow
def test_a_stopped_viewer_does_not_slow_the_emitting_thread_and_gets_a_gap(tmp_path: Path) -> None:
    """SIGSTOP for `STOP_S` seconds, then SIGCONT: the median cost of `emit` stays, the books balance."""
    fields = step(0)

    def emit_for(seconds: float, emitter: Emitter) -> float:
        """Median µs of an `emit`, one every 2 ms."""
        took = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            start = time.perf_counter_ns()
            emitter.emit("step", fields)
            took.append((time.perf_counter_ns() - start) / 1000)
            time.sleep(0.002)
        return statistics.median(took)

    received = tmp_path / "received"
    with emitting(tmp_path, queue_bytes=1 << 20) as (emitter, path):
        alone = emit_for(STOP_S, emitter)
        process = run(VIEWER, path, str(received))
        wait_for(lambda: emitter.counters.viewers and emitter.counters.viewers[0].sent, "the viewer")
        process.send_signal(signal.SIGSTOP)
        try:
            stopped = emit_for(STOP_S, emitter)
            wait_for(lambda: emitter.counters.viewers[0].behind > 0, "its queue being full")
            held = emitter.counters.viewers[0].queued_bytes
        finally:
            process.send_signal(signal.SIGCONT)
        assert stopped < 5 * alone + 20, f"{stopped:.1f} µs with a stopped viewer, {alone:.1f} µs with none"
        assert held < 3 << 20
        wait_for(
            lambda: emitter.counters.viewers[0].behind == emitter.counters.viewers[0].queued == 0, "its catching up"
        )
        emitted = emitter.counters.emitted
        emitter.emit("mark", {"after": True})
    process.wait(20)
    books = Books()
    books.take_all(received.read_bytes())
    assert books.records[-1]["type"] == "mark" and books.emitted["engine/0"] == emitted + 1
    assert any(count and reason == "ring_full" for _, count, reason in books.gaps())
    assert books.of("step"), "it also got steps"


def test_json_lines_of_the_wire_are_the_lines_of_the_file(tmp_path: Path) -> None:
    with emitting(tmp_path, token_text=lambda ids: [b"\xff%d" % i for i in ids]) as (emitter, path):
        recording = emitter.listen(f"file:{tmp_path}/t.jsonl")
        v = RawViewer(path)
        v.until(lambda b: b.of("header"), "the header")
        emitter.emit("step", step(3))
        v.until(lambda b: b.of("step"), "the step")
    lines = Path(recording).read_bytes().splitlines()
    assert [json.loads(line) for line in lines[:-1]] == v.books.records
    assert v.books.of("tokens")[0]["text"][0] == {"b64": "/zA="} or v.books.of("tokens")[0]["ids"][0] != 0
