"""Unix sockets: taking a path safely, checking who is on the other side, and the feed of one connected viewer.

TCP is not offered: the stream holds prompts, and a unix socket of mode 0600 says who may read them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import threading
import time
from collections import deque

from ddscope_hooks.emit.encoder import Encoder
from ddscope_hooks.emit.errors import EmitError
from ddscope_hooks.emit.feed import Feed
from ddscope_hooks.emit.folders import private_folder
from ddscope_hooks.emit.keep import Keep

MAX_PATH = 107  # bytes of sun_path, without the closing zero
QUEUE_BYTES = 8 << 20
CHUNK = 256 << 10


def peer_uid(sock: socket.socket) -> int:
    """User id of the process at the other end, as the kernel saw it when the socket was connected."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", data)[1]
    return uid


class Listener:
    """A listening unix socket at `path`, mode 0600, in a folder made 0700 when it is missing."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        if len(os.fsencode(self.path)) > MAX_PATH:
            raise EmitError(f"{self.path} is too long for a unix socket ({MAX_PATH} bytes): take a shorter folder.")
        folder = os.path.dirname(self.path)
        private_folder(folder)
        try:
            with _locked(folder):
                self._take_path()
                self.sock = self._bind(folder)
        except OSError as e:
            raise EmitError(f"Cannot listen on {self.path}: {e.strerror or e}.") from None
        self._inode = os.lstat(self.path).st_ino

    def accept(self) -> socket.socket | None:
        """The next viewer of this user (or root), non-blocking; None when there is none or it is a stranger."""
        try:
            sock, _ = self.sock.accept()
        except OSError:
            return None
        try:
            sock.setblocking(False)
            if peer_uid(sock) in (os.geteuid(), 0):
                return sock
        except OSError:
            pass
        sock.close()
        return None

    def close(self) -> None:
        """Stop listening, and remove the path when it is still ours."""
        with contextlib.suppress(OSError):
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self.sock.close()

    def _take_path(self) -> None:
        try:
            info = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(info.st_mode):
            raise EmitError(f"{self.path} exists and is not a socket: remove it or take another path.")
        if info.st_uid != os.geteuid():
            raise EmitError(f"{self.path} belongs to user id {info.st_uid}, not {os.geteuid()}: take another path.")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            answer = probe.connect_ex(self.path)
        # EAGAIN: somebody listens and has too many callers waiting. Only a refusal proves that nobody is there.
        if answer != errno.ECONNREFUSED:
            raise EmitError(f"A running process listens on {self.path}: stop it, or put %p (the pid) into the name.")

    def _bind(self, folder: str) -> socket.socket:
        # Bound under another name and renamed when its mode is right: nobody can connect before `listen`, and whoever
        # finds the path finds a socket that is ready. The umask is the whole process's, so it is left alone.
        sock = socket.socket(socket.AF_UNIX)
        draft = os.path.join(folder, f".{os.getpid()}.{threading.get_native_id()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                sock.bind(f"/proc/self/fd/{here}/{os.path.basename(draft)}" if len(draft) > MAX_PATH else draft)
            finally:
                os.close(here)
            os.chmod(draft, 0o600)
            sock.listen(16)
            os.rename(draft, self.path)
        except BaseException:
            sock.close()
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        sock.setblocking(False)
        return sock


class _locked:
    """The folder, locked while a path in it changes hands, so that two processes cannot both find it free."""

    def __init__(self, folder: str, timeout: float = 2.0) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + timeout

    def __enter__(self) -> None:
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as e:
                if e.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() > self._deadline:
                    os.close(self._fd)
                    raise
                time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class Viewer(Feed):
    """One connected viewer with its own bounded queue of bytes.

    Once the queue is full, lines are left out until it has drained to half, so that a slow viewer gets long pieces and
    few gaps. What it missed is told by one catch-up, which may go over the bound by the size of the kept lines.
    """

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        encoder: Encoder,
        keep: Keep,
        *,
        limit: int = QUEUE_BYTES,
        owed: int = 0,
        reason: str = "joined_late",
    ) -> None:
        super().__init__(name, encoder, keep, owed=owed, reason=reason)
        self.sock = sock
        self.limit = limit
        self._lock = threading.Lock()  # the reader closes, the writer sends: never on a number that is reused
        self._lines: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._chunk = memoryview(b"")
        self._chunk_records = 0
        self._full = False

    @property
    def queued_bytes(self) -> int:
        return self._bytes + len(self._chunk)

    def fileno(self) -> int:
        return self.sock.fileno()

    def greet(self) -> None:
        """Answer a hello after which nothing may follow for long: an empty line. Before it joins the stream."""
        self._put(b"\n", 0)

    def offer_all(self, first: int, lines: list[bytes], t: int, mono: int) -> None:
        """All of them are taken, or none."""
        joined = b"".join(lines)
        if (
            self.dead
            or not self._accepts(len(joined))
            or (self.owed < first and not self._catch_up(first - 1, t, mono))
        ):
            return
        if self._put(joined, len(lines)):
            self.owed = first + len(lines)
            self._reason = "ring_full"

    def flush(self) -> bool:
        """Send until the socket would block. True when nothing is left (or nobody is there to get it)."""
        with self._lock:
            while not self.dead:
                if not self._chunk and not self._next_chunk():
                    return True
                try:
                    n = self.sock.send(self._chunk, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except (BlockingIOError, InterruptedError):
                    return False
                except OSError:
                    self._hang_up()
                    return True
                self._chunk = self._chunk[n:]
                if not self._chunk:
                    self.sent += self._chunk_records
                    self.queued -= self._chunk_records
                    self._chunk_records = 0
            return True

    def close(self) -> None:
        with self._lock:
            self.dead = True
            self.sock.close()

    def _hang_up(self) -> None:
        self.dead = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes the reader, which closes it

    def _next_chunk(self) -> bool:
        if not self._lines:
            return False
        parts: list[bytes] = []
        size = 0
        while self._lines and size < CHUNK:
            line, records = self._lines.popleft()
            parts.append(line)
            size += len(line)
            self._chunk_records += records
        self._bytes -= size
        self._chunk = memoryview(b"".join(parts))
        return True

    def _accepts(self, size: int) -> bool:
        waiting = self.queued_bytes
        if self._full and waiting * 2 > self.limit:
            return False
        self._full = waiting > 0 and waiting + size > self.limit
        return not self._full

    def _put(self, line: bytes, records: int) -> bool:
        self._lines.append((line, records))
        self._bytes += len(line)
        self.queued += records
        return True
