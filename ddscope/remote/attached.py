"""Everything that is followed of one host, as sources: its watch, its journals or log, the sockets of its hooks.

Sources feed a sink; who shows what, and how several hosts stand together, is the session's business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddscope.remote.agent import look
from ddscope.remote.host import Host, HostError
from ddscope.remote.lines import CommandLines, RemoteFile
from ddscope.remote.watch import HostWatch
from ddscope.sources import JournalSource

KERNEL = "kernel"
KERNEL_LINES = 200


@dataclass(frozen=True)
class Wanted:
    """What a person asked for on one host. sockets, log_files: paths there. lines: how many old ones of each log.

    every, health_every, probe_every, probe_timeout: seconds, see `there.ladder`.
    """

    unit: str = ""
    pid: int = 0
    port: int = 0
    sockets: Sequence[str] = ()
    log_files: Sequence[str] = ()
    log_commands: Sequence[str] = ()
    lines: int | Literal["all"] = 2000
    probe: bool = True
    every: float = 2.0
    health_every: float = 10.0
    probe_every: float = 60.0
    probe_timeout: float = 20.0
    journalctl: Sequence[str] = field(default=("journalctl",))

    def options(self) -> dict[str, Any]:
        """For the agent."""
        names = ("unit", "pid", "port", "probe", "every", "health_every", "probe_every", "probe_timeout")
        return {name: getattr(self, name) for name in names}


class AttachedHost:
    """A host that was looked at once, and what is followed of it. Raises HostError when nothing there can be followed.

    several: other hosts are attached too, so the source ids name this one.
    """

    def __init__(self, name: str, wanted: Wanted, *, several: bool = False, ssh: Sequence[str] | None = None) -> None:
        self.wanted = wanted
        self.host = Host(name, ssh=ssh)
        try:
            self.seen = look(self.host, wanted.unit, wanted.pid, wanted.port)
            self.server = chosen(name, self.seen, wanted)
        except BaseException:
            self.host.close()
            raise
        self.name = name
        self.watch: HostWatch | None = None
        self.sources: list[tuple[str, Any]] = []
        """(name, source) of all, after `open`."""
        self._prefix = f"{name}/" if several else ""
        self._suffix = f"/{name}" if several else ""
        self._follow: Callable[[Path], object] = lambda _: None
        self._forget: Callable[[Path], object] = lambda _: None
        self._followed: dict[str, Path] = {}
        self._lock = threading.Lock()

    @property
    def unit(self) -> str:
        """The unit whose journal is read; "" for none."""
        return str(self.server.get("unit", ""))

    @property
    def words(self) -> str:
        """What is attached to, for a title: `ct129 · sglang-qwen.service`."""
        server = self.watch.server if self.watch is not None and self.watch.server else self.server
        what = server.get("unit") or server.get("container") or (f"pid {server['pid']}" if server.get("pid") else "")
        return " · ".join(part for part in (self.name, what) if part)

    def open(
        self,
        sink: Callable[[bytes], object],
        follow: Callable[[Path], object],
        forget: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """Make the sources. follow, forget: told every socket of a hook that comes or goes, as it is reached here."""
        self._follow, self._forget = follow, forget

        def pulsing(lines: bytes) -> None:
            if self.watch is not None:
                self.watch.pulse.saw(lines, time.monotonic())
            sink(lines)

        self.sink = pulsing
        if self.server:
            watch = self.watch = HostWatch(
                self.host, sink, self.wanted.options(), suffix=self._suffix, on_server=self._on_server
            )
            self.sources.append((f"{self.name}", watch))
        if self.unit and (self.seen["systemd"] or len(self.wanted.journalctl) > 1):
            self._journal(self.unit, None, self.unit, self.wanted.lines)
            self._journal(KERNEL, ["--dmesg"], KERNEL, KERNEL_LINES)
        last = None if self.wanted.lines == "all" else self.wanted.lines
        for path in self.wanted.log_files:
            name = self._prefix + path.rpartition("/")[2]
            self.sources.append((f"log/{name}", RemoteFile(self.host, path, pulsing, last=last, name=name)))
        for command in self.wanted.log_commands:
            name = self._prefix + command.split()[0].rpartition("/")[2]
            self.sources.append((f"log/{name}", CommandLines(self.host, command, pulsing, name=name)))
        for path in self.wanted.sockets:
            self._forward(path)

    def _journal(self, unit: str, match: list[str] | None, name: str, last: int | Literal["all"]) -> None:
        if "user_id" in self.server and match is None:
            match = user_match(unit, int(self.server["user_id"]))
        name = self._prefix + name
        source = JournalSource(
            unit,
            self.sink,
            last=last,
            command=list(self.wanted.journalctl),
            match=match,
            name=name,
            there=self.host.command,
            host=self.name,
        )
        self.sources.append((f"journal/{name}", source))

    def _on_server(self, server: dict[str, Any]) -> None:
        """Sockets of hooks came or went."""
        here = set(server.get("sockets", ()))
        for path in sorted(here - self._followed.keys()):
            self._forward(path)
        if here:  # else nobody has taken the place of those that were lost, and that they were is worth knowing
            for path in sorted(self._followed.keys() - here - set(self.wanted.sockets)):
                local = self._followed.pop(path)
                self.host.unforward(path)
                self._forget(local)

    def _forward(self, path: str) -> None:
        with self._lock:
            if path in self._followed:
                return
            try:
                local = self.host.forward(path)
            except HostError:
                return  # the watch says why, and tries again
            self._followed[path] = local
        self._follow(local)

    def ask_stacks(self) -> bool:
        """Ask for the stacks now; False where no process is watched."""
        if self.watch is None or self.watch.state != "connected":
            return False
        self.watch.ask_stacks()
        return True

    def leave(self) -> None:
        """Before the sources are stopped: none of them may wait for a connection that is being made."""
        self.host.leave()

    def close(self) -> None:
        """Disconnect; after the sources were stopped."""
        self.host.close()


def chosen(name: str, seen: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The server to attach to; {} where only a log was asked for. Raises HostError with what can be chosen."""
    servers, idle = seen["servers"], [one["unit"] for one in seen["idle"]]
    if len(servers) == 1:
        return dict(servers[0])
    if servers:
        said = "; ".join(describe(server) for server in servers)
        raise HostError(f"{name} runs {len(servers)} servers: {said}. Choose one with --unit, --pid or --port.")
    if len(idle) == 1:
        return {"kind": "", **{name: value for name, value in seen["idle"][0].items() if name != "state"}}
    if idle:
        raise HostError(
            f"No server runs on {name}, and {len(idle)} units would: {', '.join(idle)}. Choose with --unit."
        )
    if wanted.log_files or wanted.log_commands or wanted.sockets:
        return {}
    if seen["problems"]:
        raise HostError(f"On {name}, {'; '.join(seen['problems'])}.")
    raise HostError(
        f"Nothing on {name} serves SGLang or vLLM, as far as this user can see. Name it with --unit, --pid or --port, "
        "or its log with --log-file or --log-command."
    )


def user_match(unit: str, user: int) -> list[str]:
    """Entries of a user's own unit: what it wrote, and what the manager that runs it says of it.

    Not `--user-unit`, which means the units of whoever asks.
    """
    return [f"_SYSTEMD_USER_UNIT={unit}", f"_UID={user}", "+", f"USER_UNIT={unit}", f"_UID={user}"]


def describe(server: dict[str, Any]) -> str:
    """One server in few words."""
    what = server.get("unit") or server.get("container") or server.get("kind") or "a process"
    port = f", port {server['port']}" if server.get("port") else ""
    return f"{what} (pid {server['pid']}{port})"
