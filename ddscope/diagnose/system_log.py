"""What systemd, journald and the kernel say about a server, as small values. Pure; who wrote a line is told by `ident`.

A service can print anything, so a line counts as systemd's or the kernel's only when the journal says that it is.
"""

from __future__ import annotations

import re

import msgspec

from ddscope.model import Log

LONGEST = 2000  # characters of a line that are looked at


class UnitExit(msgspec.Struct, frozen=True):
    """The main process of a unit ended. code: exited, killed or dumped; status: a number, or a signal's."""

    unit: str
    code: str
    status: int

    @property
    def failed(self) -> bool:
        """Whether systemd counts it as a failure, by itself."""
        return self.code != "exited" or self.status != 0


class UnitState(msgspec.Struct, frozen=True):
    """systemd on a unit. what: starting, started, start_failed, stopping, stopped, deactivated, failed (detail: the
    result), restart (count), start_limit."""

    unit: str
    what: str
    detail: str = ""
    count: int | None = None


class Suppressed(msgspec.Struct, frozen=True):
    """journald dropped messages of a unit, as it wrote too many."""

    unit: str
    count: int


class Xid(msgspec.Struct, frozen=True):
    """The NVIDIA driver reports a fault of a GPU. number: its Xid."""

    number: int
    device: str
    pid: int | None
    name: str
    text: str


class OomKill(msgspec.Struct, frozen=True):
    """The kernel killed a process for want of memory (the host's, not the GPU's)."""

    pid: int | None
    name: str
    text: str


class NotAllowed(msgspec.Struct, frozen=True):
    """journalctl's own hint that it does not show everything."""

    text: str


SystemEvent = UnitExit | UnitState | Suppressed | Xid | OomKill | NotAllowed

_UNIT = r"([\w@.:\\-]{1,200}\.(?:service|scope))"
_EXIT = re.compile(rf"{_UNIT}: (?:Main|Control) process exited, code=(exited|killed|dumped), status=(\d{{1,3}})")
_RESTART = re.compile(rf"{_UNIT}: Scheduled restart job, restart counter is at (\d{{1,9}})")
_FAILED = re.compile(rf"{_UNIT}: Failed with result '([\w-]{{1,40}})'")
_LIMIT = re.compile(rf"{_UNIT}: Start request repeated too quickly")
_DEACTIVATED = re.compile(rf"{_UNIT}: Deactivated successfully|{_UNIT}: Succeeded")
_JOB = re.compile(
    rf"(Starting|Started|Stopping|Stopped|Failed to start) (?:{_UNIT}|(.{{1,200}}?))(?: - .{{0,300}})?\.*$"
)
_JOBS = {
    "Starting": "starting",
    "Started": "started",
    "Stopping": "stopping",
    "Stopped": "stopped",
    "Failed to start": "start_failed",
}
_SUPPRESSED = re.compile(r"Suppressed (\d{1,15}) messages from (\S{1,300})")
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([\w:.]{1,40})\): (\d{1,4})(?:, pid='?(\d{1,10}|<unknown>)'?)?(?:, name=([^,]{1,80}))?"
)
_OOM = re.compile(r"Out of memory: Killed process (\d{1,10}) \(([^)]{0,80})\)")
_OOM_GROUP = re.compile(r"Memory cgroup out of memory: Killed process (\d{1,10}) \(([^)]{0,80})\)")
HINTS = (
    "not seeing messages from other users",
    "No journal files were opened due to insufficient permissions",
)


def read(record: Log, message: str) -> SystemEvent | None:
    """What a line of the system says; None for lines of services and for what is not known."""
    ident = record.ident
    if ident is None:
        return _hint(message)
    if ident.startswith("systemd"):
        return _journald(message) if ident == "systemd-journald" else _systemd(message[:LONGEST])
    if ident == "kernel":
        return _kernel(message[:LONGEST])
    return _hint(message) if ident == "journalctl" else None


def _hint(message: str) -> NotAllowed | None:
    allowed = HINTS[0] not in message and HINTS[1] not in message
    return None if allowed else NotAllowed(message[:LONGEST])


def _journald(message: str) -> Suppressed | None:
    found = _SUPPRESSED.match(message)
    return Suppressed(found[2].removeprefix("/system.slice/"), int(found[1])) if found else None


def _systemd(message: str) -> UnitExit | UnitState | None:
    if (found := _EXIT.match(message)) is not None:
        return UnitExit(found[1], found[2], int(found[3]))
    if (found := _RESTART.match(message)) is not None:
        return UnitState(found[1], "restart", count=int(found[2]))
    if (found := _FAILED.match(message)) is not None:
        return UnitState(found[1], "failed", found[2])
    if (found := _LIMIT.match(message)) is not None:
        return UnitState(found[1], "start_limit")
    if (found := _DEACTIVATED.match(message)) is not None:
        return UnitState(found[1] or found[2], "deactivated")
    if (found := _JOB.match(message)) is not None:
        return UnitState(found[2] or found[3], _JOBS[found[1]])
    return None


def _kernel(message: str) -> Xid | OomKill | None:
    if "NVRM: Xid" in message:
        found = _XID.search(message)
        if found is not None:
            pid = int(found[3]) if found[3] and found[3].isdigit() else None
            return Xid(int(found[2]), found[1], pid, found[4] or "", message)
    elif "ut of memory" in message:
        found = _OOM.search(message) or _OOM_GROUP.search(message)
        if found is not None:
            return OomKill(int(found[1]), found[2], message)
    return None
