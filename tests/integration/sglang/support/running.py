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
        """Generate, wait until the trace has it, and return the rids."""
        rids = [f"{name}{i}" for i in range(len(prompts))]
        answers = self.engine.generate(prompts, tokens, rids, **sampling)
        self.prompts |= dict(zip(rids, prompts, strict=True))
        self.outputs |= dict(zip(rids, answers, strict=True))
        self.trace.wait_finished(rids)
        return rids


@contextlib.contextmanager
def recorded(arguments: Mapping[str, Any], folder: Path, **env: str) -> Iterator[Run]:
    """Start an engine whose hooks write a trace into `folder`; stop it in the end, whatever happens."""
    path = folder / "trace.jsonl"
    engine = Engine(arguments, folder, {"DDSCOPE": f"file:{path}", **env})
    try:
        yield Run(engine, Trace(path))
    finally:
        engine.stop()


def answers_without_hooks(
    arguments: Mapping[str, Any], folder: Path, prompts: Sequence[list[int]], tokens: int, **env: str
) -> list[dict[str, Any]]:
    """Answers of an engine without hooks, which runs for this only."""
    engine = Engine(arguments, folder, env)
    try:
        return engine.generate(prompts, tokens, [f"plain{i}" for i in range(len(prompts))])
    finally:
        engine.stop()
