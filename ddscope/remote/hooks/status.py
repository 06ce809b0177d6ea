"""What of the hooks is on a host: installed, enabled, loaded by systemd, seen by the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ddscope.remote.doctor.items import shown
from ddscope.remote.doctor.locate import Server
from ddscope.remote.hooks.enabling import LoadedUnit, load_unit, restart
from ddscope.remote.hooks.environment import State
from ddscope.remote.hooks.ledger import Ledger, add_up
from ddscope.remote.hooks.wheel import Wheel
from ddscope.remote.host import HostError
from ddscope.remote.sudo import Runs


@dataclass(frozen=True)
class Status:
    """running: DDSCOPE of the process; None where its environment cannot be read, "" where it is not set."""

    host: str
    server: Server
    state: State
    ledger: Ledger
    unit: LoadedUnit | None
    unit_why: str
    running: str | None
    ours: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        holder = self.state.holder()
        return {
            "host": self.host,
            "python": self.server.python,
            "pid": self.server.pid,
            "unit": self.server.unit,
            "installed": holder.version if holder is not None else None,
            "whole": holder.whole if holder is not None else None,
            "viewer": self.ours,
            "with_ddscope": self.state.holder("ddscope") is not None,
            "plugins": self.state.plugins,
            "drop_ins": [drop.path for drop in self.ledger.drop_ins],
            "loaded": self.unit.environment.get("DDSCOPE") if self.unit is not None else None,
            "need_reload": self.unit.need_reload if self.unit is not None else None,
            "running": self.running,
            "allowed": self.unit.environment.get("SGLANG_PLUGINS") if self.unit is not None else None,
            "journal": self.state.state,
            "changes": len(self.state.journal),
        }


def status(host: Runs, server: Server, state: State, wheel: Wheel) -> Status:
    """Look."""
    unit, why = None, "the server is in no systemd unit"
    if server.unit is not None:
        try:
            unit, why = load_unit(host, server.unit, server.user), ""
        except HostError as problem:
            why = str(problem).rstrip(".")
    return Status(host.name, server, state, add_up(state.journal), unit, why, _running(host, server), wheel.version)


def _running(host: Runs, server: Server) -> str | None:
    if server.pid is None:
        return None
    done = host.run(["cat", f"/proc/{server.pid}/environ"])
    if done.status or not done.out:
        return None
    for item in done.out.decode("utf-8", "replace").split("\0"):
        if item.startswith("DDSCOPE="):
            return item.partition("=")[2]
    return ""


def lines(one: Status) -> Iterator[str]:
    """For a person: where it stands, and what comes next."""
    server = one.server
    told = [one.host, server.unit or "no unit", f"pid {server.pid}" if server.pid else "not running", server.python]
    yield " · ".join(shown(word) for word in told)
    yield f"installed  {_installed(one)}"
    yield f"enabled    {_enabled(one)}"
    if server.pid is not None:
        said = "its environment cannot be read" if one.running is None else shown(one.running or "no DDSCOPE")
        yield f"running    {said}"
    allowed = one.unit.environment.get("SGLANG_PLUGINS", "") if one.unit is not None else ""
    if allowed and "ddscope" not in [name.strip() for name in allowed.split(",")]:
        yield f"plug-ins   SGLANG_PLUGINS allows only {shown(allowed)}: SGLang would skip the hooks"
    if one.state.journal:
        last = one.state.journal[-1]
        stamp = last.get("t")
        when = f"{datetime.fromtimestamp(stamp, UTC):%Y-%m-%d %H:%M} UTC" if isinstance(stamp, int) else "?"
        changes = "1 entry" if len(one.state.journal) == 1 else f"{len(one.state.journal):,} entries"
        yield f"journal    {shown(one.state.state)}/journal.jsonl: {changes}, last {when}"
    if one.unit is not None and one.unit.need_reload:
        yield "reload     files of the unit changed and systemd has not read them (daemon-reload)"
    if _pending(one) and one.unit is not None:
        yield f"next       {restart(one.unit.name, one.unit.user)}   (ddscope never restarts a service)"


def _pending(one: Status) -> bool:
    """Whether the process runs with another DDSCOPE than systemd would give it now."""
    if one.unit is None or one.running is None or one.server.pid is None:
        return False
    return one.unit.environment.get("DDSCOPE", "") != one.running


def _installed(one: Status) -> str:
    whole, holder = one.state.holder("ddscope"), one.state.holder()
    if whole is not None:
        return f"with ddscope {shown(whole.version)}, not by `ddscope hooks`"
    if holder is None:
        return "no" if one.state.writable else f"no, and {shown(one.state.purelib)} cannot be written by this user"
    same = "as this viewer has them" if holder.version == one.ours else f"this viewer has {one.ours}"
    damaged = "" if holder.whole else "; its files were changed since"
    return f"{shown(holder.version)} ({same}){damaged}"


def _enabled(one: Status) -> str:
    if one.unit is None:
        return f"no: {shown(one.unit_why)}"
    set_ = one.unit.environment.get("DDSCOPE")
    ours = [drop.path for drop in one.ledger.drop_ins]
    if set_ is None:
        return f"{shown(ours[0])}, which systemd has not loaded" if ours else "no"
    return f"{shown(set_)} by {shown(ours[0]) if ours else 'the unit itself'}"
