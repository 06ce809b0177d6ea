"""The stand-in service (`site/sglang/launch_server.py`) as a process of this machine, and what came of watching it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddscope.model import Fact, Gap, Log, Probe, Record, Stack
from ddscope.session import Session
from ddscope.trace import Unknown, decode
from tests.integration.host.sshd import descendants, free_port
from tests.unit.emit_support import DEADLINE, wait_for

SCRIPT = Path(__file__).parent / "site" / "sglang" / "launch_server.py"
SECRET = "sk-secret-of-the-test"


class Service:
    """Started with the command line of a server; `scheduler` is the process that makes its tokens."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log
        args = ["--model-path", "Qwen/Qwen3-8B", "--port", str(self.port), "--speculative-algorithm", "DFLASH"]
        self.command = [sys.executable, str(SCRIPT), *args, "--api-key", SECRET, "--tp-size=2"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        wait_for(lambda: b"ready to roll" in self.log.read_bytes(), "the service")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def scheduler(self) -> int:
        return descendants(self.pid)[0]

    def probes(self) -> int:
        """Requests that the scheduler answered."""
        return self.log.read_bytes().count(b"Decode batch")

    def toggle_port(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def toggle_hang(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)

    def stop(self) -> None:
        if self.process is not None:
            for pid in descendants(self.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            self.process = None


class Kept:
    """A sink that keeps the records, and asks things of them."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def __call__(self, batch: bytes) -> None:
        assert batch.endswith(b"\n")
        self.lines += batch.splitlines()

    @property
    def records(self) -> list[Record | Unknown]:
        return [decode(line) for line in list(self.lines)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def rung(self, name: str) -> Probe | None:
        """The newest answer of a rung."""
        return next((probe for probe in reversed(self.of(Probe)) if probe.rung == name), None)

    def ladder(self) -> dict[str, bool]:
        """Every rung as it stands."""
        return {probe.rung: probe.ok for probe in self.of(Probe)}

    def await_rung(self, name: str, ok: bool, words: str = "", deadline: float = DEADLINE) -> Probe:
        """Until a rung says so, in such words."""

        def there() -> bool:
            probe = self.rung(name)
            return probe is not None and probe.ok is ok and words in (probe.detail or "")

        wait_for(there, f"{name} {'ok' if ok else 'failing'} with {words!r}: {self.rung(name)}", deadline)
        probe = self.rung(name)
        assert probe is not None
        return probe

    def fact(self, name: str) -> Any:
        return next((fact.value for fact in reversed(self.of(Fact)) if fact.name == name), None)

    def messages(self) -> list[str]:
        return [str(log.message) for log in self.of(Log)]

    def check_books(self) -> None:
        """Every source: seqs from 0, each once, or covered by a gap with a count."""
        due: dict[str, int] = {}
        for record in self.records:
            count = record.count if isinstance(record, Gap) and record.count is not None else 1
            due[record.src] = due.get(record.src, 0) + count
            assert record.seq == due[record.src] - 1, f"{record.src}: {record}"

    def await_stacks(self, many: int, test: Callable[[Stack], bool] = lambda _: True) -> list[Stack]:
        wait_for(lambda: sum(map(test, self.of(Stack))) >= many, f"{many} stacks: {self.fact('stack.refused')}", 120)
        return [stack for stack in self.of(Stack) if test(stack)]


def connections(session: Session) -> int:
    """How often a hook's socket was connected."""
    assert session._servers is not None
    return max((m.counters.connections for m in session._servers.members), default=0)
