"""Which server of a host is meant: its Python, process, unit, port. As named, else the one that runs or would run."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any

from ddscope.remote.agent import look
from ddscope.remote.host import Host, HostError


@dataclass(frozen=True)
class Server:
    """python: what runs it; user: whether its unit is one of a user's manager; address, port: where it listens."""

    python: str
    pid: int | None = None
    unit: str | None = None
    user: bool = False
    port: int | None = None
    address: str | None = None


def locate(
    host: Host, *, python: str | None = None, pid: int | None = None, unit: str | None = None, port: int | None = None
) -> Server:
    """The server that is meant. Raises HostError in one sentence where there is none, or more than one."""
    seen = look(host, unit or "", pid or 0, port or 0)
    servers = [one for one in seen.get("servers", []) if isinstance(one, dict)]
    named = unit is not None or pid is not None or port is not None
    if python is not None and not named:
        servers = [one for one in servers if one.get("python") == python]
    if len(servers) > 1:
        told = ", ".join(f"{one.get('unit') or 'pid ' + str(one.get('pid'))}" for one in servers)
        raise HostError(f"{host.name} has {len(servers)} servers ({told}): name one with --unit or --pid.")
    if servers:
        return _running(host, servers[0], python)
    if python is not None:
        return Server(python, unit=_service(unit))
    return _idle(host, seen)


def _running(host: Host, one: dict[str, Any], python: str | None) -> Server:
    runs = python or str(one.get("python") or "")
    if one.get("container") and python is None:
        program, _, short = str(one["container"]).partition(" ")
        shell = f"{program} exec -it {short}"
        raise HostError(
            f"The server on {host.name} runs in a container, whose Python only runs in there: install ddscope in it "
            f"(`{shell} pip install ddscope`), then `{shell} ddscope doctor --host localhost`."
        )
    if not runs:
        raise HostError(f"The Python of process {one.get('pid')} on {host.name} cannot be told: name it with --python.")
    return Server(
        python=runs,
        pid=int(one["pid"]),
        unit=one.get("unit") or None,
        user=bool(one.get("user_unit")),
        port=int(one.get("port") or 0) or None,
        address=one.get("address") or None,
    )


def _idle(host: Host, seen: dict[str, Any]) -> Server:
    """A unit that would serve and does not run: its Python by its command."""
    resting = [one for one in seen.get("idle", []) if isinstance(one, dict) and one.get("unit")]
    idle = [str(one["unit"]) for one in resting]
    problems = [str(problem) for problem in seen.get("problems", [])]
    if len(idle) > 1:
        raise HostError(f"No server runs on {host.name}; {', '.join(idle)} could: name one with --unit.")
    if not idle:
        why = f" ({problems[0]})" if problems else ""
        raise HostError(f"No server is found on {host.name}{why}: name its Python with --python.")
    user = bool(resting[0].get("user_unit"))
    done = host.run(["systemctl", *(["--user"] if user else []), "show", "--property=ExecStart", "--", idle[0]])
    program = re.search(r"path=(\S+) ;", done.out.decode("utf-8", "replace"))
    python = _interpreter(host, program[1]) if program else ""
    if not python:
        raise HostError(f"{idle[0]} on {host.name} does not run, and its Python cannot be told: name it with --python.")
    return Server(python, unit=idle[0], user=user)


def _interpreter(host: Host, program: str) -> str:
    if posixpath.basename(program).startswith("python"):
        return program
    done = host.run(["head", "-c", "512", program])
    found = re.match(rb"#!\s*(/\S*python[\d.]*)\s*\n", done.out)
    return found[1].decode("utf-8", "replace") if found else ""


def _service(unit: str | None) -> str | None:
    return unit if unit is None or "." in unit else f"{unit}.service"
