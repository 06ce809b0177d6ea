"""A source of `probe`, `stack` and `fact` records: the agent on a host, kept running over lost connections.

Asks for stacks by itself when a rung fails that stacks can explain. What is shown of it is not known here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ddscope.model import Fact, Gap, Probe, Record, Stack, Thread
from ddscope.remote import pushing
from ddscope.remote.agent import Agent
from ddscope.remote.host import Host, HostError
from ddscope.remote.pulse import Pulse
from ddscope.sources.threaded import Backoff, Threaded
from ddscope.trace import encode

BACKOFF_S = (0.5, 10.0)
BEAT_S = 1.0
RETELL_S = 30.0
SAMPLES = 5
CLOCK_EVERY_S = 600.0
SECOND_DUMP_S = 10.0
DUMPS_APART_S = 60.0
HEARD_S = 3.0
"""A server's silence counts only where its host was heard at most so long ago."""
STALLS = ("process", "health", "generate", "progress")
"""Rungs whose failing is looked into with stacks."""


class Numbered:
    """Makes records of one source: seqs from 0, encoded, to the sink."""

    def __init__(self, src: str, sink: Callable[[bytes], object]) -> None:
        self.src = src
        self._sink = sink
        self._next = 0
        self._lock = threading.Lock()

    def put(self, kind: type[Record], at: dict[str, Any], **fields: Any) -> None:
        """One record. at: its `t` and `mono`; without them, now."""
        t = at.get("t", time.time_ns() // 1000)
        mono = at.get("mono", time.monotonic_ns() // 1000)
        with self._lock:
            record = kind(src=self.src, seq=self._next, t=t, mono=mono, **fields)
            self._next += 1
            self._sink(encode(record))


class HostWatch(Threaded):
    """Records of one host. `server`: what is known of the server now.

    options: as `there.agent.Agent` takes them. suffix: of the source ids, "/<host>" where there are several hosts.
    on_server: told whenever what is known of the server changed, on this source's thread.
    """

    def __init__(
        self,
        host: Host,
        sink: Callable[[bytes], object],
        options: dict[str, Any],
        *,
        suffix: str = "",
        on_server: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        super().__init__(host.name, f"What {host.name} tells", f"Connecting to {host.name}.")
        self.host = host
        self.server: dict[str, Any] = {}
        self.pulse = Pulse()
        self._probes, self._stacks = Numbered(f"probe{suffix}", sink), Numbered(f"stack{suffix}", sink)
        self._options = options
        self._on_server = on_server
        self._agent: Agent | None = None
        self._beating = threading.Thread(target=self._run, args=(self._beat,), name=f"beat {host.name}", daemon=True)
        self._failing: set[str] = set()
        self._clock: list[tuple[int, int]] = []  # (round trip, offset) in µs
        self._heard = 0.0  # when the agent last said something
        self._next_clock = 0.0
        self._next_dump: float | None = None
        self._last_dump = float("-inf")
        self._py_spy = ""
        self._pushing = threading.Lock()
        self._pulse_told: tuple[bool | None, float] = (None, 0.0)

    # running --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin in the background."""
        super().start()
        self._beating.start()

    def stop(self) -> None:
        """End; nothing reaches the sink afterwards."""
        super().stop()
        if self._beating.ident is not None:
            self._beating.join()

    def _wake(self) -> None:
        agent = self._agent
        if agent is not None:
            agent.close()

    def _work(self) -> None:
        backoff = Backoff(*BACKOFF_S)
        while not self._stopped.is_set():
            good = True
            try:
                self._serve()
            except HostError as problem:
                good = False
                self._lost(str(problem))
            self._stopped.wait(backoff.after(good))

    def _serve(self) -> None:
        """One life of the agent. Raises HostError when it cannot be started, or ended before it said anything."""
        agent = self._agent = Agent(self.host, self._options)
        heard = False
        try:  # `stop` sets the event before it looks for an agent to close
            while not self._stopped.is_set() and (message := agent.read()) is not None:
                self._heard = time.monotonic()
                if not heard:
                    heard, self._next_clock, self._clock = True, 0.0, []
                    self.state, self.reason = "connected", ""
                self._take(message)
            if not self._stopped.is_set():
                why = agent.why_it_ended()
                if not heard:
                    raise HostError(why)
                self._lost(why)
        finally:
            agent.close()

    def _lost(self, reason: str) -> None:
        if self.state == "connected":
            self._probes.put(Gap, {}, of=self._probes.src, count=None, reason="disconnected")
        self._lose(reason)

    def ask_stacks(self) -> None:
        """Ask for the stacks of all processes now."""
        self._last_dump = time.monotonic()
        self._ask_stacks()

    def _ask_stacks(self) -> None:
        # On this machine py-spy was not pushed, but is the one of the viewer's own environment.
        self._ask({"ask": "stacks", "py_spy": self._py_spy, "remove": bool(self._py_spy) and not self.host.is_local})

    def ask_look(self) -> None:
        """Ask for all rungs now."""
        self._ask({"ask": "look"})

    def _ask(self, message: dict[str, Any]) -> None:
        agent = self._agent
        if agent is not None:
            agent.ask(message)

    # what it tells --------------------------------------------------------------------------------------------

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "probe":
            self._rung(message)
        elif kind == "server":
            self._take_server(message)
        elif kind == "clock":
            self._take_clock(message)
        elif kind == "stacks":
            self._take_stacks(message)
        elif kind == "no_py_spy":
            threading.Thread(target=self._push_py_spy, args=(message,), name="py-spy", daemon=True).start()
        elif kind == "host" and message.get("problems"):
            self.reason = f"On {self.host.name}, {'; '.join(message['problems'])}."

    def _rung(self, told: dict[str, Any]) -> None:
        rung, ok = str(told["rung"]), bool(told["ok"])
        self._probes.put(Probe, told, rung=rung, ok=ok, ms=told.get("ms"), detail=told.get("detail"))
        if ok:
            self._failing.discard(rung)
        elif rung not in self._failing:
            self._failing.add(rung)
            now = time.monotonic()
            if rung in STALLS and self.server.get("pid") and now - self._last_dump > DUMPS_APART_S:
                self._next_dump = now + SECOND_DUMP_S
                self.ask_stacks()

    def _take_server(self, message: dict[str, Any]) -> None:
        self.server = message["server"]
        told = {name: value for name, value in self.server.items() if name not in ("args", "listening", "start")}
        self._probes.put(Fact, message, name="host.server", value={"host": self.host.name, **told})
        self._on_server(self.server)

    def _take_clock(self, message: dict[str, Any]) -> None:
        rtt = (time.monotonic_ns() - message["id"]) // 1000  # this clock does not jump
        self._clock.append((rtt, message["t"] + rtt // 2 - time.time_ns() // 1000))
        if len(self._clock) < SAMPLES:
            self._ask_clock()
            return
        rtt, offset = min(self._clock)
        self._clock = []
        value = {"host": self.host.name, "offset_us": offset, "rtt_us": rtt}
        self._probes.put(Fact, message, name="host.clock", value=value)

    def _ask_clock(self) -> None:
        self._ask({"ask": "clock", "id": time.monotonic_ns()})

    def _take_stacks(self, message: dict[str, Any]) -> None:
        for stack in message["stacks"]:
            threads = [
                Thread(
                    id=one["id"], name=one.get("name"), gil=one.get("gil"), active=one["active"], frames=one["frames"]
                )
                for one in stack["threads"]
            ]
            self._stacks.put(
                Stack, message, pid=stack["pid"], process=stack["process"], threads=threads, mode=stack["mode"]
            )
        for problem in message["problems"]:
            self._refused(message, problem)

    def _push_py_spy(self, message: dict[str, Any]) -> None:
        """On a thread of its own: it may take a while, and neither what is told nor the end waits for it."""
        if not self._pushing.acquire(blocking=False):
            return
        try:
            self._py_spy = pushing.push_py_spy(self.host, str(message.get("machine", "")))
            self._ask_stacks()
        except HostError as problem:
            if not self._stopped.is_set():
                self._refused(message, str(problem))
        finally:
            self._pushing.release()

    def _refused(self, at: dict[str, Any], why: str) -> None:
        self._stacks.put(Fact, at, name="stack.refused", value={"host": self.host.name, "why": why})

    # by the clock ---------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            if self.state != "connected":
                continue
            now = time.monotonic()
            if now >= self._next_clock:
                self._next_clock = now + CLOCK_EVERY_S
                self._ask_clock()
            if self._next_dump is not None and now >= self._next_dump:
                self._next_dump = None
                if self._failing:
                    self.ask_stacks()
            self._tell_pulse(now)

    def _tell_pulse(self, now: float) -> None:
        verdict = self.pulse.verdict(now)
        if verdict is None:
            return
        if not verdict.ok and now - self._heard > HEARD_S:
            self._ask({"ask": "hello"})  # a connection that stalls is as silent as a server that does
            return
        ok, at = self._pulse_told
        if verdict.ok != ok or now - at > RETELL_S:
            self._pulse_told = (verdict.ok, now)
            self._rung({"rung": "progress", "ok": verdict.ok, "detail": verdict.words})
