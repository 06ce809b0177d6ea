"""Every server behind the sockets, folders and patterns that a person named, as one source: one `SocketSource` a rank.

Sockets that appear later in a folder or pattern are followed too. A server is never asked to wait for anybody.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddscope.sources.engine_socket import SocketSource
from ddscope.sources.errors import SourceError
from ddscope.sources.finding import Wanted, is_many, probe, sockets_of
from ddscope.sources.intake import Names

SCAN_S = 0.5


class Servers:
    """Sources of all ranks. `members` in the order they were found; sinks are called on the members' own threads.

    wanted: sockets, folders or patterns. sink: gets batches of whole encoded lines. uid: whose servers are trusted.
    """

    def __init__(self, wanted: Sequence[Wanted], sink: Callable[[bytes], object], *, uid: int | None = None) -> None:
        self._many = [os.path.abspath(one) for one in wanted if is_many(one)]
        self._sink = sink
        self._uid = uid
        self._names = Names()
        self._members: dict[str, SocketSource] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = False
        for one in wanted:
            if not is_many(one):
                self._add(Path(os.path.abspath(one)))
        self._scan()

    @property
    def members(self) -> list[SocketSource]:
        """One a socket."""
        with self._lock:
            return list(self._members.values())

    @property
    def state(self) -> str:
        """connected while any member is, else lost when one was, else connecting."""
        states = {member.state for member in self.members}
        return "connected" if "connected" in states else "lost" if "lost" in states else "connecting"

    @property
    def reason(self) -> str:
        """Why nobody is connected."""
        reasons = [member.reason for member in self.members if member.state != "connected" and member.reason]
        return reasons[-1] if reasons and self.state != "connected" else ""

    @property
    def gone_s(self) -> float | None:
        """Seconds since the last of all servers was lost; None while one is connected, or when none ever was."""
        members = self.members
        lost = [member.lost_at for member in members if member.lost_at is not None]
        if not lost or any(member.state == "connected" for member in members):
            return None
        return time.monotonic() - max(lost)

    def start(self) -> None:
        """Connect in the background, and look for new sockets where there may be some."""
        with self._lock:
            self._started = True
            members = list(self._members.values())
        for member in members:
            member.start()
        if self._many:
            self._thread = threading.Thread(target=self._watch, name="servers", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Disconnect from all; nothing reaches the sink afterwards."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for member in self.members:
            member.stop()

    def follow(self, path: Path) -> None:
        """Follow one more socket, whether or not somebody listens on it yet."""
        self._add(Path(os.path.abspath(path)))

    def forget(self, path: Path) -> None:
        """Follow a socket no longer: the process behind it has gone, and another one took its place."""
        with self._lock:
            member = self._members.pop(os.path.abspath(path), None)
        if member is not None:
            member.stop()

    def send(self, command: str, args: dict[str, Any], by: str = "viewer") -> None:
        """Give every connected server a command. Raises SourceError when one took none, or none is connected."""
        members = [member for member in self.members if member.state == "connected"]
        if not members:
            raise SourceError(f"`{command}` was not sent: no server is connected. {self.reason}".rstrip())
        problems: list[SourceError] = []
        for member in members:
            try:
                member.send(command, args, by)
            except SourceError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def _watch(self) -> None:
        while not self._stopped.wait(SCAN_S):
            self._scan()

    def _scan(self) -> None:
        """Follow the sockets of folders and patterns that have a server. What dead ones left is passed over."""
        for pattern in self._many:
            for path in sockets_of(pattern):
                if str(path) in self._members:
                    continue
                try:
                    probe(path, self._uid)
                except SourceError:
                    continue
                self._add(path)

    def _add(self, path: Path) -> None:
        member = SocketSource(path, self._sink, uid=self._uid, names=self._names)
        with self._lock:
            if str(path) in self._members or self._stopped.is_set():
                return
            self._members[str(path)] = member
            started = self._started
        if started:
            member.start()
