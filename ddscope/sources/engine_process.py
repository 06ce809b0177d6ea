"""The embedded engine as a process of its own: started, waited for, stopped. Its records come through `SocketSource`.

The engine is never imported here: the viewer needs no torch. It speaks on its standard output, one JSON object a line:
`{"status": "progress", "what": …, "done": n, "total": n}`, then `{"status": "ready"}` or
`{"status": "error", "message": …}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

Progress = Callable[[str, int, int], None]
"""what, done, total (0 when unknown)."""

STOP_AFTER = 5.0
"""Seconds an engine may take to leave after it was asked to."""


class EngineProcessError(Exception):
    """The engine could not be started; the message is one sentence."""


class EngineProcess:
    """One engine process with a socket and a log file in a private folder that goes away with it.

    options: command-line options of `python -m ddscope.engine`, without the socket.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = list(options)
        self._folder = Path(tempfile.mkdtemp(prefix="ddscope-"))  # short, because a socket path has at most 107 bytes
        self.socket = self._folder / "engine.sock"
        self.log = self._folder / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, progress: Progress | None = None) -> None:
        """Start and wait until the engine listens. Raises EngineProcessError with the engine's own sentence."""
        command = [sys.executable, "-m", "ddscope.engine", "--socket", str(self.socket), *self._options]
        # A broken environment must not hide behind the workbench: the journal pane shows this log.
        with self.log.open("wb") as log:
            # Standard input stays open as long as this process lives; the engine leaves when it closes.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                # Worker threads that spin while they wait take the cores that the screen needs.
                env={"OMP_WAIT_POLICY": "passive", **os.environ},
            )
        assert self._process.stdout is not None
        problem = self._await_ready(self._process.stdout, progress)
        if problem is not None:
            self.stop()
            raise EngineProcessError(problem)

    def _await_ready(self, out: IO[bytes], progress: Progress | None) -> str | None:
        for line in out:
            try:
                status = json.loads(line)
            except ValueError:
                continue  # a library printed something; it is not for us
            if not isinstance(status, dict):
                continue
            if status.get("status") == "ready":
                return None
            if status.get("status") == "error":
                return str(status.get("message"))
            if status.get("status") == "progress" and progress is not None:
                progress(str(status.get("what")), int(status.get("done", 0)), int(status.get("total", 0)))
        return self._why_it_ended()

    def _why_it_ended(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        lines = [line for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        said = f" Its last words: {lines[-1].strip()}" if lines else ""
        return f"The engine ended with exit status {code} before it was ready.{said}"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status once it has ended (negative: by that signal), else None."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Ask the engine to leave, then insist; remove its folder."""
        process = self._process
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            try:
                process.wait(STOP_AFTER)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
