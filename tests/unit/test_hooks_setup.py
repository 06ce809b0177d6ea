"""Starting the hooks of a scheduler: which emitter does the work, and one log line whatever happens."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from ddscope_hooks.config import Config
from ddscope_hooks.emit import EmitError, Emitter
from ddscope_hooks.taps import registry, setup


def call(**args: Any) -> dict[str, Any]:
    return {
        "server_args": types.SimpleNamespace(model_path="org/m", speculative_algorithm="NGRAM", **args),
        "tp_rank": 0,
    }


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`setup.start` with nothing to hook into, and its cores closed."""
    cores: list[Any] = []
    monkeypatch.setattr(registry, "with_server", lambda hook, run: None)

    def start(config: Config) -> Any:
        core = setup.start(config, call(), {})
        if core is not None:
            cores.append(core)
        return core

    yield start
    for core in cores:
        core.emitter.close()


def test_where_no_process_can_be_started_this_one_does_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise EmitError("The process that sends records cannot be started: no room.")

    monkeypatch.setattr(setup, "RelayEmitter", broken)
    core = started(Config((f"file:{tmp_path}/t-%r.jsonl",)))
    assert isinstance(core.emitter, Emitter) and (tmp_path / "t-0.jsonl").exists()
    assert len(caplog.records) == 1 and "no room" in caplog.text and "t-0.jsonl" in caplog.text


def test_without_sglang_every_tap_is_told_to_be_missing_in_one_line(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    core = started(Config((f"file:{tmp_path}/t.jsonl",), relay=False))
    assert isinstance(core.emitter, Emitter)
    assert len(caplog.records) == 1 and "Taps live: none" in caplog.text and "cannot be imported" in caplog.text


def test_nowhere_to_emit_to_is_one_line_and_no_hooks(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert started(Config((f"unix:{tmp_path}/file/s.sock",), relay=False)) is None
    assert len(caplog.records) == 1 and "Hooks are off." in caplog.text


def test_one_target_that_cannot_be_used_leaves_the_others(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    core = started(Config((f"unix:{tmp_path}/file/s.sock", f"unix:{tmp_path}/d/s.sock"), relay=False))
    assert core is not None and len(caplog.records) == 1 and "d/s.sock" in caplog.text
