"""A session over real sources: an emitter behind a unix socket, a log file that is written meanwhile. No model."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.session import Session, SessionError, Store
from ddscope.sources import SourceError
from ddscope.trace import verify
from ddscope_hooks.emit import Emitter

SOON = 20.0
WORDS = {1: "Hi", 2: " hash", 3: b" \xf0\x9f", 4: b"\x98\x80"}


def an_emitter(socket: Path, commands: queue.Queue[dict[str, Any]], ring: int = 8192) -> Emitter:
    emitter = Emitter(
        "engine/0",
        {"engine": {"name": "embedded", "version": "1", "algorithm": "ddtree"}},
        ring=ring,
        token_text=lambda ids: [WORDS.get(i, f"w{i}") for i in ids],
        on_control=commands.put,
        control=True,
    )
    emitter.listen(f"unix:{socket}")
    return emitter


def emit_step(emitter: Emitter, step: int, base: int, root: int, emitted: list[int]) -> None:
    accepted = len(emitted) - 1
    emitter.emit(
        "step",
        {
            "rid": "r1",
            "step": step,
            "base": base,
            "root": root,
            "tree": {"budget": 4, "tokens": [*emitted[:accepted], 9], "parents": list(range(accepted + 1))},
            "path": list(range(accepted + 1)),
            "bonus": emitted[-1],
            "emitted": emitted,
            "time": {"draft": 5, "verify": 9, "commit": 1, "total": 20},
        },
    )


@pytest.fixture
def commands() -> queue.Queue[dict[str, Any]]:
    return queue.Queue()


@pytest.fixture
def emitter(tmp_path: Path, commands: queue.Queue[dict[str, Any]]) -> Iterator[Emitter]:
    emitter = an_emitter(tmp_path / "e.sock", commands)
    yield emitter
    emitter.close()


def views(store: Store) -> list[Any]:
    rows = [list(store.requests()), list(store.steps("r1")), list(store.text("r1")), list(store.logs())]
    return [*rows, store.marks(), store.curve(), store.timing()]


def test_what_an_engine_emits_is_seen_recorded_and_replayed(tmp_path: Path, emitter: Emitter) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ready [/INST]\n")
    session = Session.run(tmp_path / "e.sock", out=tmp_path / "t.jsonl", log_files=[log])
    with session:
        emitter.emit("request", {"rid": "r1", "prompt_len": 2, "prompt_ids": [1, 2]})
        emit_step(emitter, 0, 2, 1, [2, 3, 4])
        emit_step(emitter, 1, 5, 4, [2])
        with log.open("a") as file:
            file.write("Decode batch, accept len: 3.0\n")
        emitter.emit("finish", {"rid": "r1", "reason": "length", "emitted": 5, "steps": 2})
        assert session.wait_for(
            lambda store: len(store.requests()) == 1 and store.requests()[0].state == "finished", SOON
        )
        assert session.wait_for(lambda store: len(store.logs()) == 2, SOON)
        assert [(s.name, s.state) for s in session.sources] == [
            ("engine", "connected"),
            ("log/engine.log", "connected"),
        ]
        store = session.store
        assert store.text("r1", prompt=False).plain == "Hi hash 😀 hash"
        assert [row.text for row in store.logs()] == ["ready [/INST]", "Decode batch, accept len: 3.0"]
        session.mark("the end", store.n - 1)
        session.finish()
        live = views(store)
        assert store.header.engine is not None
        counters = store.counters["engine/0"]
        assert counters.emitted == counters.received + counters.dropped == emitter.counters.emitted
    assert verify(tmp_path / "t.jsonl").problems == []
    with Session.replay(tmp_path / "t.jsonl") as replay:
        assert replay.wait_for(lambda store: store.settled, SOON)
        assert views(replay.store) == live


def test_commands_reach_the_engine(tmp_path: Path, emitter: Emitter, commands: queue.Queue[dict[str, Any]]) -> None:
    with Session.run(tmp_path / "e.sock", out=tmp_path / "t.jsonl") as session:
        assert session.can_control
        session.control("set", budget=15)
        told = commands.get(timeout=SOON)
        assert (told["command"], told["args"], told["by"]) == ("set", {"budget": 15}, "viewer")
        session.finish()
        assert not session.can_control
        with pytest.raises(SessionError, match="There is no engine to take `pause`"):
            session.control("pause")


def test_an_engine_that_is_gone_is_said(tmp_path: Path, emitter: Emitter) -> None:
    with Session.run(tmp_path / "e.sock", out=tmp_path / "t.jsonl") as session:
        assert session.wait_for(lambda store: store.n >= 1, SOON)
        emitter.emit("request", {"rid": "r1", "prompt_len": 1, "prompt_ids": [1]})
        assert session.wait_for(lambda store: len(store.requests()) == 1, SOON)
        emitter.close()
        assert session.wait_for(lambda _: session.sources[0].state == "lost", SOON)
        assert str(tmp_path / "e.sock") in session.sources[0].reason
        with pytest.raises(SourceError, match="`pause` was not sent: the engine is not connected"):
            session.control("pause")
    assert verify(tmp_path / "t.jsonl").problems == []


def test_records_lost_in_the_ring_are_a_gap_in_the_text(tmp_path: Path, commands: queue.Queue[dict[str, Any]]) -> None:
    emitter = an_emitter(tmp_path / "e.sock", commands, ring=16)
    with Session.run(tmp_path / "e.sock", out=tmp_path / "t.jsonl") as session:
        assert session.wait_for(lambda store: store.n >= 1, SOON)
        emitter.emit("request", {"rid": "r1", "prompt_len": 1, "prompt_ids": [1]})
        assert session.wait_for(lambda store: len(store.requests()) == 1, SOON)
        for step in range(3000):  # faster than any writer thread
            emit_step(emitter, step, 1 + step, 1, [1])
        # The ring may be full of these, so what ends the flood is emitted until it gets through.
        for _ in range(200):
            emitter.emit("fact", {"name": "flood", "value": "over"})
            if session.wait_for(lambda store: "flood" in store.facts(), 0.1):
                break
        emitter.close()
        session.finish()
        counters = session.store.counters["engine/0"]
        assert counters.dropped > 0 and counters.emitted == counters.received + counters.dropped
        runs = session.store.text("r1", prompt=False)
        missing = sum(int(run.text.split("⟨")[1].split()[0].replace(",", "")) for run in runs if run.kind == "gap")
        last = session.store.steps("r1")[-1].step
        assert missing + sum(len(run.tokens) for run in runs) == last + 2, (
            "every position is shown or counted as missing"
        )
    assert verify(tmp_path / "t.jsonl").problems == []


def test_two_log_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(SessionError, match=r"Two sources have the same name: log/x\.log, log/x\.log"):
        Session.run(out=tmp_path / "t.jsonl", log_files=[tmp_path / "x.log", tmp_path / "a" / "x.log"])
    assert not (tmp_path / "t.jsonl").exists()
