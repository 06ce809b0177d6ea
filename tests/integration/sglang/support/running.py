"""A server that runs with ddscope's hooks on, what it answered, and the trace of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.sglang.support.reading import Trace
from tests.integration.sglang.support.server import Engine


@dataclass
class Run:
    """An engine with hooks. outputs: what the server answered, by rid."""

    engine: Engine
    trace: Trace
    prompts: dict[str, list[int]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def generate(self, prompts: Sequence[list[int]], tokens: int, name: str = "r", **sampling: Any) -> list[str]:
        """Generate, wait until the trace has it, and return the rids. sampling: as of `Engine.generate`."""
        rids = [f"{name}{i}" for i in range(len(prompts))]
        answers = self.engine.generate(prompts, tokens, rids, **sampling)
        self.prompts |= dict(zip(rids, prompts, strict=True))
        self.outputs |= dict(zip(rids, answers, strict=True))
        self.trace.wait_finished(rids)
        return rids


@contextlib.contextmanager
def recorded(arguments: Mapping[str, Any], folder: Path, **env: str) -> Iterator[Run]:
    """Start an engine whose hooks write a trace into `folder`; stop it in the end, whatever happens.

    Then, with nothing in flight any more, the books of every source must balance: emitted = received + dropped.
    """
    path = folder / "trace.jsonl"
    engine = Engine(arguments, folder, {"DDSCOPE": f"file:{path}", **env})
    run = Run(engine, Trace(path))
    try:
        yield run
    finally:
        engine.stop()
    run.trace.refresh()
    assert run.trace.sources
    for source, (emitted, received, dropped) in run.trace.sources.items():
        assert emitted == received + dropped, f"{source}: {emitted} emitted, {received} received, {dropped} dropped"


@dataclass(frozen=True)
class Observed:
    """Of an engine without hooks: answers, modules that its scheduler imported, functions that plug-ins hooked."""

    outputs: list[dict[str, Any]]
    modules: frozenset[str]
    hooks: dict[str, list[str]]


def observe(
    arguments: Mapping[str, Any], folder: Path, env: Mapping[str, str], prompts: Sequence[list[int]], tokens: int
) -> Observed:
    """Run an engine without hooks, for these prompts only."""
    engine = Engine(arguments, folder, env)
    try:
        outputs = engine.generate(prompts, tokens, [f"plain{i}" for i in range(len(prompts))])
        return Observed(outputs, frozenset(engine.scheduler("modules")), engine.scheduler("hooks"))
    finally:
        engine.stop()
