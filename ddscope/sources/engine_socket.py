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
from typing import Any, NamedTuple

import msgspec

from ddscope.sources.errors import SourceError
from ddscope.sources.intake import Intake, Names
from ddscope.sources.threaded import Backoff, Woken
from ddscope.sources.trust import check_peer, check_socket, trusted

READ = 1 << 20
BACKOFF_S = (0.05, 2.0)
SEND_TIMEOUT_S = 2.0
MAX_PENDING = 1000


class SocketCounters(NamedTuple):
    """bytes: read from the socket. received, dropped, repeated, malformed: see `Intake`. connections: those over
    which something came so far."""

    bytes: int
    received: int
    dropped: int
    repeated: int
    malformed: int
    connections: int


class SocketSource(Woken):
    """Records of one engine.

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
        super().__init__(self.path.name, f"Records of {self.path}", f"Waiting for {self.path}.")
        self._sink = sink
        self.lost_at: float | None = None
        self._uids = trusted(uid)
        self._intake = Intake(names)
        self._bytes = 0
        self._connections = 0
        self._sock: socket.socket | None = None
        self._sending = threading.Lock()
        self._pending: deque[bytes] = deque()

    @property
    def counters(self) -> SocketCounters:
        """What came so far."""
        i = self._intake
        return SocketCounters(self._bytes, i.received, i.dropped, i.repeated, i.malformed, self._connections)

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

    def _work(self) -> None:
        backoff = Backoff(*BACKOFF_S)
        while not self._stopped.is_set():
            before = self._bytes
            try:
                sock = self._connect()
            except (OSError, SourceError) as e:
                self.reason = str(e) if isinstance(e, SourceError) else f"No engine at {self.path}: {e.strerror or e}."
            else:
                try:
                    self._serve(sock)
                except SourceError as e:  # what was waiting could not be sent
                    self._lose(str(e))
                except OSError as e:
                    self._lose(f"The connection to {self.path} broke: {e.strerror or e}.")
                finally:
                    with self._sending:
                        self._sock = None
                    sock.close()
            # A forwarded socket takes connections also when nobody is at its other end: that is a try in vain, too.
            self._stopped.wait(backoff.after(self._bytes > before))

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
                self._send(sock, self._pending[0])
                self._pending.popleft()  # what could not be sent waits for the next connection
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
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
                self._lose(f"The engine at {self.path} closed the connection.")
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

    def _lose(self, reason: str) -> None:
        if self.state != "lost":  # nobody at the other end of a forwarded socket loses nothing anew
            self.lost_at = time.monotonic()
        super()._lose(reason)
