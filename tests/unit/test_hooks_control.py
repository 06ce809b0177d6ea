"""Commands of viewers to a server: what they change, what is refused, and that a recording is a whole trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.trace import verify
from ddscope_hooks.config import Config, Sample
from ddscope_hooks.taps.control import Control, sampling
from tests.unit.hooks_support import Req, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(config=Config(control=True)) as server:
        yield server


@pytest.fixture
def control(server: Server) -> Control:
    control = Control()
    control.serve(server.core)
    return control


def say(control: Control, command: str, **args: Any) -> None:
    control({"type": "control", "command": command, "args": args, "by": "me"})


def facts(server: Server, name: str) -> list[Any]:
    return [record["value"] for record in server.records("fact") if record["name"] == name]


def test_sampling_is_changed_and_told(server: Server, control: Control) -> None:
    say(control, "sampling", every=5)
    say(control, "sampling", rid="chat")
    assert server.core.sampling.sample == Sample(every=5, rid="chat")
    assert facts(server, "hooks.sampling")[-1] == {"every": 5, "rid": "chat", "max_bytes_per_s": 0, "control": True}
    assert sampling(server.core)["every"] == 5
    (first, _) = server.records("control")
    assert first["command"] == "sampling" and first["args"] == {"every": 5} and first["by"] == "me"


@pytest.mark.parametrize(
    ("command", "args", "why"),
    [
        ("pause", {}, "no command 'pause'"),
        ("abort", {"rid": "r"}, "no command 'abort'"),
        ("sampling", {"every": -1}, "every takes a whole number"),
        ("sampling", {"sometimes": 1}, "no 'sometimes'"),
        ("record", {}, "path of a file"),
        ("record", {"path": "relative.jsonl"}, "absolute"),
        ("record", {"path": "/etc/passwd"}, "ending in .jsonl"),
        ("record_stop", {}, "Nothing is being recorded"),
    ],
)
def test_anything_else_is_refused_with_a_reason(
    server: Server, control: Control, command: str, args: dict[str, Any], why: str
) -> None:
    say(control, command, **args)
    (refused,) = facts(server, "control.refused")
    assert refused["command"] == command and why in refused["why"]
    assert server.core.sampling.sample == Sample() and not server.records("control")


def test_flush_tells_what_was_left_out_so_far(server: Server, control: Control) -> None:
    server.core.sampling.leave_out(3)
    say(control, "flush")
    assert [g["count"] for g in server.records("gap")] == [3]


def test_a_recording_on_the_host_is_a_whole_trace(server: Server, control: Control, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    say(control, "record", path=str(path))
    say(control, "record", path=str(tmp_path / "second.jsonl"))
    reqs = [Req("r0", [1, 2, 3])]
    server.run(reqs)
    say(control, "record_stop")
    server.pump()
    assert "already" in facts(server, "control.refused")[0]["why"] and not (tmp_path / "second.jsonl").exists()
    report = verify(path)
    assert report.problems == []
    assert path.read_text().rstrip().rpartition("\n")[2].startswith('{"type":"footer"')
    say(control, "record", path=str(path))
    server.pump()
    assert (tmp_path / "t.1.jsonl").exists()  # an earlier recording is never touched
