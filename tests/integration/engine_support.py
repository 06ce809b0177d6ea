"""Test support: a real engine process with a viewer on its socket whose records can be waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ddscope.model import Control, Fact, Finish, Record, Step
from ddscope.sources import SocketSource
from ddscope.sources.engine_process import EngineProcess
from ddscope.trace import Unknown, decode

R = TypeVar("R", bound=Record)


class LiveEngine:
    """Records of the engine in order of arrival; `wait` blocks on a condition over them, never on the clock alone."""

    def __init__(self, *options: str) -> None:
        self.process = EngineProcess(options)
        self.process.start()
        self.lines: list[bytes] = []
        self.records: list[Record | Unknown] = []
        self._news = threading.Condition()
        self.source = SocketSource(self.process.socket, self._sink)
        self.source.start()

    def _sink(self, lines: bytes) -> None:
        whole = lines.splitlines(keepends=True)
        with self._news:
            self.lines += whole
            self.records += [decode(line) for line in whole]
            self._news.notify_all()

    def send(self, command: str, **args: Any) -> None:
        self.source.send(command, args)

    def wait(self, found: Callable[[Sequence[Record | Unknown]], Any], timeout: float = 120) -> Any:
        """The first true value of `found(records)`. Fails with the engine's log after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not (value := found(self.records)):
                left = deadline - time.monotonic()
                if left <= 0:
                    kinds = [type(r).__name__ for r in self.records[-12:]]
                    raise AssertionError(
                        f"waited {timeout} s; last records {kinds}; log:\n{self.process.log.read_text()}"
                    )
                self._news.wait(left)
        return value

    def wait_finish(self, rid: str) -> Finish:
        return self.wait(lambda rs: next((r for r in rs if isinstance(r, Finish) and r.rid == rid), None))

    def wait_state(self, state: str, after: int = 0) -> Fact:
        def found(records: Sequence[Record | Unknown]) -> Fact | None:
            facts = [r for r in records[after:] if isinstance(r, Fact) and r.name == "engine.state"]
            return facts[-1] if facts and facts[-1].value["state"] == state else None

        return self.wait(found)

    def wait_control(self, command: str, after: int = 0) -> Control:
        return self.wait(
            lambda rs: next((r for r in rs[after:] if isinstance(r, Control) and r.command == command), None)
        )

    def wait_refusal(self, after: int = 0) -> Fact:
        return self.wait(
            lambda rs: next((r for r in rs[after:] if isinstance(r, Fact) and r.name == "control.refused"), None)
        )

    def steps(self, rid: str) -> list[Step]:
        with self._news:
            return [r for r in self.records if isinstance(r, Step) and r.rid == rid]

    @property
    def n(self) -> int:
        with self._news:
            return len(self.records)

    def output(self, rid: str) -> list[int]:
        """Emitted token ids: the first root, then what every step emitted."""
        steps = self.steps(rid)
        return [steps[0].root, *(token for step in steps for token in step.emitted)]  # type: ignore[list-item]

    def close(self) -> None:
        self.source.stop()
        self.process.stop()
