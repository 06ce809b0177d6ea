"""The session: live and replay, observers, marks, waiting, commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddscope.model import Fact, Gap, Log, Mark, Position, Record, Tensor, Tokens
from ddscope.session import Cursor, Session, SessionError, Store
from ddscope.session.marks import MarksBeside, marks_path
from ddscope.trace import TraceError, Unknown, encode, verify
from tests.unit.session_support import Book, header, plain_step, request

SOON = 20.0


def a_run() -> Book:
    book = Book()
    book.header()
    book.put(Tokens, ids=[1, 999], text=["a", "b"])
    request(book, "r", [1])
    for step in range(5):
        plain_step(book, "r", step, 1 + step, 1, [1])
    return book


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return a_run().write(tmp_path / "t.jsonl")


def test_a_live_session_is_a_recording_that_replays_the_same(tmp_path: Path) -> None:
    session = Session.live(tmp_path / "t.jsonl")
    with session:
        for record in a_run().records:
            session.sink(encode(record))
        assert session.wait_for(lambda store: store.n == 8, SOON)
        live = list(session.store.steps("r"))
        session.finish()
        assert session.settled and session.store.n == 9, "the footer is a record too"
    assert verify(session.path).problems == []
    with Session.replay(session.path) as replay:
        assert replay.wait_for(lambda store: store.settled, SOON)
        assert list(replay.store.steps("r")) == live
        assert not replay.is_live and not replay.can_control


def test_observers_get_every_record_once_and_in_order(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []
    session = Session.live(tmp_path / "t.jsonl")
    session.observe(lambda record, number: seen.append((number, record.type)))
    with session:
        for record in a_run().records:
            session.sink(encode(record))
        session.sink(b'{"type":"future","src":"engine/0","seq":8,"t":1,"mono":1}\nnot a record\n')
        session.finish()
        assert session.observed == session.store.n
    assert seen == list(enumerate(["header", "tokens", "request", *["step"] * 5, "future", "", "footer"]))


def test_an_observer_that_fails_is_switched_off_and_said(recording: Path) -> None:
    seen: list[int] = []

    def failing(record: Record | Unknown, number: int) -> None:
        raise RuntimeError("defect")

    session = Session.replay(recording, observers=[failing, lambda _, number: seen.append(number)])
    with session:
        assert session.wait_for(lambda _: session.settled, SOON)
    assert seen == list(range(9))
    assert session.trouble == "An observer failed on record 0 and is off: RuntimeError('defect')."


def test_an_observer_can_be_asked_while_it_is_fed(recording: Path) -> None:
    counted = 0

    def count(record: Record | Unknown, number: int) -> None:
        nonlocal counted
        counted += 1

    with Session.replay(recording, observers=[count]) as session:
        assert session.wait_for(lambda _: session.ask(lambda: counted) == 9, SOON)


def test_version_moves_when_something_came_and_rests_otherwise(tmp_path: Path) -> None:
    session = Session.live(tmp_path / "t.jsonl")
    with session:
        session.sink(encode(header()))
        assert session.wait_for(lambda store: store.n == 1, SOON)
        assert session.wait_for(lambda store: store.settled, SOON)
        before = session.version
        assert not session.wait_for(lambda _: session.version != before, 0.3)
        session.sink(encode(Log(src="log/x", seq=0, t=1, mono=1, message="m")))
        assert session.wait_for(lambda _: session.version != before, SOON)


def test_several_sources_write_one_spool_at_once(tmp_path: Path) -> None:
    session = Session.live(tmp_path / "t.jsonl")
    start = threading.Barrier(3)

    def source(src: str, first: bytes) -> None:
        start.wait()
        session.sink(first)
        for seq in range(0 if not first else 1, 200):
            session.sink(encode(Log(src=src, seq=seq, t=seq, mono=seq, message=str(seq))))

    with session:
        threads = [
            threading.Thread(target=source, args=args)
            for args in (("engine/0", encode(header())), ("log/a", b""), ("journal/b", b""))
        ]
        for thread in threads:
            thread.start()
        for i in range(20):
            session.wait_for(lambda store, i=i: store.n > 20 * i, SOON)
            session.mark(f"note {i}", 0)
        for thread in threads:
            thread.join()
        session.finish()
        counters = session.store.counters
        assert {name: (c.received, c.dropped) for name, c in counters.items()} == {
            "engine/0": (200, 0), "log/a": (200, 0), "journal/b": (200, 0), "viewer": (21, 0),
        }  # fmt: skip
        assert len(session.store.marks()) == 20
    assert verify(session.path).problems == []


def test_every_view_can_be_asked_while_records_are_taken_in(tmp_path: Path) -> None:
    session = Session.live(tmp_path / "t.jsonl")
    book = Book()
    book.header()
    book.put(Tokens, ids=[1, 999], text=["a", "b"])
    for i in range(400):
        rid = f"r{i % 7}"
        if i < 7:
            request(book, rid, [1])
        plain_step(book, rid, i // 7, 1 + i // 7, 1, [1])
        book.put(Fact, name=f"f{i % 50}", value=i)
        book.put(Tensor, name=f"x{i % 50}", shape=[i], dtype="f", expect=[3], ok=i == 3)
        book.put(Gap, src="log/x", of="log/x", count=None, reason="disconnected")
    end = len(book.records)

    def feed() -> None:
        for record in book.records:
            session.sink(encode(record))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places in the middle of everything
    try:
        with session:
            thread = threading.Thread(target=feed)
            thread.start()
            cursor, looks = Cursor(session.store), 0
            while session.store.n < end or looks < 20:
                store, at = session.store, cursor.at
                cursor.on_new()
                rid = cursor.rid or "r0"
                row = store.request(rid, at)
                assert row is None or row.steps >= row.emitted >= 0
                rows = store.steps(rid, at)
                assert [r.step for r in rows] == list(range(len(rows)))
                _ = (
                    store.text(rid, at).plain,
                    store.facts(at),
                    store.tensors(at),
                    store.curve(rid, at),
                    store.timing(rid, at),
                )
                _ = (
                    list(store.requests(at)),
                    list(store.logs(at)),
                    list(store.gaps(at)),
                    store.state(at),
                    store.counters,
                )
                _ = store.anomaly_records(rid), store.totals(at), store.rid_of(store.n - 1), store.marks(at)
                if cursor.step_record is not None:
                    assert store.tree(cursor.step_record).rid == rid
                looks += 1
            thread.join()
            assert session.wait_for(lambda store: store.settled, SOON)
    finally:
        sys.setswitchinterval(before)
    assert session.trouble is None


def test_a_mark_made_live_is_a_record_of_the_recording(tmp_path: Path) -> None:
    session = Session.live(tmp_path / "t.jsonl")
    with session:
        for record in a_run().records:
            session.sink(encode(record))
        assert session.wait_for(lambda store: store.n == 8, SOON)
        session.mark("look [/INST]", 4)
        assert session.wait_for(lambda store: len(store.marks()) == 1, SOON)
        session.mark("here", 8)
        session.finish()
        session.mark("after the end", 2)  # the footer stands: beside the file
        assert [(m.text, m.target, m.record is None) for m in session.store.marks()] == [
            ("look [/INST]", 4, False), ("here", 8, False), ("after the end", 2, True),
        ]  # fmt: skip
    assert verify(session.path).problems == []


def test_a_mark_in_a_replay_leaves_the_trace_as_it_is(recording: Path) -> None:
    before = recording.read_bytes()
    with Session.replay(recording) as session:
        assert session.wait_for(lambda store: store.settled, SOON)
        version = session.version
        session.mark("first", 3)
        session.mark("second", 5)
        assert session.version > version
        assert [(m.text, m.target) for m in session.store.marks()] == [("first", 3), ("second", 5)]
    assert recording.read_bytes() == before
    with Session.replay(recording) as again:
        assert again.wait_for(lambda store: store.settled, SOON)
        again.mark("third", 1)
        assert [(m.text, m.target) for m in again.store.marks()] == [("first", 3), ("second", 5), ("third", 1)]
    beside = verify(marks_path(recording))
    assert [problem for problem in beside.problems if "footer" not in problem.text] == [], "a small trace of its own"


def test_marks_that_cannot_be_read_or_kept_are_said_and_nothing_is_lost(recording: Path) -> None:
    marks_path(recording).write_bytes(b"what is this\n")
    with Session.replay(recording) as session:
        assert session.wait_for(lambda store: store.settled, SOON)
        assert session.store.marks() == []
        with pytest.raises(TraceError, match=r"The mark was not kept: .* is not a ddscope trace"):
            session.mark("x", 1)
    assert marks_path(recording).read_bytes() == b"what is this\n"


def test_a_mark_needs_a_record(recording: Path) -> None:
    with Session.replay(recording) as session:
        assert session.wait_for(lambda store: store.settled, SOON)
        with pytest.raises(SessionError, match="There is no record 99"):
            session.mark("x", 99)


def test_a_mark_at_a_damaged_line_goes_to_the_record_before_it(recording: Path) -> None:
    with recording.open("ab") as file:
        file.write(b"damaged\n")
    with Session.replay(recording) as session:
        assert session.wait_for(lambda store: store.n == 10 and store.settled, SOON)
        session.mark("x", 9)
        assert session.store.marks()[0].target == 8


def test_a_replay_has_the_asked_step_before_it_is_started(recording: Path) -> None:
    session = Session.replay(recording, at=2)
    assert session.first is not None and session.first.step.step == 2
    assert session.first_record() is None
    with session:
        assert session.wait_for(lambda store: store.settled, SOON)
        assert session.first_record() == 5
    last = Session.replay(recording)
    assert last.first is not None and last.first.step.step == 4
    last.close()


def test_a_replay_of_a_growing_file_grows(recording: Path) -> None:
    with Session.replay(recording) as session:
        assert session.wait_for(lambda store: store.n == 9, SOON)
        with recording.open("ab") as file:
            file.write(encode(Log(src="log/x", seq=0, t=1, mono=1, message="more")))
        assert session.wait_for(lambda store: store.n == 10, SOON)


def test_a_recording_has_no_engine_to_command(recording: Path) -> None:
    with Session.replay(recording) as session:
        with pytest.raises(SessionError, match="There is no engine to take `pause`: this is a recording"):
            session.control("pause")
        with pytest.raises(SessionError, match="A replay takes no new records"):
            session.sink(b"")


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "No such file"), (b"", "is empty"), (b"hello\n", "is not a ddscope trace")]
)
def test_a_file_that_is_no_trace_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "t.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=sentence):
        Session.replay(path)


def test_a_killed_viewer_leaves_a_trace_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    script = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from ddscope.session import Session\n"
        "session = Session.live(Path(sys.argv[1]))\n"
        "session.start()\n"
        "for line in sys.stdin.buffer:\n"
        "    session.sink(line)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    lines = b"".join(map(encode, a_run().records))
    done = subprocess.run([sys.executable, "-c", script, str(path)], input=lines, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == lines
    store = Store(path)
    while store.poll(1.0):
        pass
    assert len(store.steps("r")) == 5
    store.close()


def test_session_needs_no_screen_and_no_torch() -> None:
    script = (
        "import sys, ddscope.session\nprint([m for m in ('textual', 'rich', 'torch', 'numpy') if m in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "[]"


def test_marks_are_read_back_in_order(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    beside = MarksBeside(trace)
    assert (len(beside), beside.all) == (0, ())
    for number in range(3):
        made = beside.add(str(number), Position("engine/0", number))
        assert isinstance(made, Mark)
    assert [mark.seq for mark in MarksBeside(trace).all] == [1, 2, 3]
    assert os.listdir(tmp_path) == ["t.jsonl.marks.jsonl"]
