"""The spool: a valid trace from its first line on, its header first, old sessions removed, living ones never."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddscope.model import Footer, Gap, Header, Log, Mark, Position
from ddscope.session import spool as spool_module
from ddscope.session.spool import Spool, keep_recent, new_session_path, sessions_folder
from ddscope.trace import TraceError, TraceFile, decode, encode, verify
from tests.unit.session_support import Book, header, plain_step


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def log(seq: int) -> bytes:
    return encode(Log(src="log/x", seq=seq, t=1, mono=1, message=str(seq)))


def kinds(path: Path) -> list[tuple[str, str, int]]:
    return [(r.type, r.src, r.seq) for r in map(decode, path.read_bytes().splitlines())]


def test_the_engines_header_is_the_first_line_though_a_log_came_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "t.jsonl")
    spool.sink(log(0))
    spool.sink(log(1))
    assert spool.path.read_bytes() == b""
    spool.sink(encode(header()))
    spool.sink(log(2))
    spool.close()
    written = [("header", "engine/0", 0), *(("log", "log/x", seq) for seq in range(3)), ("footer", "viewer", 0)]
    assert kinds(spool.path) == written
    assert verify(spool.path).problems == []


def test_without_an_engine_the_viewers_header_opens_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "t.jsonl")
    spool.sink(log(0))
    spool.tick()
    assert spool.path.read_bytes() == b"", "the engine may still come"
    monkeypatch.setattr(spool_module, "HOLD_S", 0.0)
    spool.tick()
    assert kinds(spool.path) == [("header", "viewer", 0), ("log", "log/x", 0)]
    spool.sink(encode(header()))
    spool.close()
    assert kinds(spool.path)[2:] == [("header", "engine/0", 0), ("footer", "viewer", 1)]
    assert verify(spool.path).problems == []


def test_a_flood_is_not_held_back_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "HOLD_BYTES", 200)
    spool = Spool(tmp_path / "t.jsonl")
    for seq in range(5):
        spool.sink(log(seq))
    assert len(kinds(spool.path)) > 2
    spool.close()


def test_a_session_in_which_nothing_happened_is_a_trace(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "t.jsonl")
    spool.close()
    spool.close()
    assert [kind for kind, *_ in kinds(spool.path)] == ["header", "footer"]
    assert verify(spool.path).problems == []


def test_marks_take_seqs_of_the_viewer(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "t.jsonl")
    spool.sink(encode(header()))
    spool.mark("one", Position("engine/0", 0))
    spool.mark("two\n[/INST]", Position("engine/0", 0))
    spool.close()
    records = [decode(line) for line in spool.path.read_bytes().splitlines()]
    assert [(r.text, r.seq) for r in records if isinstance(r, Mark)] == [("one", 0), ("two\n[/INST]", 1)]
    assert isinstance(records[-1], Footer) and (records[-1].seq, records[-1].emitted) == (2, 3)
    assert verify(spool.path).problems == []


def test_the_footer_has_the_books_of_all_sources(tmp_path: Path) -> None:
    book = Book()
    book.header()
    plain_step(book, "r", 0, 0, 1, [2])
    spool = Spool(tmp_path / "t.jsonl")
    for record in book.records:
        spool.sink(encode(record))
    spool.sink(log(0))
    spool.sink(encode(Gap(src="engine/0", seq=6, t=1, mono=1, of="engine/0", count=5, reason="ring_full")))
    spool.close()
    footer = decode(spool.path.read_bytes().splitlines()[-1])
    assert isinstance(footer, Footer)
    assert (footer.emitted, footer.dropped, footer.records) == (8, 5, {"header": 1, "step": 1, "log": 1, "gap": 1})


def test_what_was_written_is_a_trace_when_the_viewer_dies(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "t.jsonl")
    spool.sink(encode(header()) + log(0))
    with TraceFile(spool.path) as trace:  # nothing was closed or flushed
        trace.poll(1.0)
        assert isinstance(trace.header(), Header) and trace.index.n == 2
    spool.close()


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"precious\n")
    with pytest.raises(TraceError, match=r"t\.jsonl exists already: choose another name, or remove it\."):
        Spool(path)
    assert path.read_bytes() == b"precious\n"


def test_sessions_are_kept_by_date_under_the_state_folder(state_home: Path) -> None:
    assert sessions_folder() == state_home / "ddscope" / "sessions"
    first = Spool()
    second = Spool()
    assert first.path.parent == second.path.parent == sessions_folder()
    assert first.path != second.path
    assert sessions_folder().stat().st_mode & 0o077 == 0, "prompts are nobody else's business"
    first.close()
    second.close()


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_a_state_folder_that_is_no_absolute_path_is_ignored(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert sessions_folder() == Path("/home/somebody/.local/state/ddscope/sessions")


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(state_home: Path) -> None:
    state_home.write_text("a file where the folder should be")
    with pytest.raises(TraceError, match=r"^Sessions cannot be kept in .*: Not a directory\.$"):
        new_session_path()


def old_session(folder: Path, number: int, size: int = 10) -> Path:
    path = folder / f"2026-01-{number:02d}_10-00-00.jsonl"
    path.write_bytes(b"x" * size)
    os.utime(path, (number * 1000, number * 1000))
    for extra in (".ddx", ".marks.jsonl"):
        path.with_name(path.name + extra).write_bytes(b"")
    return path


def test_only_the_newest_sessions_are_kept(tmp_path: Path) -> None:
    sessions = [old_session(tmp_path, number) for number in range(1, 6)]
    foreign = tmp_path / "mine.jsonl"
    foreign.write_bytes(b"not a session of ours")
    assert keep_recent(tmp_path, files=2, total=10**9) == [sessions[2], sessions[1], sessions[0]]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["mine.jsonl", *(s.name + extra for s in sessions[3:] for extra in ("", ".ddx", ".marks.jsonl"))]
    )


def test_sessions_that_are_too_large_together_lose_the_oldest(tmp_path: Path) -> None:
    sessions = [old_session(tmp_path, number, size=100) for number in range(1, 5)]
    assert keep_recent(tmp_path, files=20, total=250) == [sessions[1], sessions[0]]


def test_a_session_that_is_being_written_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "2020-01-01_00-00-00.jsonl"
    spool = Spool(path)
    newer = old_session(tmp_path, 2)
    os.utime(path, (1, 1))
    assert keep_recent(tmp_path, files=0, total=0) == [newer]
    assert path.exists()
    spool.close()
    assert keep_recent(tmp_path, files=0, total=0) == [path]
