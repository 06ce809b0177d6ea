"""The server's side of a relay: a ring for hot threads, and two threads that only move bytes.

The pump takes entries off the ring and hands them on as one message; the answerer takes what comes back: who watches,
commands of viewers, token ids whose text is wanted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddscope_hooks.emit import Counters, EmitError, Later, living
from ddscope_hooks.emit.emitter import MAX_FAULTS, sentence
from ddscope_hooks.emit.ring import Entry, Lost, Ring
from ddscope_hooks.emit.stream import BURST, GIL_OFFER_S, GIL_SLICE_S
from ddscope_hooks.relay.frames import Reader, Writer

START_S = 20.0
LOOK_S = 0.05
"""How often the pump looks into the ring. Each look costs the server more than one more record on it does."""
IDLE_S = 0.25
"""The same while nobody watches, when next to nothing is put."""
CHUNK = 16
"""Entries of one message: what they have in common, such as request ids, is pickled once."""
PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_START = """
import sys
sys.path.append(sys.argv[1])  # last: where these modules can be imported anyway, nothing changes
from ddscope_hooks.relay.receiver import main
main()
"""


class RelayEmitter:
    """`ddscope_hooks.emit.Emitter` with its work in a process of its own; see there for what each method does.

    The process is started by the constructor and ends with this one, however that ends. If it dies before, nothing is
    recorded any more, and the server runs on.
    """

    def __init__(
        self,
        src: str,
        header: Mapping[str, Any],
        *,
        ring: int = 8192,
        token_text: Callable[[Sequence[int]], Sequence[str | bytes]] | None = None,
        on_control: Callable[[dict[str, Any]], None] | None = None,
        control: bool = False,
    ) -> None:
        """Raises EmitError when the process cannot be started."""
        self.src = src
        self.watched = False
        self._ring = Ring(ring, self._wake)
        self._token_text = token_text
        self._on_control = on_control
        self._wrote: Callable[[int], object] | None = None
        self._faults: set[str] = set()
        self._off = False
        self._gone = threading.Event()
        self._calls = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DDSCOPE")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environ | {"CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,  # what a terminal sends to the server's group is not for it
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            self._writer = Writer(self._process.stdin.fileno())
            self._writer.send(("start", src, dict(header), ring, token_text is not None, control))
        except (OSError, pickle.PicklingError, TypeError) as error:
            raise EmitError(f"The process that sends records cannot be started: {error}.") from None
        with contextlib.suppress(OSError):
            import fcntl

            fcntl.fcntl(self._process.stdin.fileno(), _F_SETPIPE_SZ, PIPE_BYTES)
        self._pump = threading.Thread(target=self._run, name="ddscope-relay-pump", daemon=True)
        self._answerer = threading.Thread(target=self._answer, name="ddscope-relay-answer", daemon=True)
        self._pump.start()
        self._answerer.start()
        threading.Thread(target=self._command, name="ddscope-relay-command", daemon=True).start()
        living.add(self)

    # -- hot threads -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Records that wait in the ring."""
        return len(self._ring)

    def emit(self, type: str, fields: Mapping[str, Any]) -> None:
        """Stamp and append; never waits, never raises. What `fields` refers to must not change afterwards."""
        if not self._off:
            self._ring.put((type, dict(fields), time.monotonic_ns()))

    def emit_later(self, later: Later) -> None:
        """Stamp and append records that are made in the other process."""
        if not self._off:
            self._ring.put(("later", later, time.monotonic_ns()))

    def fault(self, tap: str, exc: BaseException) -> bool:
        """Report, once a tap, that its hook raised. Returns True: it should stay off. Never raises."""
        with contextlib.suppress(Exception):
            if tap not in self._faults and len(self._faults) < MAX_FAULTS:
                self._faults.add(tap)
                mono = time.monotonic_ns()
                self._ring.put_aside(("gap", {"of": self.src, "count": None, "reason": "hook_fault"}, mono))
                fact = {"name": "hook.fault", "value": {"tap": tap, "error": sentence(exc)}}
                self._ring.put_aside(("fact", fact, mono))
        return True

    # -- set-up and end ----------------------------------------------------------------------------------------------

    def listen(self, target: str) -> str:
        """Serve `unix:PATH` or write `file:PATH`; %p is the pid of the server."""
        used: str = self._call("listen", target.replace("%p", str(os.getpid())))
        if used and target.startswith("file:"):
            self.watched = True  # at once: the next pass is recorded
            self._wake()
        return used

    def unlisten(self, path: str) -> bool:
        """Finish a file. False when no such file is being written."""
        return bool(self._call("unlisten", path))

    @property
    def counters(self) -> Counters:
        """Of the other process, with what waits here."""
        told: Counters = self._call("counters")
        return told._replace(in_flight=told.in_flight + len(self._ring))

    def drain(self, timeout: float) -> bool:
        """Wait until what was emitted so far is sent and written, for at most `timeout` seconds."""
        until = time.monotonic() + timeout
        while len(self._ring) and time.monotonic() < until and not self._gone.is_set():
            self._wake()
            time.sleep(0.002)
        try:
            return bool(self._call("drain", max(0.0, until - time.monotonic()), seconds=timeout + 0.5))
        except EmitError:
            return False

    def close(self, timeout: float = 2.0) -> None:
        """Hand on what waits, and let the other process end; at most `timeout` seconds and a little."""
        if self._off:
            return
        self._off, self.watched = True, False
        living.discard(self)
        self._wake()
        self._pump.join(timeout)
        with contextlib.suppress(OSError):
            self._writer.send(("close", timeout))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout + 1.0)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _call(self, name: str, *args: Any, seconds: float = START_S) -> Any:
        """A method of the other process's emitter. Raises EmitError where that does, and when nothing answers."""
        if self._off:
            raise EmitError(f"Cannot {name}: the emitter is closed.")
        number, answer = next(self._calls), queue.SimpleQueue[Any]()
        self._answers[number] = answer
        try:
            self._writer.send(("call", number, name, args))
            if self._gone.is_set():
                raise EmitError(f"Cannot {name}: the process that sends records has ended.")
            well, told = answer.get(timeout=seconds)
        except (OSError, queue.Empty):
            raise EmitError(f"Cannot {name}: the process that sends records does not answer.") from None
        finally:
            del self._answers[number]
        if not well:
            raise EmitError(told)
        return told

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"w")

    def after_fork(self) -> None:
        """In a forked child there are no threads, and the pipe is the parent's: become inert."""
        self._off, self.watched = True, False

    # -- threads -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The pump."""
        while not self._gone.is_set():
            closing = self._off
            entries = self._ring.take()
            if entries:
                try:
                    self._hand_on(entries, closing or len(entries) > BURST)
                except OSError:
                    break
            elif closing:
                return
            if not closing:
                self._pause(LOOK_S if self.watched else IDLE_S)
        self.watched = False

    def _hand_on(self, entries: Sequence[Entry | Lost], hurry: bool) -> None:
        """A message for every few of them. hurry: without a pause."""
        slice_end = time.perf_counter() + GIL_SLICE_S
        for start in range(0, len(entries), CHUNK):
            if not hurry and time.perf_counter() > slice_end:
                time.sleep(GIL_OFFER_S)  # a hot thread that waits for the interpreter's lock takes it now
                slice_end = time.perf_counter() + GIL_SLICE_S
            plain = [self._plain(entry) for entry in entries[start : start + CHUNK]]
            try:
                self._writer.send(("entries", plain))
            except OSError:
                raise
            except Exception:
                self._writer.send(("entries", [self._sound(entry) for entry in plain]))

    def _sound(self, plain: tuple[Any, ...]) -> tuple[Any, ...]:
        """The entry, or that it was lost when it cannot be pickled."""
        try:
            pickle.dumps(plain, 5)
            return plain
        except Exception as error:
            self.fault(f"relay {plain[0]}", error)
            count, mono = (plain[1], plain[3]) if plain[0] == "later" else (1, plain[2])
            return ("lost", count, mono, "hook_fault")

    def _plain(self, entry: Entry | Lost) -> tuple[Any, ...]:
        """("lost", count, ns, why), ("later", count, what makes the records, ns) or (type, fields, ns)."""
        if isinstance(entry, Lost):
            return ("lost", entry.count, entry.mono, "ring_full")
        _, fields, mono = entry
        if not isinstance(fields, Later):
            return entry
        self._wrote = fields.wrote
        try:
            if fields.plain is None:
                raise TypeError("records that can only be made here")
            return ("later", fields.count, fields.plain(), mono)
        except Exception as error:
            self.fault("later", error)
            return ("lost", fields.count, mono, "hook_fault")

    def _pause(self, seconds: float) -> None:
        if select.select([self._wake_r], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                os.read(self._wake_r, 4096)

    def _answer(self) -> None:
        """What comes back, until the other process ends."""
        assert self._process.stdout is not None
        reader = Reader(self._process.stdout.fileno())
        while (message := reader.receive()) is not None:
            kind = message[0]
            try:
                if kind == "watched":
                    self.watched = message[1] and not self._off
                    self._wake()
                elif kind == "wrote" and self._wrote is not None:
                    self._wrote(message[1])
                elif kind == "untold":
                    self._writer.send(("texts", message[1], self._texts(message[1])))
                elif kind == "answer" and message[1] in self._answers:
                    self._answers[message[1]].put(message[2:])
                elif kind == "control":
                    self._commands.put(message[1])
            except OSError:
                break
            except Exception as error:
                self.fault("relay", error)
        self._gone.set()
        self.watched = False
        for answer in list(self._answers.values()):
            answer.put((False, "The process that sends records has ended."))

    def _texts(self, ids: list[int]) -> list[str | bytes]:
        if self._token_text is not None:
            try:
                texts = list(self._token_text(ids))
                if len(texts) != len(ids):
                    raise ValueError(f"{len(texts)} texts for {len(ids)} ids")
                return texts
            except Exception as error:
                self._token_text = None
                self.fault("token_text", error)
        return [""] * len(ids)

    def _command(self) -> None:
        """Carries out viewers' commands. Its own thread: one may call the other process, and wait for its answer."""
        while True:
            message = self._commands.get()
            try:
                if self._on_control is not None:
                    self._on_control(message)
            except Exception as error:
                self.fault("control", error)
