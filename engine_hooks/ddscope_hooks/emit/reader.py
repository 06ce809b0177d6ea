"""The reader thread: takes new viewers, reads their lines, closes those who left.

Only this thread closes a viewer's socket; the writer merely shuts it down, which wakes this one.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ddscope_hooks.emit.control import Inbox, Lines, parse_hello
from ddscope_hooks.emit.sockets import Listener, Viewer

READ = 64 << 10
HELLO_S = 0.05
"""How long a newcomer may take to say where it left off, before it is served from the beginning."""
MAX_PEERS = 64


class _Peer:
    """One connection; a viewer once it has said hello or was silent for `HELLO_S`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = Lines()
        self.viewer: Viewer | None = None
        self.until = time.monotonic() + HELLO_S


class Reader:
    """Owns the listening sockets and the reading side of every viewer.

    join: makes a viewer of a socket and the hello it said (None: it said none).
    """

    def __init__(self, inbox: Inbox, join: Callable[[socket.socket, dict[str, Any] | None], Viewer]) -> None:
        self._inbox = inbox
        self._join = join
        self._listeners: dict[int, Listener] = {}
        self._peers: dict[int, _Peer] = {}
        self._poll = select.poll()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake_r, select.POLLIN)
        self._stopped = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, listener: Listener) -> None:
        """Serve one more socket; the first starts the thread."""
        fd = listener.sock.fileno()
        self._listeners[fd] = listener
        self._poll.register(fd, select.POLLIN)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddscope-emit-reader", daemon=True)
            self._thread.start()
        else:
            self._wake()  # a poll in progress does not see what is registered meanwhile

    def stop(self, timeout: float) -> None:
        """Close everything and end the thread."""
        self._stopped = True
        if self._thread is None:
            self._close()
            return
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def after_fork(self) -> None:
        """In a child: let go of the parent's sockets, unlink nothing."""
        for listener in self._listeners.values():
            listener.sock.close()
        for peer in self._peers.values():
            peer.sock.close()
        self._close_pipe()

    def _run(self) -> None:
        while not self._stopped:
            for fd, event in self._poll.poll(self._patience_ms()):
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._peers:
                    self._read(fd, self._peers[fd], event)
                else:
                    with contextlib.suppress(OSError):
                        os.read(self._wake_r, 4096)
            for peer in list(self._peers.values()):
                if peer.viewer is None and time.monotonic() >= peer.until:
                    peer.viewer = self._join(peer.sock, None)
        self._close()

    def _patience_ms(self) -> float | None:
        waiting = [peer.until for peer in self._peers.values() if peer.viewer is None]
        return max(0.0, min(waiting) - time.monotonic()) * 1000 + 1 if waiting else None

    def _accept(self, listener: Listener) -> None:
        sock = listener.accept()
        if sock is None:
            return
        if len(self._peers) >= MAX_PEERS:
            sock.close()
            return
        self._peers[sock.fileno()] = _Peer(sock)
        self._poll.register(sock.fileno(), select.POLLIN)

    def _read(self, fd: int, peer: _Peer, event: int) -> None:
        try:
            data = peer.sock.recv(READ)
            lines = peer.lines.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError):  # broken, or a line without an end
            self._drop(fd, peer)
            return
        for line in lines:
            self._line(peer, line)
        if not data:
            if event & (select.POLLHUP | select.POLLERR):
                self._drop(fd, peer)
            else:
                self._poll.modify(fd, 0)  # it says no more but may go on listening; only its end is told from now on

    def _line(self, peer: _Peer, line: bytes) -> None:
        hello = parse_hello(line)
        if peer.viewer is None:
            peer.viewer = self._join(peer.sock, hello)
        if hello is None:  # one that comes too late is no command either
            self._inbox.line(line)

    def _drop(self, fd: int, peer: _Peer) -> None:
        self._poll.unregister(fd)
        del self._peers[fd]
        if peer.viewer is not None:
            peer.viewer.close()
        else:
            peer.sock.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"w")

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for listener in self._listeners.values():
            listener.close()
        for fd, peer in list(self._peers.items()):
            self._drop(fd, peer)
        self._close_pipe()

    def _close_pipe(self) -> None:
        for fd in (self._wake_r, self._wake_w):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._wake_r = self._wake_w = -1
