"""A session: a trace file, the store over it, the thread that takes it in, and, while live, the sources that fill it.

Live and replay differ only in who writes the file. The screen and the command line hold a Session and ask its store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ddscope.model import Position, Record
from ddscope.session.first import FirstPaint
from ddscope.session.spool import Spool
from ddscope.session.store import Store
from ddscope.sources import JournalSource, LogFileSource, Servers, SocketSource
from ddscope.trace import TraceError, Unknown

if TYPE_CHECKING:
    from ddscope.remote.attached import AttachedHost  # ssh and all that is only for who attaches to a host

T = TypeVar("T")
Observer = Callable[[Record | Unknown, int], None]
"""Gets every record of the file once, in order, with its number. `Diagnosis.observe` is one."""

POLL_S = 0.02  # longest the store is kept busy at a time
IDLE_LIVE_S = 0.05  # a sink wakes the thread at once; this only bounds what nobody announced
IDLE_REPLAY_S = 0.25
WAIT_S = 0.05
DRAIN_S = 10.0


class SessionError(ValueError):
    """What was asked cannot be done in this session. The message is one sentence a person can act on."""


class Source(Protocol):
    """A live source of lines, as `ddscope.sources` has them."""

    @property
    def state(self) -> str:
        """How it stands."""

    @property
    def reason(self) -> str:
        """Why, in a sentence; empty when all is well."""

    def start(self) -> None:
        """Begin in the background."""

    def stop(self) -> None:
        """End; nothing reaches the sink afterwards."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source stands: its name, its own word for the state, and why in a sentence."""

    name: str
    state: str
    reason: str


class Session:
    """What a screen or a command works with, made by `run` or `replay`. Nothing comes before `start` (or entering it).

    store: the views. path: the trace. first: the step to show before the index is there (replay). trouble: why the
    session can no longer go on as it should, in a sentence, else None.
    """

    def __init__(self, path: Path, *, spool: Spool | None = None, use_sidecar: bool = True) -> None:
        self.path = path
        self.store = Store(path, use_sidecar=use_sidecar and spool is None, growing=spool is not None)
        self.first: FirstPaint | None = None
        self.trouble: str | None = None
        self._spool = spool
        self._engine: SocketSource | None = None
        self._servers: Servers | None = None
        self._hosts: list[AttachedHost] = []
        self._sources: list[tuple[str, Source]] = []
        self._states: list[str] = []
        self._state_moves = 0
        self._observers: list[Observer] = []
        self._observed = 0
        self._observing = threading.RLock()
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._finished = False

    # making ---------------------------------------------------------------------------------------------------

    @classmethod
    def run(
        cls,
        socket: str | Path | None = None,
        *,
        servers: Sequence[str | Path] = (),
        out: Path | None = None,
        units: Sequence[str] = (),
        log_files: Sequence[Path] = (),
        hosts: Sequence[AttachedHost] = (),
        observers: Sequence[Observer] = (),
    ) -> Session:
        """A live session, started: the engine behind a unix socket, journals of local units, log files.

        socket: of an engine that is ours and obeys. servers: sockets, folders or patterns of servers that are not: each
        rank is a source of its own (`engine/0`, `engine/1`), and none is ever paused. hosts: what is followed of each;
        they are closed with the session.
        out: where to record; None keeps it among the recent sessions. Raises TraceError when it cannot be recorded,
        SessionError when two units or two log files have the same name.
        """
        names = [*(f"journal/{unit}" for unit in units), *(f"log/{path.name}" for path in log_files)]
        if len(set(names)) < len(names):  # before anything is written: two sources cannot share their seqs
            raise SessionError(f"Two sources have the same name: {', '.join(sorted(names))}.")
        session = cls.live(out)
        if socket is not None:
            session._engine = SocketSource(socket, session.sink)
            session.add_source("engine", session._engine)
        if servers or hosts:
            session._servers = Servers(servers, session.sink if not hosts else session._pulsing)
            session.add_source("servers", session._servers)
        for host in hosts:
            session._add_host(host)
        for unit in units:
            session.add_source(f"journal/{unit}", JournalSource(unit, session.sink))
        for path in log_files:
            session.add_source(f"log/{path.name}", LogFileSource(path, session.sink))
        for observer in observers:
            session.observe(observer)
        session.start()
        return session

    @classmethod
    def live(cls, out: Path | None = None) -> Session:
        """A live session without sources yet; they feed `sink`."""
        spool = Spool(out)
        return cls(spool.path, spool=spool)

    @classmethod
    def replay(
        cls, path: str | Path, at: int | None = None, *, observers: Sequence[Observer] = (), use_sidecar: bool = True
    ) -> Session:
        """A trace file. `first` holds the last step, or the last one with step number `at`, at once; the rest follows.

        Raises TraceError when the file cannot be opened, is no trace, or needs a newer reader.
        """
        session = cls(Path(path), use_sidecar=use_sidecar)
        session.first = session.store.first_paint(at)
        for observer in observers:
            session.observe(observer)
        return session

    def _add_host(self, host: AttachedHost) -> None:
        assert self._servers is not None
        self._hosts.append(host)
        host.open(self.sink, self._servers.follow, self._servers.forget)
        for name, source in host.sources:
            self.add_source(name, source)

    def _pulsing(self, lines: bytes) -> None:
        """What hooks tell is also a sign of life, for the hosts' ladders; with several hosts nobody knows whose."""
        if len(self._hosts) == 1 and self._hosts[0].watch is not None:
            self._hosts[0].watch.pulse.saw(lines, time.monotonic())
        self.sink(lines)

    def add_source(self, name: str, source: Source) -> None:
        """Add a source before `start`."""
        self._sources.append((name, source))

    def observe(self, observer: Observer) -> None:
        """Add an observer before `start`. It is called on the session's thread."""
        self._observers.append(observer)

    # running --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sources and the thread; a second call does nothing."""
        if self._thread is not None or self._finished:
            return
        self._thread = threading.Thread(target=self._work, name="session", daemon=True)
        self._thread.start()
        for _, source in self._sources:
            source.start()

    def sink(self, lines: bytes) -> None:
        """Whole encoded lines from a source, on its thread."""
        if self._spool is None:
            raise SessionError("A replay takes no new records.")
        try:
            self._spool.sink(lines)
        except TraceError as error:
            self.trouble = str(error)
            raise
        self._wake.set()

    def finish(self) -> None:
        """Stop the sources, take in what is left, write the footer. The store stays open. May be called twice."""
        if self._finished:
            return
        self._finished = True
        for host in self._hosts:
            host.leave()
        for _, source in self._sources:
            source.stop()
        for host in self._hosts:
            host.close()
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._spool is not None:
            self._spool.close()
            deadline = time.monotonic() + DRAIN_S
            while (self._once() or not self.settled) and time.monotonic() < deadline:
                pass
        self._tell()

    def close(self) -> None:
        """`finish`, and give the file back."""
        self.finish()
        self.store.close()

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _work(self) -> None:
        idle = IDLE_LIVE_S if self.is_live else IDLE_REPLAY_S
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                if self._spool is not None:
                    self._spool.tick()
            except TraceError as error:
                self.trouble = str(error)
            if not self._once():
                self._wake.wait(idle)

    def _once(self) -> bool:
        """One round of taking in; True when there was something."""
        changed = self.store.poll(POLL_S)
        changed = self._feed(POLL_S) or changed
        states = [status.state for status in self.sources]
        if states != self._states:
            self._states = states
            self._state_moves += 1
            changed = True
        if changed:
            self._tell()
        return changed

    def _feed(self, budget_s: float) -> bool:
        """Give the observers the next records."""
        if not self._observers or self._observed >= self.store.n:
            return False
        deadline = time.perf_counter() + budget_s
        while self._observed < self.store.n and time.perf_counter() < deadline:
            record = self.store.trace.record(self._observed)
            with self._observing:
                for observer in list(self._observers):
                    try:
                        observer(record, self._observed)
                    except Exception as error:  # the session must outlive whoever watches it
                        self._observers.remove(observer)
                        self.trouble = f"An observer failed on record {self._observed:,} and is off: {error!r:.200}."
                self._observed += 1
        return True

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # asking ---------------------------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Records are still being written by this session (or were, until `finish`)."""
        return self._spool is not None

    @property
    def can_control(self) -> bool:
        """There is an engine of ours that can be steered."""
        return self._engine is not None and not self._finished

    @property
    def attached(self) -> bool:
        """Records come, or came, from servers that are not ours."""
        return self._servers is not None

    @property
    def hosts(self) -> list[AttachedHost]:
        """Hosts that are watched."""
        return list(self._hosts)

    @property
    def gone_s(self) -> float | None:
        """Seconds since the last of all servers was lost; None while one is connected, or when none ever was."""
        return self._servers.gone_s if self._servers is not None else None

    @property
    def version(self) -> int:
        """Moves when anything a person can see changed."""
        return self.store.version + self._observed + self._state_moves

    @property
    def observed(self) -> int:
        """Records the observers have been given: moves when findings may have changed."""
        return self._observed

    @property
    def settled(self) -> bool:
        """Everything in the file has been taken in and observed."""
        return self.store.settled and (not self._observers or self._observed >= self.store.n)

    @property
    def sources(self) -> list[SourceStatus]:
        """How the sources stand: engines by socket where they are servers, then logs."""
        return [
            SourceStatus(name, str(source.state), source.reason) for name, source in (*self._engines(), *self._logs())
        ]

    @property
    def engines(self) -> list[SourceStatus]:
        """How the engines stand: ours is called `engine`, servers are called by their sockets."""
        return [SourceStatus(name, str(source.state), source.reason) for name, source in self._engines()]

    def _engines(self) -> list[tuple[str, Source]]:
        own = [(name, source) for name, source in self._sources if source is self._engine]
        members = self._servers.members if self._servers is not None else []
        return [*own, *((member.path.name, member) for member in members)]

    def _logs(self) -> list[tuple[str, Source]]:
        return [pair for pair in self._sources if pair[1] is not self._engine and pair[1] is not self._servers]

    def ask(self, question: Callable[[], T]) -> T:
        """Ask an observer something while it is not being fed: `session.ask(diagnosis.findings)`."""
        with self._observing:
            return question()

    def wait_for(self, reached: Callable[[Store], bool], timeout_s: float | None = None) -> bool:
        """Wait until the store says so; False when the time is over first. Not from the session's own thread."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not reached(self.store):
                left = WAIT_S if deadline is None else min(WAIT_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)  # not only for the store: what else is asked about tells nobody
        return True

    def first_record(self) -> int | None:
        """Record number of the step of `first`; None until it has been taken in."""
        return self.store.record_at(self.first.offset) if self.first is not None else None

    # doing ----------------------------------------------------------------------------------------------------

    def control(self, command: str, **args: Any) -> None:
        """Give the engine, or every server, a command; the answer comes as records.

        Raises SessionError without an engine, SourceError when it cannot be reached.
        """
        engine = self._engine if self._engine is not None else self._servers
        if engine is None or self._finished:
            raise SessionError(f"There is no engine to take `{command}`: this is a recording.")
        engine.send(command, args)

    def take_stacks(self) -> bool:
        """Ask the hosts for the stacks of their servers; they come as records. False where nobody can be asked."""
        asked = [host.ask_stacks() for host in self._hosts]
        return any(asked)

    def mark(self, text: str, at: int) -> None:
        """Keep a person's note at a record: in the spool while live, beside the file in a replay (see `marks`).

        Raises SessionError when there is no such record, TraceError when the note cannot be written.
        """
        if not 0 <= at < self.store.n:
            raise SessionError(f"There is no record {at:,} to put a note at.")
        index = self.store.trace.index
        while at > 0 and index.src[at] < 0:  # a damaged line names no source: the note goes to the record before it
            at -= 1
        position = Position(self.store.source(at), max(index.seq[at], 0))
        if self._spool is not None and not self._finished:
            self._spool.mark(text, position)
            self._wake.set()
        else:
            self.store.add_mark_beside(text, position)
            self._tell()
