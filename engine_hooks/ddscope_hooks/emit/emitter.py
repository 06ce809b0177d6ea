"""The emitter: `emit` on hot threads, one writer thread that numbers, encodes and fans out, one reader thread for control.

Records get their seq when the writer takes them off the ring. Parts: ring, encoder, keep, feed (books), sockets, files.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ddscope_hooks import __version__
from ddscope_hooks.emit.control import Inbox
from ddscope_hooks.emit.encoder import Encoder
from ddscope_hooks.emit.errors import EmitError
from ddscope_hooks.emit.feed import Feed, FeedCounters
from ddscope_hooks.emit.files import MAX_BYTES, FileFeed
from ddscope_hooks.emit.keep import KEPT, Keep
from ddscope_hooks.emit.reader import Reader
from ddscope_hooks.emit.ring import Entry, Lost, Ring
from ddscope_hooks.emit.sockets import QUEUE_BYTES, Listener, Viewer
from ddscope_hooks.emit.tokens import TokenText

ACTIVE_S = 0.004  # how often the writer looks while records come; hot threads never wake it but for a half-full ring
IDLE_S = 0.025
GIL_SLICE_S = 100e-6  # the writer offers the GIL after this much work, so a hot thread waits no longer for it
MAX_FAULTS = 256


class Counters(NamedTuple):
    """emitted = received + dropped; what is in flight has no seq yet.

    emitted: seqs given. dropped: of these, lost before any viewer (ring full, not encodable). in_flight: records in the ring.
    viewers: the books of each consumer; of closed ones only those still being closed.
    """

    emitted: int
    received: int
    dropped: int
    in_flight: int
    viewers: tuple[FeedCounters, ...]
    control: int
    control_refused: int


class Emitter:
    """One source of records. Threads start with the first `listen`; records emitted before wait in the ring."""

    def __init__(
        self,
        src: str,
        header: Mapping[str, Any],
        *,
        ring: int = 8192,
        token_text: Callable[[Sequence[int]], Sequence[str | bytes]] | None = None,
        on_control: Callable[[dict[str, Any]], None] | None = None,
        control: bool = False,
        queue_bytes: int = QUEUE_BYTES,
        encoder: Encoder | None = None,
    ) -> None:
        """src: source id, `engine/0` for rank 0. header: fields of the `header` record; format, version, host and the like
        are filled in. ring: records that may wait. token_text: text of token ids, called on the writer thread; ids not yet
        told become a `tokens` record before the record that uses them. on_control: called on the reader thread with
        {type, command, args, by}; nothing is read from viewers unless `control`. queue_bytes: bound of a viewer's queue.
        Raises EmitError when the header cannot be encoded."""
        self.src = src
        self.queue_bytes = queue_bytes
        self._encoder = encoder or Encoder(src)
        self._keep = Keep()
        self._tokens = TokenText(token_text, self.fault)
        self._inbox = Inbox(on_control if control else None, self.fault)
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ring = Ring(ring, self._wake)
        self._books = threading.Lock()
        self._seq = 0
        self._dropped = 0
        self._feeds: list[Feed] = []
        self._joining: deque[Feed] = deque()
        self._faults: set[str] = set()
        self._off = False
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._viewers = 0
        self._setup = threading.Lock()
        self._writer: threading.Thread | None = None
        self._reader = Reader(self._inbox, self._join)
        try:
            self._record("header", _header(header), time.time_ns() // 1000, time.monotonic_ns() // 1000)
        except (TypeError, ValueError, RecursionError) as e:
            raise EmitError(f"the header cannot be encoded: {e}") from None
        _live.add(self)

    # -- hot threads -------------------------------------------------------------------------------------------------

    def emit(self, type: str, fields: Mapping[str, Any]) -> None:
        """Stamp and append; never waits, never raises. The values of `fields` must not be changed afterwards."""
        if self._off:
            return
        try:
            self._ring.put((type, dict(fields), time.time_ns(), time.monotonic_ns()))
        except Exception as e:
            self.fault("emit", e)

    def fault(self, tap: str, exc: BaseException) -> bool:
        """Report, once a tap, that its hook raised: a gap (hook_fault, count unknown) and the fact `hook.fault`.
        True: the tap should stay off. Never raises."""
        try:
            if tap in self._faults or len(self._faults) >= MAX_FAULTS:
                return True
            self._faults.add(tap)
            fact = {"name": "hook.fault", "value": {"tap": tap, "error": _sentence(exc)}}
            now = (time.time_ns(), time.monotonic_ns())
            # Past the ring: a full one must not swallow the report.
            self._ring.put_aside(("gap", {"of": self.src, "count": None, "reason": "hook_fault"}, *now))
            self._ring.put_aside(("fact", fact, *now))
        except Exception:
            pass
        return True

    # -- set-up and end ----------------------------------------------------------------------------------------------

    def listen(self, target: str, *, max_bytes: int = MAX_BYTES) -> str:
        """Serve `unix:PATH` or write `file:PATH`; %p in the path is the pid. Several may be given. max_bytes bounds a file.
        Returns the path in use. Raises EmitError."""
        scheme, _, path = target.partition(":")
        path = path.replace("%p", str(os.getpid()))
        if scheme not in ("unix", "file") or not path:
            raise EmitError(f"cannot emit to {target!r}: it must be unix:PATH or file:PATH")
        if self._off:
            raise EmitError("the emitter is closed")
        with self._setup:
            if scheme == "unix":
                listener = Listener(path)
                self._reader.add(listener)
                used = listener.path
            else:
                feed = FileFeed(path, self._encoder, self._keep, max_bytes=max_bytes)
                self._joining.append(feed)
                used = feed.path
            self._start()
        self._wake()
        return used

    @property
    def counters(self) -> Counters:
        """A coherent snapshot."""
        with self._books:
            feeds = tuple(f.counters(self._seq) for f in self._feeds)
            emitted, dropped = self._seq, self._dropped
            waiting = len(self._ring)
        return Counters(emitted, emitted - dropped, dropped, waiting, feeds, self._inbox.taken, self._inbox.refused)

    def close(self, timeout: float = 2.0) -> None:
        """Write and send what is waiting, for at most `timeout` seconds, then end the threads. May be called again."""
        with self._setup:
            if self._off:
                return
            self._off = True
        _live.discard(self)
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._wake()
        if self._writer is not None and self._writer is not threading.current_thread():
            self._writer.join(timeout + 1.0)
        self._reader.stop(1.0)
        if self._writer is None or not self._writer.is_alive():
            self._close_pipe()

    def _start(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="ddscope-emit-writer", daemon=True)
            self._writer.start()

    def _join(self, sock: socket.socket) -> Viewer:
        self._viewers += 1
        viewer = Viewer(f"viewer {self._viewers}", sock, self._encoder, self._keep, limit=self.queue_bytes)
        self._joining.append(viewer)
        self._wake()
        return viewer

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"w")

    def _close_pipe(self) -> None:
        for fd in (self._wake_r, self._wake_w):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _after_fork(self) -> None:
        """In a child: no threads exist, the sockets are the parent's. Become inert and let go of them, unlink nothing."""
        self._off = True
        self._writer = None
        self._books = threading.Lock()
        self._setup = threading.Lock()
        with contextlib.suppress(OSError):
            self._reader.after_fork()
        self._close_pipe()
        for feed in (*self._feeds, *self._joining):
            if isinstance(feed, FileFeed):
                feed.close()
        self._feeds = []

    # -- writer thread -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        blocked: set[int] = set()
        wait = 0.0
        while True:
            with contextlib.suppress(OSError):
                poll.poll(wait * 1000)
            with contextlib.suppress(OSError):
                os.read(self._wake_r, 4096)
            for fd in blocked:
                with contextlib.suppress(KeyError):
                    poll.unregister(fd)
            closing = self._closing.is_set()
            busy = self._cycle()
            blocked = self._flush()
            for fd in blocked:
                poll.register(fd, select.POLLOUT)
            wait = ACTIVE_S if busy else IDLE_S
            if closing and ((not blocked and not busy) or time.monotonic() > self._deadline):
                break
        self._end()

    def _cycle(self) -> bool:
        """Take all that waits in the ring and give it to the feeds. True when there was something."""
        while self._joining:
            with self._books:
                self._feeds.append(self._joining.popleft())
        entries = self._ring.take()
        slice_end = time.perf_counter() + GIL_SLICE_S
        for entry in entries:
            with self._books:
                self._entry(entry)
            if time.perf_counter() > slice_end:
                time.sleep(0)
                slice_end = time.perf_counter() + GIL_SLICE_S
        return bool(entries)

    def _flush(self) -> set[int]:
        """Tell what is owed, send what is queued, forget the dead. Returns the sockets that would block."""
        blocked: set[int] = set()
        t, mono = time.time_ns() // 1000, time.monotonic_ns() // 1000
        with self._books:
            for feed in self._feeds:
                feed.settle(self._seq, t, mono)
                if not feed.flush() and isinstance(feed, Viewer):
                    blocked.add(feed.fileno())
            self._feeds = [f for f in self._feeds if not f.dead]
        blocked.discard(-1)
        return blocked

    def _entry(self, entry: Entry | Lost) -> None:
        if isinstance(entry, Lost):
            self._missing(entry.count, "ring_full", entry.t // 1000, entry.mono // 1000)
            return
        type, fields, t, mono = entry[0], entry[1], entry[2] // 1000, entry[3] // 1000
        if not self._feeds and type not in KEPT:
            self._seq += 1  # nobody watches: whoever comes finds it under `joined_late`
            return
        try:
            if type == "gap" and fields.get("of", self.src) == self.src and fields.get("count") is not None:
                self._missing(max(1, int(fields["count"])), str(fields.get("reason", "rate_limited")), t, mono)
                return
            told = self._tokens.untold(type, fields)
            if told is not None:
                self._record("tokens", told, t, mono)
            self._record(type, fields, t, mono)
        except Exception as e:  # one record that cannot be encoded is a counted loss of one, in its place
            self._missing(1, "hook_fault", t, mono)
            self.fault(f"encode {type}", e)

    def _record(self, type: str, fields: dict[str, Any], t: int, mono: int) -> None:
        seq = self._seq
        line = self._encoder.line(type, seq, t, mono, fields)
        self._seq = seq + 1
        self._keep.note(type, fields, seq, line)
        for feed in self._feeds:
            feed.offer(seq, seq, line, False, t, mono)

    def _missing(self, count: int, reason: str, t: int, mono: int) -> None:
        first, last = self._seq, self._seq + count - 1
        self._seq = last + 1
        self._dropped += count
        line = self._encoder.gap(last, t, mono, count, reason)
        for feed in self._feeds:
            feed.offer(first, last, line, True, t, mono)

    def _end(self) -> None:
        t, mono = time.time_ns() // 1000, time.monotonic_ns() // 1000
        with self._books:
            for feed in self._feeds:
                if isinstance(feed, FileFeed):
                    feed.finish(self._seq, t, mono)
                    feed.close()


def _header(given: Mapping[str, Any]) -> dict[str, Any]:
    """The header's fields: what every header has, and what the caller says."""
    fields: dict[str, Any] = {
        "format": "ddscope-trace",
        "version": "1.0",
        "min_reader": "1.0",
        "producer": {"name": "ddscope_hooks", "version": __version__},
        "host": socket.gethostname(),
    }
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        fields["boot_id"] = f.read().strip()
    return {**fields, **given}


def _sentence(exc: BaseException) -> str:
    """What went wrong and where, in one line."""
    where = ""
    tb = exc.__traceback__
    while tb is not None:
        where = f" ({os.path.basename(tb.tb_frame.f_code.co_filename)}:{tb.tb_lineno})"
        tb = tb.tb_next
    return f"{type(exc).__name__}: {exc}"[:500] + where


_live: weakref.WeakSet[Emitter] = weakref.WeakSet()


def _fork_child() -> None:
    for emitter in list(_live):
        emitter._after_fork()
    _live.clear()


def _at_exit() -> None:
    for emitter in list(_live):
        emitter.close()


os.register_at_fork(after_in_child=_fork_child)
atexit.register(_at_exit)
