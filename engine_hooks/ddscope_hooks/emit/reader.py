"""The reader thread: takes new viewers, reads their control lines, closes those who left.

Only this thread closes a viewer's socket; the writer merely shuts it down, which wakes this one.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from socket import socket

from ddscope_hooks.emit.control import Inbox, Lines
from ddscope_hooks.emit.sockets import Listener, Viewer

READ = 64 << 10


class Reader:
    """Owns the listening sockets and the reading side of every viewer."""

    def __init__(self, inbox: Inbox, join: Callable[[socket], Viewer]) -> None:
        self._inbox = inbox
        self._join = join
        self._listeners: dict[int, Listener] = {}
        self._viewers: dict[int, tuple[Viewer, Lines]] = {}
        self._poll = select.poll()
        self._stop_r, self._stop_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._stop_r, select.POLLIN)
        self._stopped = False
        self._thread: threading.Thread | None = None

    def add(self, listener: Listener) -> None:
        """Serve one more socket; starts the thread with the first."""
        fd = listener.sock.fileno()
        self._listeners[fd] = listener
        self._poll.register(fd, select.POLLIN)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddscope-emit-reader", daemon=True)
            self._thread.start()
        else:
            os.write(self._stop_w, b"n")  # a poll in progress does not see what was registered meanwhile

    def stop(self, timeout: float) -> None:
        """Close everything and end the thread."""
        self._stopped = True
        with contextlib.suppress(OSError):
            os.write(self._stop_w, b"s")
        if self._thread is None:
            self._close()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def after_fork(self) -> None:
        """In a child: let go of the parent's sockets, unlink nothing."""
        for listener in self._listeners.values():
            listener.sock.close()
        for viewer, _ in self._viewers.values():
            viewer.sock.close()
        os.close(self._stop_r)
        os.close(self._stop_w)

    def _run(self) -> None:
        while not self._stopped:
            for fd, _ in self._poll.poll():
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._viewers:
                    self._read(fd)
                else:
                    with contextlib.suppress(OSError):
                        os.read(self._stop_r, 4096)
        self._close()

    def _accept(self, listener: Listener) -> None:
        sock = listener.accept()
        if sock is not None:
            viewer = self._join(sock)
            self._viewers[sock.fileno()] = (viewer, Lines())
            self._poll.register(sock.fileno(), select.POLLIN)

    def _read(self, fd: int) -> None:
        viewer, lines = self._viewers[fd]
        try:
            data = viewer.sock.recv(READ)
            complete = lines.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError):
            data, complete = b"", []
        for line in complete:
            self._inbox.line(line)
        if not data:
            self._poll.unregister(fd)
            del self._viewers[fd]
            viewer.close()

    def _close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        for viewer, _ in self._viewers.values():
            viewer.close()
        self._viewers.clear()
        os.close(self._stop_r)
        os.close(self._stop_w)
