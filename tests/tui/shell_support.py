"""A small session for the tests of the workbench: two requests, a journal with a traceback, a NaN, hostile text.

Every time in it is the trace's own, so that pictures do not depend on when they are made.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from ddscope.model import Fact, Finish, Flags, Gap, Log, Record, Request, StepTime, Target, Tensor, Tokens
from ddscope.session import Session
from ddscope.trace import TraceWriter, encode
from ddscope.tui.actions import DEFAULT_KEYS, Keys
from ddscope.tui.app import DdscopeApp
from ddscope.tui.screens.workbench import Workbench
from tests.tracing import Clock, header, step

HOSTILE = "[/INST] [bold red]x[/] \x1b[31mred\x1b[0m \u202e\x00 [@click=app.quit]q[/]"
WORDS = [" hash", " table", " is", " a", " the", " of", " data", ",", "\n", "[/INST]", " key", " map", "é", " in"]
DEADLINE_S = 60.0


def log(clock: Clock, text: str, *, src: str = "journal/sglang.service", pid: int = 4100, priority: int = 6) -> Log:
    """One line of a service's journal."""
    return Log(**clock(src), message=text, unit=src.partition("/")[2], pid=pid, priority=priority)


def traceback(clock: Clock) -> list[Record]:
    """A traceback of six lines, another process talking in between."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/opt/sglang/worker.py", line 12, in load',
        "    torch.ops.load_library(path)",
        '  File "/opt/torch/_ops.py", line 1392, in load_library',
        "    ctypes.CDLL(path)",
        "OSError: libnvrtc.so.12: cannot open shared object file",
    ]
    records: list[Record] = [log(clock, line, pid=4101) for line in lines[:3]]
    records.append(log(clock, "INFO another process is not part of it", pid=4102))
    return [*records, *(log(clock, line, pid=4101) for line in lines[3:])]


def steps_of(
    clock: Clock, rid: str, accepted: Sequence[int], *, base: int = 4, nonfinite: Sequence[int] = ()
) -> Iterator[Record]:
    """Steps that accept what is asked for, out of a tree of nine nodes, with a log line after every fourth."""
    parents = (0, 1, 2, 0, 4, 1, 6, 2, 0)
    root = 1
    for number, count in enumerate(accepted):
        tokens = [1 + (number + node) % 12 for node in range(9)]
        bonus = 14  # no child has it, so the path ends where it should
        flags = Flags(sampled=False, nonfinite={"target": 9}) if number in nonfinite else Flags(sampled=False)
        times = StepTime(
            draft=9_000 + number * 10, build=700, mask=90, verify=41_000 + number * 200, commit=150, total=52_000
        )
        path = [0, 1, 2, 8][: count + 1]
        chosen = [14] * 10
        for node, token in zip(path, [*(tokens[node - 1] for node in path[1:]), bonus], strict=True):
            chosen[node] = token
        target = Target(ids=chosen, logprobs=[-0.25] * 10, gap=[2.5] * 10)
        made = step(
            clock, number, base, root, parents, tokens, path, bonus, rid, flags=flags, time=times,
            batch=None, rank=None, draft=None, target=target,
        )  # fmt: skip
        yield made
        if number % 4 == 3:
            yield log(clock, f"INFO Decode batch, #running-req: 1, accept len: 2.88 {HOSTILE} step {number}")
        base, root = base + count + 1, bonus


def shell_records() -> list[Record]:
    """The whole session as records, the footer left out."""
    clock = Clock()
    records: list[Record] = [
        header(clock),
        Tokens(**clock(), ids=list(range(1, len(WORDS) + 1)), text=list(WORDS)),
        log(clock, "WARNING torchcodec is not installed, video input is off", priority=4),
        Tensor(**clock(), name="draft.target_hidden", shape=[37, 40], dtype="float32", expect=[None, 40], ok=True),
        Request(**clock(), rid="r1", prompt_len=4, prompt_ids=[5, 1, 2, 9], sampling={"temperature": 0.0}),
        Fact(**clock(), name="engine.state", value={"state": "running", "rid": "r1", "step": 0, "reason": None}),
        *steps_of(clock, "r1", [3, 2, 1, 0, 2, 3, 1, 2, 0, 3, 3, 2]),
        Finish(**clock(), rid="r1", reason="stop", emitted=35, steps=12),
        *traceback(clock),
        Gap(**clock("journal/sglang.service", skip=6), of="journal/sglang.service", count=7, reason="rate_limited"),
        Request(**clock(), rid="r2", prompt_len=3, prompt_ids=[10, 3, 4], sampling={"temperature": 0.0}),
        *steps_of(clock, "r2", [1, 2, 0, 3, 2, 1], base=3, nonfinite=[2]),
    ]
    return records


class FakeEngine:
    """Stands where the socket stands: keeps what was sent."""

    state = "connected"
    reason = ""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, command: str, args: dict[str, Any], by: str = "viewer") -> None:
        """Keep it."""
        self.sent.append((command, args))

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""


def write_trace(path: Path, records: Iterable[Record] | None = None) -> Path:
    """A finished trace file."""
    with TraceWriter(path) as writer:
        for record in shell_records() if records is None else records:
            writer.write(record)
    return path


@contextmanager
def replayed(folder: Path, records: Iterable[Record] | None = None) -> Iterator[Session]:
    """A replay of the session, running."""
    with Session.replay(write_trace(folder / "trace.jsonl", records), use_sidecar=False) as session:
        yield session


class Live:
    """A live session that a test feeds, with an engine that only listens."""

    def __init__(self, session: Session, engine: FakeEngine) -> None:
        self.session = session
        self.engine = engine
        self.clock = Clock()

    def feed(self, *records: Record) -> None:
        """Records arrive."""
        self.session.sink(b"".join(map(encode, records)))

    def fact(self, name: str, value: Any) -> None:
        """The engine tells something."""
        self.feed(Fact(**self.clock(), name=name, value=value))

    def state(self, state: str, rid: str | None = None, step: int | None = None, reason: str | None = None) -> None:
        """The engine changes state."""
        self.fact("engine.state", {"state": state, "rid": rid, "step": step, "reason": reason})


@contextmanager
def living(folder: Path, *, control: bool = True) -> Iterator[Live]:
    """A live session, running, with a header and nothing else."""
    session = Session.live(folder / "live.jsonl")
    engine = FakeEngine()
    if control:
        session._engine = engine  # type: ignore[assignment]
    with session:
        live = Live(session, engine)
        live.feed(header(live.clock))
        live.feed(Tokens(**live.clock(), ids=list(range(1, len(WORDS) + 1)), text=list(WORDS)))
        yield live


def app_of(session: Session, *, keys: Keys = DEFAULT_KEYS, theme: str = "dark", **options: Any) -> DdscopeApp:
    """An app on a session."""
    return DdscopeApp(session, keys=keys, theme=theme, **options)


def bench_of(pilot: Pilot[None]) -> Workbench:
    """The workbench of a running app."""
    bench = pilot.app.screen_stack[1]
    assert isinstance(bench, Workbench)
    return bench


async def until(
    pilot: Pilot[None], condition: Callable[[], bool], what: str = "the condition", deadline_s: float = DEADLINE_S
) -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        await pilot.pause(0.01)
    await pilot.pause()


def is_settled(bench: Workbench) -> bool:
    """Everything in the file is on the screen."""
    session = bench.session
    return (
        session.settled
        and bench.first is None
        and bench.seen_version == session.version
        and bench.diagnosing.caught_up
        and bench.journal.entries.complete
    )


async def settled(pilot: Pilot[None]) -> Workbench:
    """Wait until the screen shows all that the file says."""
    await until(pilot, lambda: len(pilot.app.screen_stack) > 1, "the workbench")
    bench = bench_of(pilot)
    await until(pilot, lambda: is_settled(bench), "a settled screen")
    return bench


@asynccontextmanager
async def shown(session: Session, size: tuple[int, int] = (140, 46), **options: Any) -> AsyncIterator[Pilot[None]]:
    """An app on a session, running headless and settled."""
    app = app_of(session, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await settled(pilot)
        yield pilot


def screen_lines(pilot: Pilot[None]) -> list[str]:
    """The screen as text, a line a row."""
    screen = pilot.app.screen
    return ["".join(segment.text for segment in strip) for strip in screen._compositor.render_strips()]


def screen_text(pilot: Pilot[None]) -> str:
    """The screen as one text."""
    return "\n".join(screen_lines(pilot))


def utc() -> None:
    """Clock times in pictures must not depend on where they are made."""
    os.environ["TZ"] = "UTC"
    time.tzset()
