"""The emitter: `emit` on hot threads, a writer thread that numbers and sends, a reader thread for viewers' commands.

Parts: ring (hot threads → writer), stream (seq, tokens, gaps), feed (one consumer's books), sockets, files, reader.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ddscope_hooks import __version__
from ddscope_hooks.emit import living
from ddscope_hooks.emit.control import Inbox
from ddscope_hooks.emit.encoder import Body, Encoder, body
from ddscope_hooks.emit.errors import EmitError
from ddscope_hooks.emit.feed import FeedCounters
from ddscope_hooks.emit.files import MAX_BYTES, FileFeed
from ddscope_hooks.emit.keep import Keep
from ddscope_hooks.emit.reader import Reader
from ddscope_hooks.emit.ring import Later, Ring
from ddscope_hooks.emit.sockets import QUEUE_BYTES, Listener, Viewer
from ddscope_hooks.emit.stream import Stream
from ddscope_hooks.emit.tokens import TokenText

ACTIVE_S = 0.004
"""How often the writer looks while records come. A hot thread wakes it only when the ring is half full."""
IDLE_S = 0.025
MAX_FAULTS = 256


class Counters(NamedTuple):
    """emitted = received + dropped, at every moment; what is in flight has no seq yet.

    emitted: seqs given. dropped: of these, lost before any consumer (ring full, not encodable, left out by a tap).
    in_flight: records in the ring. viewers: the books of each consumer that is there now. control, control_refused:
    commands taken, and lines that were none or not wanted.
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
        body: Body = body,
    ) -> None:
        """Raises EmitError when the header cannot be encoded.

        src: source id, `engine/0` for rank 0. header: fields of the `header` record; format, version, host and the like
        are filled in. ring: records that may wait. token_text: text of token ids, called on the writer thread; ids not
        told yet become a `tokens` record before the record that uses them. on_control: called on the reader thread with
        {type, command, args, by}, only with `control`. queue_bytes: bound of each viewer's queue. body: the encoder.
        """
        self.src = src
        self.queue_bytes = queue_bytes
        self._faults: set[str] = set()
        self._ring = Ring(ring, self._wake)
        self._encoder = Encoder(src, body)
        self._keep = Keep()
        self._stream = Stream(self._encoder, self._keep, TokenText(token_text, self.fault), self.fault, self.emit)
        self._inbox = Inbox(on_control if control else None, self.fault)
        self._off = False
        self._closing = False
        self._deadline = float("inf")
        self._setup = threading.Lock()
        self._joined = 0
        self._writer: threading.Thread | None = None
        try:
            line = self._stream.begin(_header(header))
        except (TypeError, ValueError, RecursionError) as error:
            raise EmitError(f"The header cannot be encoded: {error}.") from None
        self._header_hash = hashlib.sha256(line.rstrip(b"\n")).hexdigest()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._reader = Reader(self._inbox, self._join)
        living.add(self)

    # -- hot threads -------------------------------------------------------------------------------------------------

    def emit(self, type: str, fields: Mapping[str, Any]) -> None:
        """Stamp and append; never waits, never raises. What `fields` refers to must not change afterwards."""
        if self._off:
            return
        try:
            self._ring.put((type, dict(fields), time.monotonic_ns()))
        except Exception as error:
            self.fault("emit", error)

    def emit_later(self, later: Later) -> None:
        """Stamp and append records that are made on the writer thread; never waits, never raises.

        They count as `later.count` records whatever becomes of them: fewer, or an exception, is a counted loss.
        """
        if self._off:
            return
        try:
            self._ring.put(("later", later, time.monotonic_ns()))
        except Exception as error:
            self.fault("emit", error)

    def put(self, type: str, fields: dict[str, Any] | Later, mono: int) -> None:
        """Append what was stamped before (monotonic ns), such as in another process of this host."""
        if not self._off:
            self._ring.put((type, fields, mono))

    def fault(self, tap: str, exc: BaseException) -> bool:
        """Report, once a tap, that its hook raised: a gap (`hook_fault`, count unknown) and the fact `hook.fault`.

        Returns True: the tap should stay off. Never raises.
        """
        try:
            if self._off or tap in self._faults or len(self._faults) >= MAX_FAULTS:
                return True
            self._faults.add(tap)
            mono = time.monotonic_ns()
            # Not through the ring: a full one must not swallow the report.
            self._ring.put_aside(("gap", {"of": self.src, "count": None, "reason": "hook_fault"}, mono))
            fact = {"name": "hook.fault", "value": {"tap": tap, "error": sentence(exc)}}
            self._ring.put_aside(("fact", fact, mono))
        except Exception:  # nothing may come of a report that fails, least of all in the server's own path
            pass
        return True

    # -- set-up and end ----------------------------------------------------------------------------------------------

    def listen(self, target: str, *, max_bytes: int = MAX_BYTES) -> str:
        """Serve `unix:PATH` or write `file:PATH` (%p: the pid); several are allowed. Returns the path in use.

        max_bytes: bound of a file. An existing file stays as it is: the recording gets a name beside it. Raises
        EmitError when the target cannot be used.
        """
        scheme, _, path = target.partition(":")
        path = path.replace("%p", str(os.getpid()))
        if scheme not in ("unix", "file") or not path:
            raise EmitError(f"Cannot emit to {target!r}: it must be unix:PATH or file:PATH.")
        with self._setup:
            if self._off:
                raise EmitError(f"Cannot emit to {target!r}: the emitter is closed.")
            if scheme == "unix":
                listener = Listener(path)
                self._reader.add(listener)
                used = listener.path
            else:
                feed = FileFeed(path, self._encoder, self._keep, max_bytes=max_bytes)
                self._stream.join(feed)
                used = feed.path
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="ddscope-emit-writer", daemon=True)
                self._writer.start()
        self._wake()
        return used

    @property
    def watched(self) -> bool:
        """Whether any viewer or file is there to take records. Cheap, without a lock: for hot threads."""
        return self._stream.watched

    @property
    def waiting(self) -> int:
        """Records that wait in the ring. Cheap, without a lock."""
        return len(self._ring)

    def drain(self, timeout: float) -> bool:
        """Wait until what was emitted so far is sent and written, for at most `timeout` seconds.

        Only for a process that is about to end: the one call that waits. False when the time was over before.
        """
        until = time.monotonic() + timeout
        emitted = self._stream.seq + len(self._ring)
        while time.monotonic() < until:
            if self._writer is None or self._off:
                return False
            self._wake()
            if not len(self._ring) and self._stream.seq >= emitted and self._stream.sent():
                return True
            time.sleep(0.005)
        return False

    def unlisten(self, path: str) -> bool:
        """Finish the file that `listen` said it uses: footer, close. False when no such file is being written."""
        return self._stream.leave(os.path.abspath(path))

    @property
    def counters(self) -> Counters:
        """A coherent snapshot; see `Counters`."""
        emitted, dropped, feeds = self._stream.counters()
        waiting = len(self._ring)
        return Counters(emitted, emitted - dropped, dropped, waiting, feeds, self._inbox.taken, self._inbox.refused)

    def close(self, timeout: float = 2.0) -> None:
        """Send and write what waits, for at most `timeout` seconds, then end. Later calls of anything do nothing."""
        with self._setup:
            if self._off:
                return
            self._off = True
        living.discard(self)
        self._deadline = time.monotonic() + timeout
        self._closing = True
        self._wake()
        me = threading.current_thread()
        if self._writer is not None and self._writer is not me:
            self._writer.join(timeout + 1.0)
        self._reader.stop(1.0)
        if self._writer is None or not self._writer.is_alive():
            self._close_pipe()

    def _join(self, sock: socket.socket, hello: dict[str, Any] | None) -> Viewer:
        """A viewer of the connection; one that was here before goes on where it was. On the reader thread."""
        self._joined += 1
        owed = 0
        if hello is not None and hello["header"] == self._header_hash and -1 <= hello["seq"] < self._stream.seq:
            owed = hello["seq"] + 1
        viewer = Viewer(
            f"viewer {self._joined}",
            sock,
            self._encoder,
            self._keep,
            limit=self.queue_bytes,
            owed=owed,
            reason="disconnected" if owed else "joined_late",
        )
        if owed:
            viewer.greet()
        self._stream.join(viewer)
        self._wake()
        return viewer

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"w")

    def _close_pipe(self) -> None:
        wake_r, wake_w, self._wake_r, self._wake_w = self._wake_r, self._wake_w, -1, -1
        for fd in (wake_r, wake_w):
            with contextlib.suppress(OSError):
                os.close(fd)

    def after_fork(self) -> None:
        """In a child there are no threads, and the sockets are the parent's: become inert, let go, unlink nothing."""
        self._off = True
        self._writer = None
        self._setup = threading.Lock()
        self._reader.after_fork()
        self._stream.after_fork()
        self._close_pipe()

    # -- writer thread -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while True:
            closing = self._closing  # read before the ring is taken: what was put before `close` is still taken
            try:
                entries = self._ring.take()
                self._stream.run(entries, hurry=closing)
                waiting = self._stream.flush()
            except Exception as error:  # a mistake in here must not end the stream
                self.fault("writer", error)
                entries, waiting = [], []
                time.sleep(IDLE_S)
            if closing and ((not waiting and not entries) or time.monotonic() > self._deadline):
                break
            sockets = [feed.fileno() for feed in waiting if isinstance(feed, Viewer)]
            self._pause(ACTIVE_S if entries else IDLE_S, sockets)
        self._stream.end()

    def _pause(self, seconds: float, sockets: list[int]) -> None:
        """Wait until something may be done: a socket takes more, the ring is half full, or the time is over."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):
            poll.register(self._wake_r, select.POLLIN)
            for fd in sockets:
                if fd >= 0:
                    poll.register(fd, select.POLLOUT)
            for fd, _ in poll.poll(seconds * 1000):
                if fd == self._wake_r:
                    os.read(fd, 4096)


def _header(given: Mapping[str, Any]) -> dict[str, Any]:
    """The header's fields: what every header has, and what the caller says."""
    fields: dict[str, Any] = {
        "format": "ddscope-trace",
        "version": "1.0",
        "min_reader": "1.0",
        "producer": {"name": "ddscope_hooks", "version": __version__},
        "host": socket.gethostname(),
    }
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        fields["boot_id"] = file.read().strip()
    return {**fields, **given}


def sentence(exc: BaseException) -> str:
    """What went wrong and where, in one line."""
    where = ""
    trace = exc.__traceback__
    while trace is not None:
        where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(exc).__name__}: {exc}"[:500] + where
