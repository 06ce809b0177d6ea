"""A server's environment on a host, asked and changed through its own Python; one operation a call."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from ddscope.remote.bundle import script
from ddscope.remote.host import Done, HostError
from ddscope.remote.sudo import Runs, Sudo

SCRIPT = (
    "ddscope.remote.doctor.probe.commands",
    *(f"ddscope.remote.hooks.there.{name}" for name in ("state", "snapshot", "packages", "restoring", "main")),
)
HASH_S = 900.0
"""Seconds that hashing a whole environment may take: some hold 10 GB."""


class Holder(msgspec.Struct, frozen=True):
    """A distribution that brings the hooks. whole: its files are as in its RECORD."""

    name: str
    version: str
    installer: str = ""
    whole: bool = True


class State(msgspec.Struct, frozen=True):
    """An environment as it is now. state: ddscope's own folder on the host; journal: its changes, oldest first."""

    prefix: str
    purelib: str
    python: str
    state: str
    pip: str | None = None
    managed: bool = False
    writable: bool = False
    user: int = 0
    holders: list[Holder] = []
    plugins: list[str] = []
    journal: list[dict[str, Any]] = []

    def holder(self, name: str = "ddscope-hooks") -> Holder | None:
        """The distribution of this name."""
        return next((one for one in self.holders if one.name == name), None)


class Shot(msgspec.Struct, frozen=True):
    """A hash of a whole environment. code: without what Python compiles; quick: big files by size and time."""

    hash: str
    code: str
    files: int
    bytes: int
    quick: bool = False
    roots: list[str] = []
    saved: str | None = None
    before: Shot | None = None
    differences: list[list[str]] = []


class Environment:
    """The environment of `python` on a host. Raises HostError in one sentence for whatever cannot be done."""

    def __init__(self, host: Runs, python: str) -> None:
        self.host = host
        self.python = python

    def ask(self, op: str, *, timeout: float = 60.0, **plan: Any) -> dict[str, Any]:
        """One operation of `there.main`; what it answers."""
        done = self.host.run(
            [self.python, "-B", "-"], input=script(SCRIPT, "main", {"op": op, **plan}), timeout=timeout
        )
        try:
            told = json.loads(done.out)
        except ValueError:
            raise HostError(f"{self.python} on {self.host.name} could not do it ({op}): {_last(done)}.") from None
        if not isinstance(told, dict):
            raise HostError(f"{self.python} on {self.host.name} answered with something else than was asked ({op}).")
        if "why" in told:
            raise HostError(f"{self.host.name}: {told['why']}.")
        return told

    def state(self) -> State:
        """What is installed, and what was changed."""
        return _as(State, self.ask("status"), self.host.name)

    def snapshot(self, *, quick: bool = False, save: str | None = None, against: str | None = None) -> Shot:
        """Hash all of it; against one that was saved, as quick as that one was."""
        told = self.ask("snapshot", timeout=HASH_S, quick=quick, save=save, against=against)
        return _as(Shot, told, self.host.name)

    def keep(self, name: str, data: bytes) -> str:
        """Put a file into ddscope's own folder there; its path."""
        return str(self.ask("keep", name=name, data=base64.b64encode(data).decode())["path"])

    def note(self, **entry: Any) -> None:
        """Write into the journal there."""
        self.ask("note", entry=entry)


def run(host: Runs, argv: Sequence[str], *, input: bytes = b"", timeout: float = 120.0) -> bytes:
    """A command that must succeed: its output. Raises HostError with the last line of what it said."""
    done = host.run(argv, input=input, timeout=timeout)
    if done.status:
        said = _last(done)
        more = "" if "denied" not in said or isinstance(host, Sudo) else " Use --sudo, or connect as root."
        raise HostError(f"`{shlex.join(argv)[:200]}` on {host.name} failed: {said}.{more}")
    return done.out


T = TypeVar("T")

Say = Callable[[str], None]
"""Where lines for the person go."""


def _last(done: Done) -> str:
    said = (done.err or done.out).decode("utf-8", "replace").strip().splitlines()
    return said[-1].rstrip(".") if said else f"exit status {done.status}"


def _as(kind: type[T], told: dict[str, Any], name: str) -> T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError:
        raise HostError(f"{name} answered with something else than was asked.") from None
