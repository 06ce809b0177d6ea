"""The relay: what hot threads emit reaches viewers and files through another process, whose end hurts no server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddscope.trace import verify
from ddscope_hooks.emit import EmitError, Later
from ddscope_hooks.relay import RelayEmitter, sender
from ddscope_hooks.taps.requests import Told

HEADER = {"engine": {"name": "test", "version": "0", "algorithm": "plain"}}


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of the condition."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)
    return value


def told(step: int) -> Told:
    """A pass of one request that is plain decoding."""
    found = (0, ("r", 3, False), step, 1 + step, 2 + step, None, 10 + step, [11 + step], 1)
    return Told(("plain", 1, 0), [found], (), 0, "r")


def later(step: int) -> Later:
    """That pass as the hot thread emits it."""
    made = told(step)
    return Later(1, made.records, None, made.ids, lambda: made)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayEmitter]:
    """One that tells the text of each id, and keeps the commands it was given."""
    emitter = RelayEmitter(
        "engine/0", HEADER, token_text=lambda ids: [f"<{i}>" for i in ids], on_control=_commands.append, control=True
    )
    _commands.clear()
    yield emitter
    emitter.close()


_commands: list[dict[str, Any]] = []


def records(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_a_recording_is_whole_and_tells_the_text_of_ids(relay: RelayEmitter, tmp_path: Path) -> None:
    path = relay.listen(f"file:{tmp_path}/%p.jsonl")
    assert path == f"{tmp_path}/{os.getpid()}.jsonl" and relay.watched
    relay.emit("request", {"rid": "r", "prompt_len": 3, "prompt_ids": [1, 2, 3]})
    for step in range(20):
        relay.emit_later(later(step))
    relay.emit("finish", {"rid": "r", "reason": "length", "emitted": 21, "steps": 20})
    relay.close()
    found = records(path)
    assert [r["step"] for r in found if r["type"] == "step"] == list(range(20))
    texts = {i: text for r in found if r["type"] == "tokens" for i, text in zip(r["ids"], r["text"], strict=True)}
    assert texts == {i: f"<{i}>" for i in (1, 2, 3, *range(10, 31))}
    assert verify(path).problems == []


def test_watched_follows_the_viewers_and_commands_come_back(relay: RelayEmitter, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = relay.listen(f"unix:{tmp_path}/s")
    assert not relay.watched
    with socket.socket(socket.AF_UNIX) as viewer:
        viewer.connect(path)
        viewer.sendall(b'{"type":"control","command":"sampling","args":{"every":2},"by":"test"}\n')
        until(lambda: relay.watched)
        until(lambda: _commands)
    assert _commands[0]["command"] == "sampling" and _commands[0]["args"] == {"every": 2}
    until(lambda: not relay.watched)


def test_what_cannot_be_handed_on_is_a_counted_loss_in_its_place(relay: RelayEmitter, tmp_path: Path) -> None:
    path = relay.listen(f"file:{tmp_path}/t.jsonl")

    def broken() -> object:
        raise RuntimeError("a bug in a tap")

    relay.emit_later(later(0))
    relay.emit_later(Later(3, told(1).records, None, None, broken))
    relay.emit("fact", {"name": "odd", "value": lambda: 0})
    relay.emit_later(later(2))
    relay.close()
    found = records(path)
    lost = [(r["count"], r["reason"]) for r in found if r["type"] == "gap" and r["count"] is not None]
    assert lost == [(3, "hook_fault"), (1, "hook_fault")]
    assert [r["step"] for r in found if r["type"] == "step"] == [0, 2]
    assert {r["value"]["tap"] for r in found if r["type"] == "fact"} == {"later", "relay fact"}


def test_the_texts_of_a_message_are_asked_for_in_one_question(tmp_path: Path) -> None:
    """Each question interrupts the server."""
    asked: list[list[int]] = []

    def texts(ids: Sequence[int]) -> list[str]:
        asked.append(sorted(ids))
        return [f"<{i}>" for i in ids]

    emitter = RelayEmitter("engine/0", HEADER, token_text=texts)
    path = emitter.listen(f"file:{tmp_path}/t.jsonl")
    for first in (0, 8):
        passes: list[Any] = [("later", later(step), time.monotonic_ns()) for step in range(first, first + sender.CHUNK)]
        emitter._hand_on(
            [("request", {"rid": f"r{first}", "prompt_ids": [1, 2]}, time.monotonic_ns()), *passes[:-1]], True
        )
        assert emitter.drain(10)
    emitter.close()
    assert asked == [[1, 2, *range(10, 26)], [*range(26, 34)]]
    told = [
        (i, text) for r in records(path) if r["type"] == "tokens" for i, text in zip(r["ids"], r["text"], strict=True)
    ]
    assert sorted(told) == [(i, f"<{i}>") for i in (1, 2, *range(10, 34))]


def test_a_tokenizer_that_gives_too_few_texts_costs_the_texts_only(tmp_path: Path) -> None:
    emitter = RelayEmitter("engine/0", HEADER, token_text=lambda ids: ["x"])
    path = emitter.listen(f"file:{tmp_path}/t.jsonl")
    for step in range(4):
        emitter.emit_later(later(step))
    assert emitter.drain(10)
    emitter.close()
    found = records(path)
    assert [r["step"] for r in found if r["type"] == "step"] == [0, 1, 2, 3]
    assert [r["value"]["tap"] for r in found if r["type"] == "fact"] == ["token_text"]


def test_a_bad_target_says_so(relay: RelayEmitter) -> None:
    with pytest.raises(EmitError, match="must be unix:PATH or file:PATH"):
        relay.listen("tcp:127.0.0.1:1")


def test_the_server_runs_on_when_the_other_process_is_killed(relay: RelayEmitter, tmp_path: Path) -> None:
    relay.listen(f"file:{tmp_path}/t.jsonl")
    os.kill(relay._process.pid, signal.SIGKILL)
    until(lambda: not relay.watched)
    for step in range(100):
        relay.emit_later(later(step))
    with pytest.raises(EmitError, match=r"has ended|does not answer"):
        relay.listen(f"file:{tmp_path}/u.jsonl")
    relay.close()


SERVER = """
import os, sys, time
from ddscope_hooks.relay import RelayEmitter
emitter = RelayEmitter("engine/0", {"engine": {"name": "test", "version": "0", "algorithm": "plain"}})
emitter.listen(f"file:{sys.argv[1]}")
for i in range(50):
    emitter.emit("fact", {"name": f"f{i}", "value": i})
print(emitter._process.pid, emitter.drain(10), flush=True)
time.sleep(60)
"""


def test_a_killed_server_leaves_a_finished_file_and_no_process(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    command = [sys.executable, "-c", SERVER, str(path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    pid, drained = server.stdout.readline().split()
    server.kill()
    server.wait()
    assert drained == "True"

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    until(gone)
    assert sum(r["type"] == "fact" for r in records(path)) == 50
    assert verify(path).problems == [] and records(path)[-1]["type"] == "footer"


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    emitter = RelayEmitter("engine/0", HEADER, ring=8)
    path = emitter.listen(f"file:{tmp_path}/t.jsonl")
    os.kill(emitter._process.pid, signal.SIGSTOP)
    for i in range(5000):
        emitter.emit("fact", {"name": f"f{i}", "value": "x" * 2000})
    os.kill(emitter._process.pid, signal.SIGCONT)
    emitter.emit("fact", {"name": "last", "value": 1})
    emitter.drain(10)
    emitter.close()
    found = records(path)
    counted = sum(r["count"] for r in found if r["type"] == "gap")
    assert counted and sum(r["type"] == "fact" for r in found) + counted == 5001
    assert verify(path).problems == []
