"""The viewer's side of an engine's unix socket: connects, reconnects, reads lines, sends commands. One thread.

What the lines mean is `intake`'s business; where they go is the sink's.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ddscope.sources.errors import SourceError
from ddscope.sources.intake import Intake, Names
from ddscope.sources.trust import check_peer, check_socket, trusted

READ = 1 << 20
BACKOFF_S = (0.05, 2.0)
SEND_TIMEOUT_S = 2.0
MAX_PENDING = 1000
State = Literal["connecting", "connected", "lost"]


class SocketCounters(NamedTuple):
    """bytes: read from the socket. received, dropped, repeated, malformed: see `Intake`. connections: those over
    which something came so far."""

    bytes: int
    received: int
    dropped: int
    repeated: int
    malformed: int
    connections: int


class SocketSource:
    """Records of one engine. `state`: connecting (not connected yet), connected or lost; `reason`: why, in a sentence.

    Connected is an engine that has said something on this connection, as every emitter does at once: its header, or
    the answer to a hello.

    path: the engine's socket. sink: gets batches of whole encoded lines, on this source's thread. uid: whose engine is
    trusted; by default this user's (and root's). names: shared by the sockets of a session. lost_at: monotonic time in
    seconds at which the connection was lost, None while it stands or was never made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sink: Callable[[bytes], object],
        *,
        uid: int | None = None,
        names: Names | None = None,
    ) -> None:
        self.path = Path(path)
        self.state: State = "connecting"
        self.reason = f"Waiting for {self.path}."
        self._sink = sink
        self.lost_at: float | None = None
        self._uids = trusted(uid)
        self._intake = Intake(names)
        self._bytes = 0
        self._connections = 0
        self._sock: socket.socket | None = None
        self._sending = threading.Lock()
        self._pending: deque[bytes] = deque()
        self._stop_r, self._stop_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def counters(self) -> SocketCounters:
        """What came so far."""
        i = self._intake
        return SocketCounters(self._bytes, i.received, i.dropped, i.repeated, i.malformed, self._connections)

    def start(self) -> None:
        """Connect, and keep connected, in the background."""
        self._thread = threading.Thread(target=self._run, name=f"source {self.path.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Disconnect and end the thread. What the sink got last is all it gets."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            os.write(self._stop_w, b"s")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for fd in (self._stop_r, self._stop_w):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._stop_r = self._stop_w = -1

    def send(self, command: str, args: dict[str, Any], by: str = "viewer") -> None:
        """Give the engine a command, at the latest when it is first connected. Raises SourceError when it is lost."""
        line = msgspec.json.encode({"type": "control", "command": command, "args": args, "by": by}) + b"\n"
        with self._sending:
            if self._sock is not None:
                self._send(self._sock, line)
            elif self.state == "connecting" and len(self._pending) < MAX_PENDING and not self._stopped.is_set():
                self._pending.append(line)
            else:
                raise SourceError(f"`{command}` was not sent: the engine is not connected. {self.reason}")

    def _send(self, sock: socket.socket, data: bytes) -> None:
        try:
            sock.sendall(data)
        except OSError as e:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # half a line may be out; the reading side reconnects
            raise SourceError(f"The engine at {self.path} took no command: {e.strerror or e}.") from None

    def _run(self) -> None:
        wait = BACKOFF_S[0]
        while not self._stopped.is_set():
            try:
                sock = self._connect()
            except (OSError, SourceError) as e:
                self.reason = str(e) if isinstance(e, SourceError) else f"No engine at {self.path}: {e.strerror or e}."
                self._stopped.wait(wait)
                wait = min(wait * 2, BACKOFF_S[1])
                continue
            before = self._bytes
            try:
                self._serve(sock)
            except OSError as e:
                self._lost(f"The connection to {self.path} broke: {e.strerror or e}.")
            except Exception as e:  # the sink could not take it: nothing can be done here but say so and stop reading
                self._lost(f"Records of {self.path} cannot be kept: {e}")
                return
            finally:
                with self._sending:
                    self._sock = None
                sock.close()
            if self._bytes > before:
                wait = BACKOFF_S[0]
            else:  # a forwarded socket takes connections also when nobody is at its other end
                self._stopped.wait(wait)
                wait = min(wait * 2, BACKOFF_S[1])

    def _connect(self) -> socket.socket:
        check_socket(self.path, self._uids)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(SEND_TIMEOUT_S)
            sock.connect(os.fspath(self.path))
            check_peer(sock, self.path, self._uids)
            sock.sendall(msgspec.json.encode(self._intake.hello()) + b"\n")
        except BaseException:
            sock.close()
            raise
        return sock

    def _serve(self, sock: socket.socket) -> None:
        with self._sending:
            self._sock = sock
            while self._pending:
                self._send(sock, self._pending.popleft())
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._stop_r, select.POLLIN)
        rest, heard = b"", False
        self.reason = f"{self.path} took the connection and has said nothing yet."
        while not self._stopped.is_set():
            if all(fd != sock.fileno() for fd, _ in poll.poll()):
                continue  # woken to stop: a socket with a timeout waits for it even when asked not to
            try:
                data = sock.recv(READ, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                continue
            if not data:
                self._lost(f"The engine at {self.path} closed the connection.")
                return
            if not heard:  # only now: a forwarded socket takes connections also when nobody is at its other end
                heard = True
                self._connections += 1
                self.state, self.reason, self.lost_at = "connected", "", None
            self._bytes += len(data)
            *lines, rest = (rest + data).split(b"\n")
            batch = self._intake.take(lines)
            if batch:
                self._sink(batch)

    def _lost(self, reason: str) -> None:
        if self.state != "lost":  # nobody at the other end of a forwarded socket loses nothing anew
            self.lost_at = time.monotonic()
        self.state, self.reason = "lost", reason
