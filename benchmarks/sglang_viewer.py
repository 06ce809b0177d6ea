"""The viewers of benchmarks/sglang_overhead.py: one follows in its own process, one only switches sampling."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddscope.trace import TraceWriter

WAIT_S = 20.0


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """The first true value of the condition. Raises TimeoutError when there is none in time."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.002)
    return value


class Viewer:
    """A second process that follows the engine's socket and writes a trace, as `ddscope record` does."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: object) -> str:
        """One command, and its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


class Follower:
    """The viewer's process: `attach FILE`, `wait N` (finished requests), `detach`; one line each, answered by one.

    Reads the socket by itself: `attach` returns when what a newcomer is told has begun to come, which is not timed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._finished = 0
        self._seen = 0
        self._socket: socket.socket | None = None
        self._reader: threading.Thread | None = None

    def run(self) -> None:
        """Until the input ends."""
        for line in sys.stdin:
            command, *args = line.split()
            with contextlib.suppress(TimeoutError):
                getattr(self, command)(*args)
            print(self._finished, flush=True)

    def attach(self, file: str) -> None:
        """Connect, and wait for the header."""
        self._finished = self._seen = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(self._path)
        self._reader = threading.Thread(target=self._read, args=(self._socket, TraceWriter(file)))
        self._reader.start()
        wait_for(lambda: self._seen, "a header")

    def _read(self, connection: socket.socket, writer: TraceWriter) -> None:
        rest = b""
        while data := connection.recv(1 << 20):
            lines, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                writer.write_lines(lines + newline)
                self._finished += lines.count(b'"type":"finish"')
                self._seen += 1
        writer.close()

    def wait(self, count: str) -> None:
        """Until so many requests have ended; a while at most."""
        wait_for(lambda: self._finished >= int(count), "the requests' ends", 5.0)

    def detach(self) -> None:
        """Disconnect and finish the file."""
        if self._socket is not None and self._reader is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._reader.join()
            self._socket.close()


class Switch:
    """Sampling of the running engine, through a connection that is closed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.facts: dict[str, Any] = {}

    def every(self, every: int) -> None:
        """Give the command and wait until the engine says that it is in force."""
        line = {"type": "control", "command": "sampling", "args": {"every": every}, "by": "benchmark"}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(line).encode() + b"\n")
            for told in connection.makefile("rb"):
                record = json.loads(told)
                if record["type"] != "fact":
                    continue
                self.facts[record["name"]] = record["value"]
                if record["name"] == "hooks.sampling" and record["value"].get("every") == every:
                    return
        raise TimeoutError(f"sampling every={every}: the engine closed the connection")


if __name__ == "__main__":
    Follower(sys.argv[1]).run()
