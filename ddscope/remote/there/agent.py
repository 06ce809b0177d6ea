"""Runs on the host for as long as somebody listens: tells the server, its rungs and stacks as JSON lines, obeys others.

It ends when its standard input does: with the viewer, or with the connection.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import threading
from typing import Any

from ddscope.remote.there import discover, procs, stacks
from ddscope.remote.there.ladder import Ladder, stamp

TICK_S = 0.25


class Agent:
    """`options` as for `Ladder`, and unit, pid, port to name the server."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._writing = threading.Lock()
        self._dumping = threading.Lock()
        self._pushed = ""
        self._tick = min(TICK_S, float(options.get("every", 2.0)))
        seen = discover.look(options.get("unit", ""), options.get("pid", 0), options.get("port", 0))
        self.tell({"kind": "host", **seen, **stamp()})
        server, unit = choose(seen, options)
        self.ladder = Ladder(server, dict(options, unit=unit), self.tell) if server is not None else None
        if self.ladder is not None:
            self.ladder.fresh = self._tell_server
            self._tell_server()

    def tell(self, message: dict[str, Any]) -> None:
        """One line; the end of everything when nobody reads it."""
        line = json.dumps(message).encode() + b"\n"
        with self._writing:
            try:
                while line:
                    line = line[os.write(1, line) :]
            except OSError:
                self.end()

    def _tell_server(self) -> None:
        assert self.ladder is not None
        self.tell({"kind": "server", "server": self.ladder.server, **stamp()})

    def run(self) -> None:
        """Until standard input ends."""
        rest = b""
        while True:
            if select.select([0], [], [], self._tick)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    self.end()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))
            if self.ladder is not None:
                self.ladder.work()

    def obey(self, message: dict[str, Any]) -> None:
        """clock, hello, look, stacks."""
        ask = message.get("ask")
        if ask in ("clock", "hello"):
            self.tell({"kind": ask, "id": message.get("id"), **stamp()})
        elif ask == "look" and self.ladder is not None:
            self.ladder.hurry()
        elif ask == "stacks" and self.ladder is not None:
            pushed = message.get("py_spy", "")
            if message.get("remove"):
                self._pushed = pushed
            threading.Thread(target=self._stacks, args=(pushed,), daemon=True).start()

    def end(self) -> None:
        """With the viewer, however it ended: what it pushed goes, too. Threads that wait for an answer hold nothing."""
        if os.path.basename(os.path.dirname(self._pushed)).startswith("ddscope-"):
            shutil.rmtree(os.path.dirname(self._pushed), ignore_errors=True)
        os._exit(0)

    def _stacks(self, pushed: str) -> None:
        assert self.ladder is not None
        if not self._dumping.acquire(blocking=False):
            return
        try:
            server = self.ladder.server
            py_spy = pushed if os.access(pushed, os.X_OK) else stacks.find(server.get("python", ""))
            if not py_spy:
                self.tell({"kind": "no_py_spy", "machine": os.uname().machine, **stamp()})
                return
            family = procs.tree(int(server.get("pid") or 0), procs.processes())
            found, problems = stacks.dump(py_spy, [one.pid for one in family])
            if not found and not problems:
                problems = ["there is no Python process to look into"]
            self.tell({"kind": "stacks", "stacks": found, "problems": problems, **stamp()})
        finally:
            self._dumping.release()


def choose(seen: dict[str, Any], options: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """(server, unit) to watch: the only one, running or not; (None, "") when that is not clear."""
    servers, idle = seen["servers"], seen["idle"]
    if len(servers) == 1:
        return servers[0], servers[0].get("unit", "")
    if not servers and len(idle) == 1:
        return {"kind": "", "unit": idle[0]["unit"], "port": options.get("port", 0)}, idle[0]["unit"]
    return None, ""


def main(options: dict[str, Any]) -> None:
    """What the bootstrap calls."""
    try:
        os.nice(5)
        Agent(options).run()
    except KeyboardInterrupt:
        sys.exit(0)
