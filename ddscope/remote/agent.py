"""The agent on a host: `ddscope.remote.there`, sent over standard input to a Python that is there; lines come back.

Nothing is written on the host. The agent ends with its standard input, so with the viewer or the connection.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Sequence
from importlib import resources
from typing import Any

from ddscope.remote.host import Host, HostError

MODULES = ("", "procs", "http", "units", "containers", "discover", "stacks", "ladder", "agent")
PACKAGE = "ddscope.remote.there"
BOOT = """
import json, os, sys, types
def take(count):
    out = b""
    while len(out) < count:
        part = os.read(0, count - len(out))
        if not part:
            sys.exit(0)
        out += part
    return out
modules, options = json.loads(take(int(take(12))))
for name in ("ddscope", "ddscope.remote"):
    sys.modules[name] = types.ModuleType(name)
for name, text in modules:
    made = sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, made)
    exec(compile(text, name, "exec"), made.__dict__)
sys.modules["MODULE"].main(options)
"""  # not a byte more is read than is its own: what follows is for the agent
_NEW = '-c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
_NAMES = "python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python /usr/libexec/platform-python"
FIND_PYTHON = f"""
for p in {_NAMES}; do if "$p" {_NEW}; then command -v "$p"; exit 0; fi; done
for e in /proc/[0-9]*/exe; do
  r=$(readlink "$e" 2>/dev/null)
  case ${{r##*/}} in python3*) if "$r" {_NEW}; then echo "$r"; exit 0; fi;; esac
done
exit 1
"""


def starter(module: str = "agent") -> str:
    """The program given to Python with -c: reads the payload and calls `main` of a module with the options."""
    return BOOT.replace("MODULE", f"{PACKAGE}.{module}")


def payload(options: dict[str, Any], names: Sequence[str] = MODULES) -> bytes:
    """What the bootstrap reads: a length of 12 digits, then the modules and the options."""
    folder = resources.files(PACKAGE)
    modules = []
    for name in names:
        text = (folder / f"{name or '__init__'}.py").read_text("utf-8")
        modules.append((f"{PACKAGE}.{name}" if name else PACKAGE, text))
    text = json.dumps([modules, options])  # ASCII
    return f"{len(text):012}{text}".encode()


def python_on(host: Host) -> str:
    """A Python 3.8 or newer on the host. Raises HostError where there is none."""
    if host.is_local:
        import sys

        return sys.executable
    done = host.run(["sh", "-c", FIND_PYTHON])
    found = done.out.decode("utf-8", "replace").strip().splitlines()
    if done.status or not found:
        raise HostError(
            f"{host.name} has no Python 3.8 or newer that this user can run, so nothing can be asked there."
        )
    return found[0]


class Agent:
    """A running agent. Iterate over its messages; `ask` from any thread. Raises HostError when it cannot be started."""

    def __init__(self, host: Host, options: dict[str, Any]) -> None:
        self._host = host
        self._writing = threading.Lock()
        command = host.command([python_on(host), "-c", starter()])
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"{command[0]} cannot be run: {error.strerror or error}.") from None
        self._send(payload(options))

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):  # it has ended; whoever reads finds out why
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def ask(self, message: dict[str, Any]) -> None:
        """Give it an order; the answer comes among the messages."""
        self._send(json.dumps(message).encode() + b"\n")

    def read(self) -> dict[str, Any] | None:
        """The next message; None at the end. Lines that are no messages are left out."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and "kind" in message:
                return message
        return None

    def why_it_ended(self) -> str:
        """In a sentence, once `read` gave None."""
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        status = self._process.wait()
        if not self._host.is_local and not self._host.connected:
            return f"The connection to {self._host.name} was lost."
        words = f": {said[-1].strip()}" if said else ""
        return f"What looks at the server on {self._host.name} ended with status {status}{words}."

    def close(self) -> None:
        """End it."""
        stdin = self._process.stdin
        with self._writing, contextlib.suppress(OSError):
            if stdin is not None:
                stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def look(host: Host, unit: str = "", pid: int = 0, port: int = 0) -> dict[str, Any]:
    """One look at the servers of a host, as `there.discover.look` tells it. Raises HostError."""
    agent = Agent(host, {"unit": unit, "pid": pid, "port": port, "probe": False})
    try:
        seen = agent.read()
        if seen is None or seen.get("kind") != "host":
            raise HostError(agent.why_it_ended())
        return seen
    finally:
        agent.close()
