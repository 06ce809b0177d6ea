"""Log lines of a host without a journal: a file that is followed by inode and offset, or what a command prints.

A file goes on where it was after a lost connection; of a command nobody knows what was missed, so a gap says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import IO, Any

from ddscope.remote.agent import payload, python_on, starter
from ddscope.remote.host import Host, HostError
from ddscope.sources.guard import guarded
from ddscope.sources.lines import LineCutter, LogLines, LogSource
from ddscope.sources.threaded import Backoff

BACKOFF_S = (0.5, 10.0)
READ = 1 << 18


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and what it started here; what runs on another host ends with its connection."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Lines(LogSource):
    """What both have: a thread that runs a process there again and again, lines cut from its bytes."""

    def __init__(self, host: Host, what: str, name: str, sink: Callable[[bytes], object]) -> None:
        self.host = host
        self._what = what
        self._lines = LogLines(f"log/{name}", sink)
        super().__init__(self._lines.src, f"Lines of {what}", f"Waiting for {what} on {host.name}.")
        self._cutter = LineCutter(self._lines, name)
        self._told_lost = False
        self._process: subprocess.Popen[bytes] | None = None

    def _wake(self) -> None:
        process = self._process
        if process is not None:
            _kill(process)

    def _work(self) -> None:
        """Until it is stopped; what has no newline then is told as partial."""
        backoff = Backoff(*BACKOFF_S)
        while not self._stopped.is_set():
            before = self._lines.received
            try:
                self._once()
            except HostError as problem:
                self._lose(str(problem))
            self._stopped.wait(backoff.after(self._lines.received > before))
        self._finish()

    def _once(self) -> None:
        raise NotImplementedError

    def _popen(self, command: list[str], first: bytes = b"") -> subprocess.Popen[bytes]:
        try:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"{command[0]} cannot be run: {error.strerror or error}.") from None
        assert process.stdin is not None
        if self._stopped.is_set():
            _kill(process)
        with contextlib.suppress(OSError):  # it has ended, and its status says why
            process.stdin.write(first)
            process.stdin.flush()
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        """Its last words."""
        _kill(process)
        assert process.stderr is not None
        said = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return said[-1].strip() if said else ""

    def _take(self, data: bytes) -> None:
        self._cutter.take(data)
        self.state, self.reason, self._told_lost = "connected", "", False
        self._lines.flush()

    def _finish(self) -> None:
        self._cutter.finish()
        self._lines.flush()

    def _missing(self, reason: str) -> None:
        """It is lost, and nobody knows what was missed; where it goes on where it was, `_lose` does."""
        self._lose(reason)
        if not self._told_lost:
            self._told_lost = True
            self._finish()
            self._lines.gap("disconnected")
            self._lines.flush()


class RemoteFile(_Lines):
    """A log file of a host. path: there. last: how many lines that are there already are told (None: all)."""

    def __init__(
        self, host: Host, path: str, sink: Callable[[bytes], object], *, last: int | None = 1000, name: str = ""
    ) -> None:
        super().__init__(host, path, name or path.rpartition("/")[2], sink)
        self._options: dict[str, Any] = {"path": path, "last": last, "inode": 0, "offset": 0}

    def _once(self) -> None:
        command = self.host.command([python_on(self.host), "-c", starter("follow")])
        process = self._popen(command, payload(self._options, ("", "follow")))
        assert process.stdout is not None
        try:
            while self._frame(process.stdout):
                pass
        finally:
            said = self._end(process)
        if not self._stopped.is_set():
            lost = not self.host.connected
            why = f"The connection to {self.host.name} was lost" if lost else f"{said or 'It ended'}"
            self._lose(f"{why.rstrip('.')}; {self._what} goes on where it was.")

    def _frame(self, out: IO[bytes]) -> bool:
        head = out.readline().split(b" ", 3)
        if len(head) != 4:
            return False
        inode, offset, length, word = int(head[0]), int(head[1]), int(head[2]), head[3].strip()
        data = out.read(length)
        if len(data) < length:
            return False  # cut in the middle: it comes again
        if word == b"missing":
            why = data.decode("utf-8", "replace")
            self.state, self.reason = "connecting", f"{self._what} cannot be read on {self.host.name}: {why}."
            return True
        if word != b"data":
            self._finish()
            if word == b"cut":
                self._lines.gap("cursor_lost")
        self._options.update(inode=inode, offset=offset)
        self._take(data)
        return True


class CommandLines(_Lines):
    """What a shell command on a host prints, its standard error included. command: as a person types it."""

    def __init__(self, host: Host, command: str, sink: Callable[[bytes], object], *, name: str = "") -> None:
        super().__init__(host, f"`{command}`", name or command.split()[0].rpartition("/")[2], sink)
        self._command = command

    def _once(self) -> None:
        process = self._popen(self.host.command(guarded(["sh", "-c", f"{{ {self._command}\n}} 2>&1"])))
        assert process.stdout is not None
        try:
            while data := process.stdout.read1(READ):  # type: ignore[attr-defined]
                self._take(data)
            status = process.wait()
        finally:
            said = self._end(process)
        if self._stopped.is_set():
            return
        if not self.host.connected:
            self._missing(f"The connection to {self.host.name} was lost; what {self._what} printed is missing.")
        else:
            words = f": {said}" if said else ""
            self._missing(f"{self._what} ended with status {status}{words}; it is started again.")
