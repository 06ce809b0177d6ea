"""The engine's loop over the decoder of a device: the same commands, the same records, and its own marks on them.

Without a CUDA device the decoder runs on the CPU, launch by launch; with one these are graphs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ddscope.engine.device.engine import DeviceEngine
from ddscope.engine.device.ladder import SIZES
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import Pair, load_pair
from ddscope.engine.server import EngineServer
from ddscope.trace import verify
from tests.engine_models import drafter_config, target_config, write_pair

CUDA = torch.cuda.is_available()
PROMPT = [3, 1, 4, 1, 5]
PARAMS = Params(budget=12, max_new_tokens=24)
Record = dict[str, Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folders = write_pair(tmp_path_factory.mktemp("pair"), target_config(head_dim=16), drafter_config(head_dim=16))
    return load_pair(*folders, device="cuda" if CUDA else "cpu")


@contextmanager
def serving(pair: Pair, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineServer]:
    """A server whose trace goes to a file; it has left, and the file is whole, when this ends."""
    monkeypatch.setattr(DeviceEngine, "serves", staticmethod(lambda pair: pair.fault is None))
    server = EngineServer(pair, PARAMS)
    server.emitter.listen(f"file:{path}")
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.control_message({"command": "shutdown"})
        thread.join(120)
    assert not thread.is_alive()


def records(path: Path) -> list[Record]:
    assert verify(path).problems == []
    return [json.loads(line) for line in path.read_text().splitlines()]


def said(server: EngineServer, command: str, **args: Any) -> None:
    server.control_message({"command": command, "args": args})


def text(trace: list[Record], rid: str) -> list[int]:
    """What a request's steps emitted."""
    return [token for r in trace if r["type"] == "step" and r["rid"] == rid for token in r["emitted"]]


def alone(pair: Pair, params: Params) -> list[int]:
    """What the generator of one request emits behind the first token."""
    generator = Generator(pair, PROMPT, params)
    generator.start()
    while not generator.done:
        generator.commit(generator.draft_and_verify())
    return generator.output[1:]


def test_all_requests_write_what_the_target_writes(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    done = threading.Event()
    with serving(pair, path, monkeypatch) as server:
        emit = server.emitter.emit

        def watched(kind: str, fields: Any) -> None:
            emit(kind, fields)
            if kind == "finish" and fields["rid"] == "auto":
                done.set()

        monkeypatch.setattr(server.emitter, "emit", watched)
        said(server, "self_check", every=2)
        said(server, "submit", rid="plain", prompt_ids=PROMPT, algorithm="autoregressive")
        said(server, "submit", rid="chain", prompt_ids=PROMPT, algorithm="dflash")
        said(server, "submit", rid="tree", prompt_ids=PROMPT)
        said(server, "submit", rid="refused", prompt_ids=[99])
        said(server, "submit", rid="auto", prompt_ids=PROMPT, budget="auto")
        assert done.wait(120)
    trace = records(path)
    want = alone(pair, PARAMS)
    steps = [r for r in trace if r["type"] == "step"]
    for rid in ("plain", "chain", "tree", "auto"):
        assert text(trace, rid) == want
    finished = {r["rid"]: r["reason"] for r in trace if r["type"] == "finish"}
    assert finished == {"plain": "length", "chain": "length", "tree": "length", "refused": "error", "auto": "length"}
    assert all(r["flags"]["graph"] == CUDA for r in steps)
    assert {r["time_domain"] for r in steps} == {"cuda_event" if CUDA else "host"}
    checks = [r["value"] for r in trace if r["type"] == "fact" and r["name"] == "replay_check"]
    assert len(checks) > 3
    assert all(check["ok"] for check in checks)
    chosen = [r["tree"] for r in steps if r["rid"] == "auto"]
    assert {tree["budget"] for tree in chosen} <= set(SIZES)
    assert all(tree["auto"]["most"] >= tree["budget"] for tree in chosen)
    policy = [r["value"] for r in trace if r["type"] == "fact" and r["name"] == "budget.auto"]
    assert policy[0]["nodes"][0] == 0


def test_a_breakpoint_stops_the_text_and_a_change_begins_behind_it(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl"
    stood, done = threading.Event(), threading.Event()
    with serving(pair, path, monkeypatch) as server:
        emit = server.emitter.emit

        def watched(kind: str, fields: Any) -> None:
            emit(kind, fields)
            if kind == "fact" and fields["name"] == "engine.state" and fields["value"]["state"] == "break":
                stood.set()
            if kind == "finish":
                done.set()

        monkeypatch.setattr(server.emitter, "emit", watched)
        said(server, "break", kind="step", value=2)
        said(server, "submit", rid="tree", prompt_ids=PROMPT)
        assert stood.wait(120)
        said(server, "unbreak", kind="step", value=2)
        said(server, "set", budget=3)
        said(server, "check_now")
        said(server, "step")
        said(server, "resume")
        assert done.wait(120)
    trace = records(path)
    assert text(trace, "tree") == alone(pair, PARAMS)
    budgets = [r["tree"]["budget"] for r in trace if r["type"] == "step"]
    assert budgets[0] == 12
    assert budgets[-1] == 3
