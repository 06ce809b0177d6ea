"""A host whose commands run as root there, by `sudo -n`: without a password, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ddscope.remote.host import Done, HostError


class Runs(Protocol):
    """What is wanted of a host."""

    name: str

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = 30.0) -> Done:
        """Run a command there until it ends."""


class Sudo:
    """Wraps a host. Raises HostError where sudo wants a password, or is not there."""

    def __init__(self, host: Runs) -> None:
        self._host = host
        self.name = host.name

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = 30.0) -> Done:
        """As `Host.run`."""
        done = self._host.run(["sudo", "-n", "--", *argv], input=input, timeout=timeout)
        if done.status == 127 and b"sudo" in done.err:
            raise HostError(f"{self.name} has no sudo: connect as root.")
        if done.status == 1 and done.err.startswith(b"sudo: "):
            said = done.err.decode("utf-8", "replace").strip().splitlines()[-1]
            raise HostError(f"{self.name} does not let this user run things as root without being asked ({said}).")
        return done
