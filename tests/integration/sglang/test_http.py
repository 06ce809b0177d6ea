"""SGLang's own HTTP server with hooks: viewers that come and go, `ddscope record`, and what they may command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Fact, Finish, Gap, Header, Record, Request, Step
from ddscope.sources import SocketSource
from ddscope.trace import Unknown, decode
from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.reading import Trace, output_of
from tests.integration.sglang.support.server import ROOT, HttpServer

WAIT_S = 30


class Viewer:
    """A viewer on the server's socket, and all it was told."""

    def __init__(self, socket: Path) -> None:
        self.records: list[Record | Unknown] = []
        self._news = threading.Condition()
        self.source = SocketSource(str(socket), self._sink)
        self.source.start()

    def _sink(self, lines: bytes) -> None:
        with self._news:
            self.records += [decode(line) for line in lines.splitlines(keepends=True)]
            self._news.notify_all()

    def wait(self, found: Callable[[list[Record | Unknown]], Any]) -> Any:
        """The first true value of `found(records)`."""
        deadline = time.monotonic() + WAIT_S
        with self._news:
            while not (value := found(self.records)):
                left = deadline - time.monotonic()
                assert left > 0, f"not told within {WAIT_S} s; {len(self.records)} records came"
                self._news.wait(left)
        return value

    def finished(self, rid: str) -> Finish:
        return self.wait(lambda records: next((r for r in records if isinstance(r, Finish) and r.rid == rid), None))

    def steps(self, rid: str) -> list[Step]:
        return [r for r in self.records if isinstance(r, Step) and r.rid == rid]

    def facts(self, name: str) -> list[Any]:
        return [r.value for r in self.records if isinstance(r, Fact) and r.name == name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def server(tiny: Tiny, folder: Path) -> Iterator[HttpServer]:
    folder.chmod(0o700)
    env = {"DDSCOPE": f"unix:{folder}/%p.sock,file:{folder}/trace.jsonl", "DDSCOPE_CONTROL": "1"}
    more = {"enable_metrics": True, "served_model_name": "tiny", "disable_radix_cache": False}
    server = HttpServer(tiny.tree("STANDALONE", tiny.standalone) | more, folder, env)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def socket(server: HttpServer, folder: Path) -> Path:
    """One process of the server listens: the scheduler. A launcher and a detokenizer have no steps to tell."""
    (found,) = folder.glob("*.sock")
    return found


@pytest.fixture
def viewer(socket: Path) -> Iterator[Viewer]:
    viewer = Viewer(socket)
    yield viewer
    viewer.source.stop()


def ask(server: HttpServer, prompt: list[int], rid: str, tokens: int = 24) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return server.post("/generate", {"input_ids": prompt, "sampling_params": sampling, "rid": rid})


def test_answers_and_the_servers_own_counters_agree_with_the_records(
    server: HttpServer, folder: Path, tiny: Tiny, tiny_baseline: list[dict[str, Any]]
) -> None:
    answer = ask(server, tiny.prompts[0], "first")
    assert answer["output_ids"] == tiny_baseline[0]["output_ids"][:24]
    trace = Trace(folder / "trace.jsonl")
    trace.wait_finished(["first"])
    assert output_of(trace, "first") == answer["output_ids"]
    steps = trace.steps("first")
    assert len(steps) == answer["meta_info"]["spec_verify_ct"]
    emitted = sum(len(step.emitted or ()) for step in steps)
    assert abs((emitted + 1) / len(steps) - answer["meta_info"]["spec_accept_length"]) < 1e-6
    assert b"sglang:spec_accept_length" in server.get("/metrics")
    assert json.loads(server.get("/server_info"))["internal_states"][0]["avg_spec_accept_length"] > 1


def test_a_prompt_that_was_seen_before_comes_from_the_cache(server: HttpServer, folder: Path, tiny: Tiny) -> None:
    answers = [ask(server, tiny.prompts[2], rid, 8) for rid in ("cold", "warm")]
    trace = Trace(folder / "trace.jsonl")
    trace.wait_finished(["cold", "warm"])
    assert answers[1]["meta_info"]["cached_tokens"] > 0
    assert [trace.request(rid).cached_tokens for rid in ("cold", "warm")] == [
        answer["meta_info"]["cached_tokens"] for answer in answers
    ]
    assert output_of(trace, "warm") == answers[1]["output_ids"] == answers[0]["output_ids"]


def test_the_socket_is_the_owners_alone(socket: Path) -> None:
    assert socket.stat().st_mode & 0o777 == 0o600


def test_two_viewers_see_the_same_and_the_late_one_gets_header_facts_and_a_gap(
    server: HttpServer, socket: Path, tiny: Tiny, viewer: Viewer
) -> None:
    early = viewer
    early.wait(lambda records: any(isinstance(r, Header) for r in records))
    ask(server, tiny.prompts[0], "early")
    early.finished("early")
    late = Viewer(socket)
    try:
        late.wait(lambda records: any(isinstance(r, Header) for r in records))
        late.wait(lambda records: any(isinstance(r, Fact) and r.name == "hooks.taps" for r in records))
        ask(server, tiny.prompts[1], "both")
        late.finished("both")
        early.finished("both")
        assert late.steps("both") == early.steps("both") != []
        assert late.steps("early") == []
        assert any(isinstance(r, Gap) and r.reason == "joined_late" for r in late.records)
    finally:
        late.source.stop()


def test_sampling_off_leaves_no_step_and_tells_so(server: HttpServer, tiny: Tiny, viewer: Viewer) -> None:
    viewer.wait(lambda records: any(isinstance(r, Header) for r in records))
    viewer.source.send("sampling", {"every": 0})
    viewer.wait(lambda _: [fact for fact in viewer.facts("hooks.sampling") if fact["every"] == 0])
    ask(server, tiny.prompts[0], "unseen")
    viewer.source.send("sampling", {"every": 1})
    viewer.wait(lambda _: viewer.facts("hooks.sampling")[-1]["every"] == 1)
    answer = ask(server, tiny.prompts[0], "seen")
    viewer.finished("seen")
    assert viewer.steps("unseen") == []
    assert len(viewer.steps("seen")) == answer["meta_info"]["spec_verify_ct"]


def test_a_server_is_never_paused(server: HttpServer, tiny: Tiny, viewer: Viewer) -> None:
    viewer.wait(lambda records: any(isinstance(r, Header) for r in records))
    viewer.source.send("pause", {})
    viewer.wait(lambda _: [fact for fact in viewer.facts("control.refused") if fact["command"] == "pause"])
    assert len(ask(server, tiny.prompts[0], "still running")["output_ids"]) == 24


def test_a_recording_on_the_host_can_be_started_and_stopped(
    server: HttpServer, tiny: Tiny, viewer: Viewer, folder: Path
) -> None:
    viewer.wait(lambda records: any(isinstance(r, Header) for r in records))
    path = folder / "asked.jsonl"
    viewer.source.send("record", {"path": str(path)})
    deadline = time.monotonic() + WAIT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    answer = ask(server, tiny.prompts[2], "on the host")
    trace = Trace(path)
    trace.wait_finished(["on the host"])
    assert output_of(trace, "on the host") == answer["output_ids"]
    viewer.source.send("record_stop", {})
    size = -1
    while size != (size := path.stat().st_size):
        time.sleep(0.2)
    ask(server, tiny.prompts[2], "after it")
    viewer.finished("after it")
    trace.refresh()
    assert trace.steps("after it") == []


def test_ddscope_record_writes_what_the_server_tells(
    server: HttpServer, socket: Path, tiny: Tiny, tmp_path: Path
) -> None:
    out = tmp_path / "recorded.jsonl"
    command = [sys.executable, "-m", "ddscope", "record", "--socket", str(socket), "-o", str(out), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as recorder:
        try:
            trace = Trace(out)
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline and not (out.exists() and out.stat().st_size):
                assert recorder.poll() is None, recorder.stderr and recorder.stderr.read().decode()
                time.sleep(0.05)
            answer = ask(server, tiny.prompts[1], "recorded")
            trace.wait_finished(["recorded"])
        finally:
            recorder.send_signal(signal.SIGINT)
            summary = json.loads(recorder.communicate(timeout=WAIT_S)[0])
    assert summary
    trace.refresh()
    assert output_of(trace, "recorded") == answer["output_ids"]
    assert trace.problems() == []
    assert any(request.rid == "recorded" for request in trace.of(Request))
    for source, (emitted, received, dropped) in trace.sources.items():
        assert emitted == received + dropped, source
