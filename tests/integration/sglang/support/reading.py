"""What the hooks of a server wrote, read with ddscope's own readers: records by request, books, findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ddscope.diagnose import Finding, diagnose
from ddscope.model import Fact, Finish, Gap, Header, Record, Request, Step, Tensor
from ddscope.trace import TraceFile, Unknown, verify

R = TypeVar("R", bound=Record)
WAIT_S = 30


class Trace:
    """A file that a server's hooks write. `refresh` reads it again from the start: these files are small.

    src: only the records of this source.
    """

    def __init__(self, path: Path, src: str | None = None) -> None:
        self.path = path
        self.src = src
        self.records: list[Record | Unknown] = []
        self.sources: dict[str, tuple[int, int, int]] = {}

    def refresh(self) -> None:
        if not self.path.stat().st_size:
            return  # just made: the line that begins it, written whole, is on its way
        with TraceFile(self.path, use_sidecar=False) as file:
            while not file.done:
                file.poll(1.0)
            self.records = [file.record(i) for i in range(file.index.n)]
            self.sources = {
                name: (counts.emitted, counts.received, counts.dropped) for name, counts in file.index.counters.items()
            }

    def wait_finished(self, rids: Sequence[str]) -> None:
        """Until each of these requests has its `finish` record: the server answers before its hooks have written."""
        deadline = time.monotonic() + WAIT_S
        missing = set(rids)
        while missing and time.monotonic() < deadline:
            if self.path.is_file():
                self.refresh()
                missing = set(rids) - {finish.rid for finish in self.of(Finish)}
            time.sleep(0.05)
        assert not missing, f"no finish record for {sorted(missing)} within {WAIT_S} s"

    def of(self, kind: type[R]) -> list[R]:
        return [r for r in self.records if isinstance(r, kind) and self.src in (None, r.src)]

    @property
    def header(self) -> Header:
        return self.of(Header)[0]

    def request(self, rid: str) -> Request:
        return next(record for record in self.of(Request) if record.rid == rid)

    def finish(self, rid: str) -> Finish:
        return next(record for record in self.of(Finish) if record.rid == rid)

    def steps(self, rid: str) -> list[Step]:
        return [record for record in self.of(Step) if record.rid == rid]

    def facts(self, name: str) -> list[Any]:
        """Values of the facts of this name, in order."""
        return [record.value for record in self.of(Fact) if record.name == name]

    def tensors(self) -> list[Tensor]:
        return self.of(Tensor)

    def gaps(self, reason: str) -> list[Gap]:
        return [record for record in self.of(Gap) if record.reason == reason]

    def problems(self) -> list[str]:
        """What `ddscope trace verify` says of it."""
        return [problem.text for problem in verify(self.path).problems]

    def findings(self) -> list[Finding]:
        return diagnose(self.path)

    def taps(self) -> dict[str, dict[str, Any]]:
        """The last `hooks.taps` fact, by the tap's name."""
        return {tap["tap"]: tap for tap in self.facts("hooks.taps")[-1]}


def told(step: Step) -> list[int]:
    """Tokens that a step emitted; absent is a fault of the hooks, not of the trace."""
    assert step.emitted is not None, f"step {step.step} of {step.rid} tells no emitted tokens"
    return step.emitted


def output_of(trace: Trace, rid: str) -> list[int]:
    """The output that the records tell: the first root is the prefill's token, then what every step emitted."""
    steps = trace.steps(rid)
    assert steps and steps[0].root is not None, f"{rid}: the first step tells no root"
    return [steps[0].root, *(token for step in steps for token in told(step))]
