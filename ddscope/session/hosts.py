"""What is known of the hosts of servers: ladder of liveness, server, clock, and the stacks of their processes.

Values in, values out. Facts are foreign: a field of another type than agreed counts as not said; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddscope.model import Stack, Thread
from ddscope.session.tokens import visible
from ddscope.session.views import ProbeRow

RUNGS = ("unit", "process", "port", "health", "generate", "progress")
"""From the ground up: the first that fails explains those above it."""
AHEAD_US = 500_000
"""A clock that is off by so much puts lines and steps in another order than they happened."""

_WAITS = re.compile(
    r"^(?:[\w.<>]*\.)?(?:wait|_wait_for_tstate_lock|select|poll|_poll|epoll|accept|_accept|get|acquire|join|sleep|recv|recv_into"
    r"|readinto|_worker|run_forever|_run_once|_bootstrap|_bootstrap_inner|recv_pyobj|recv_multipart|wait_for|serve_forever)\b"
)
_LIBRARY = re.compile(
    r"/lib(?:64)?/python3[\d.]*/(?!site-packages|dist-packages)|^[\w.<>]+ \(<|/(?:zmq|uvloop|asyncio)/"
)
_SERVER = re.compile(r"/(?:sglang|vllm|ddscope_hooks)/")


@dataclass(frozen=True, slots=True)
class HostView:
    """One host. src: of its probes. rungs: in the order of the ladder, as far as they were told."""

    src: str
    name: str
    server: Mapping[str, Any]
    offset_us: int | None
    rtt_us: int | None
    rungs: tuple[ProbeRow, ...]

    @property
    def failing(self) -> ProbeRow | None:
        """The lowest rung that fails: the headline."""
        return next((row for row in self.rungs if not row.ok), None)

    @property
    def words(self) -> str:
        """Unit or process, and what runs there: `sglang-qwen.service · sglang 0.5.23`."""
        told = self.server
        what = told.get("unit") or told.get("container") or (f"pid {told['pid']}" if told.get("pid") else "")
        kind = told.get("kind")
        packages = told.get("packages")
        version = packages.get(kind) if isinstance(packages, dict) and isinstance(kind, str) else None
        runs = " ".join(str(part) for part in (kind, version) if part)
        return visible(" · ".join(str(part) for part in (what, runs) if part))

    @property
    def algorithm(self) -> str:
        """The speculative algorithm that was asked for; "" where none is known."""
        name = self.server.get("algorithm")
        return visible(name) if isinstance(name, str) else ""

    @property
    def clock_words(self) -> str:
        """How far its clock is off, when that matters; "" else."""
        if self.offset_us is None or abs(self.offset_us) < AHEAD_US:
            return ""
        return f"its clock is {abs(self.offset_us) / 1e6:.1f} s {'ahead' if self.offset_us > 0 else 'behind'}"


def ladder(rows: Sequence[ProbeRow]) -> tuple[ProbeRow, ...]:
    """Rungs in their order; unknown ones last."""
    return tuple(sorted(rows, key=lambda row: RUNGS.index(row.rung) if row.rung in RUNGS else len(RUNGS)))


def host_view(src: str, rows: Sequence[ProbeRow], facts: Mapping[str, Any]) -> HostView:
    """The view of one source of probes."""
    server, clock = (_dict(facts.get(name)) for name in ("host.server", "host.clock"))
    name = server.get("host") or clock.get("host") or src.partition("/")[2]
    offset, rtt = clock.get("offset_us"), clock.get("rtt_us")
    return HostView(
        src=src,
        name=visible(str(name)) if name else "",
        server=server,
        offset_us=offset if _whole(offset) else None,
        rtt_us=rtt if _whole(rtt) else None,
        rungs=ladder(rows),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# stacks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread. at: the frame that says most; frames: innermost first; idle: it waits as idle threads do.

    still: it stands where it stood in the dump before; None where there is none to compare with.
    """

    name: str
    gil: bool
    active: bool
    idle: bool
    at: str
    frames: tuple[str, ...]
    still: bool | None


@dataclass(frozen=True, slots=True)
class StackView:
    """The newest dump of one process, the interesting threads first. before_t: of the dump it is compared with."""

    record: int
    src: str
    pid: int
    process: str
    mode: str
    t: int
    before_t: int | None
    threads: tuple[ThreadRow, ...]


def stack_view(record: int, stack: Stack, before: Stack | None) -> StackView:
    """A dump, compared with the one before of the same process."""
    was = {thread.id: thread.frames for thread in before.threads} if before is not None else None
    rows = [_thread(thread, None if was is None else was.get(thread.id) == thread.frames) for thread in stack.threads]
    order = sorted(rows, key=lambda row: (row.idle, not row.gil, row.name != "MainThread", not row.active))
    return StackView(
        record=record,
        src=stack.src,
        pid=stack.pid,
        process=visible(stack.process or ""),
        mode=visible(stack.mode or ""),
        t=stack.t,
        before_t=before.t if before is not None else None,
        threads=tuple(order),
    )


def _thread(thread: Thread, still: bool | None) -> ThreadRow:
    frames = tuple(visible(frame).replace("\n", " ") for frame in thread.frames)
    main = thread.name == "MainThread"
    busy = bool(thread.gil) or main
    idle = not busy and (not frames or (not thread.active and all_library(frames)))
    return ThreadRow(
        name=visible(thread.name or f"thread {thread.id}"),
        gil=bool(thread.gil),
        active=bool(thread.active),
        idle=idle,
        at=telling(frames),
        frames=frames,
        still=still,
    )


def all_library(frames: Sequence[str]) -> bool:
    """Whether a thread waits in the standard library on behalf of nobody in particular."""
    inner = frames[0]
    return bool(_WAITS.match(inner)) or all(_LIBRARY.search(frame) for frame in frames)


def telling(frames: Sequence[str]) -> str:
    """The frame that says most: the innermost of the server, else of anything but the library, else of all."""
    for test in (_SERVER.search, lambda frame: not _LIBRARY.search(frame)):
        found = next((frame for frame in frames if test(frame)), None)
        if found is not None:
            return found
    return frames[0] if frames else "no Python frame"
