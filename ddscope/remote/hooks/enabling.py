"""The drop-in that turns the hooks on for a unit. The unit's own files are never touched, and it is never restarted."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ddscope.remote.doctor.drift import variables
from ddscope.remote.hooks.environment import run
from ddscope.remote.hooks.ledger import DISABLE, ENABLE, DropIn
from ddscope.remote.hooks.steps import Step, command
from ddscope.remote.host import HostError
from ddscope.remote.sudo import Runs
from ddscope_hooks import config

MARK = "# Written by `ddscope hooks enable`; `ddscope hooks disable` removes it."
FILE = "90-ddscope.conf"
SETTINGS = ("DDSCOPE_TOPK", "DDSCOPE_SAMPLE", "DDSCOPE_REDACT", "DDSCOPE_CONTROL")
CONTAINERS = ("docker", "podman", "nerdctl", "apptainer", "singularity", "crun", "runc")
MAX_SOCKET = 107


@dataclass(frozen=True)
class LoadedUnit:
    """A unit as systemd has it. folder: where its drop-ins go; environment: what is set for it."""

    name: str
    user: bool
    folder: str
    environment: dict[str, str]
    program: str
    need_reload: bool
    drop_ins: tuple[str, ...]

    @property
    def manager(self) -> tuple[str, ...]:
        """The command that speaks to its manager."""
        return ("systemctl", "--user") if self.user else ("systemctl",)

    @property
    def path(self) -> str:
        """Our file."""
        return f"{self.folder}/{FILE}"


def load_unit(host: Runs, name: str, user: bool) -> LoadedUnit:
    """The unit. Raises HostError where there is no systemd or no such unit."""
    manager = ["systemctl", "--user"] if user else ["systemctl"]
    words = "Id,LoadState,Environment,ExecStart,NeedDaemonReload,DropInPaths"
    done = host.run([*manager, "show", f"--property={words}", "--", name])
    if done.status == 127:
        raise HostError(f"{host.name} has no systemd: start the server with DDSCOPE=unix:PATH in its environment.")
    shown = dict(line.split("=", 1) for line in done.out.decode("utf-8", "replace").splitlines() if "=" in line)
    if done.status or not shown:
        said = done.err.decode("utf-8", "replace").strip().splitlines()
        raise HostError(f"systemd on {host.name} does not answer: {said[-1] if said else 'no word'}.")
    if shown.get("LoadState") != "loaded":
        raise HostError(f"systemd on {host.name} has no unit {name} loaded ({shown.get('LoadState')}).")
    unit = shown.get("Id") or name
    if not re.fullmatch(r"[A-Za-z0-9:_.\\@-]+\.service", unit):
        raise HostError(f"{unit} is no name of a service unit.")
    base = _home(host) + "/.config/systemd/user" if user else "/etc/systemd/system"
    program = re.search(r"path=(\S+) ;", shown.get("ExecStart", ""))
    return LoadedUnit(
        unit,
        user,
        f"{base}/{unit}.d",
        variables(shown.get("Environment", "")),
        program[1] if program else "",
        shown.get("NeedDaemonReload") == "yes",
        tuple(shown.get("DropInPaths", "").split()),
    )


def drop_in(unit: LoadedUnit, target: str | None, settings: Mapping[str, str]) -> str:
    """Text of the file. target: as DDSCOPE takes it; None: a socket in a folder that systemd makes for the unit.

    Raises HostError for what the hooks would refuse.
    """
    if posixpath.basename(unit.program) in CONTAINERS:
        raise HostError(
            f"{unit.name} starts a container ({unit.program}): variables of the unit do not reach into it. Give it "
            "-e DDSCOPE=unix:PATH and a mounted folder in its own command."
        )
    own = target is None
    stem = unit.name.removesuffix(".service")
    folder = f"ddscope/{re.sub(r'[^A-Za-z0-9_.-]', '-', stem)[:60]}"
    asked = {"DDSCOPE": target or f"unix:/run/{folder}/%p.sock", **settings}
    strange = [name for name in settings if name not in SETTINGS]
    if strange:
        raise HostError(f"{strange[0]} is not a variable of the hooks: they know {', '.join(SETTINGS)}.")
    problems = config.read(asked).problems
    if problems:
        raise HostError(problems[0])
    if own and len(f"/run/{folder}/4194304.sock") > MAX_SOCKET:
        raise HostError(f"The name of {unit.name} is too long for a socket's path: name one with --target.")
    lines = [MARK, "[Service]"]
    if own:
        lines += [f"RuntimeDirectory={folder}", "RuntimeDirectoryMode=0700"]
        # %t is /run, or what a user's manager has in its place.
        asked["DDSCOPE"] = f"unix:\0/{folder}/%p.sock"
    lines += [_environment(name, value) for name, value in asked.items()]
    allowed = unit.environment.get("SGLANG_PLUGINS", "").strip()
    if allowed and "ddscope" not in [name.strip() for name in allowed.split(",")]:
        lines.append(_environment("SGLANG_PLUGINS", f"{allowed},ddscope"))
    return "\n".join(lines) + "\n"


def _environment(name: str, value: str) -> str:
    """An assignment as systemd reads it: % and quotes are its own. NUL stands for its %t."""
    if any(c in value for c in "\r\n"):
        raise HostError(f"{name} cannot hold a line break.")
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\0", "%t")
    return f'Environment="{name}={quoted}"'


def enable(host: Runs, unit: LoadedUnit, text: str) -> list[Step]:
    """Steps that write the drop-in and have systemd read it. HostError where somebody else's file is there."""
    there = host.run(["cat", "--", unit.path])
    if not there.status and not there.out.startswith(MARK.encode()):
        raise HostError(f"{unit.path} on {host.name} exists and is not ddscope's: move it away first.")
    made: list[str] = []
    folder = unit.folder
    while len(folder) > 1 and host.run(["test", "-d", folder]).status:
        made.append(folder)
        folder = posixpath.dirname(folder)
    own = re.search(r"^RuntimeDirectory=(.+)$", text, re.M)
    sockets = f"{'$XDG_RUNTIME_DIR' if unit.user else '/run'}/{own[1]}" if own else ""
    entry = {"what": ENABLE, "unit": unit.name, "user": unit.user, "path": unit.path, "made": made, "text": text}
    entry["sockets"] = sockets
    return [
        *([command("mkdir", "-p", unit.folder)] if made else []),
        command("tee", unit.path, content=text, entry=entry),
        command(*unit.manager, "daemon-reload"),
    ]


def disable(host: Runs, drop: DropIn) -> list[Step]:
    """Steps that remove a drop-in of ours and have systemd forget it. HostError where it is not."""
    there = host.run(["cat", "--", drop.path])
    manager = ("systemctl", "--user") if drop.user else ("systemctl",)
    if not there.status and not there.out.startswith(MARK.encode()):
        raise HostError(f"{drop.path} on {host.name} was written by somebody else since: look at it, and remove it.")
    entry = {"what": DISABLE, "unit": drop.unit, "path": drop.path}
    steps = [command("rm", "-f", "--", drop.path, entry=entry)]
    if drop.made:
        steps.append(command("rmdir", "--ignore-fail-on-non-empty", "--", *drop.made))
    return [*steps, command(*manager, "daemon-reload")]


def restart(unit: str, user: bool, sockets: str = "") -> str:
    """The command that nobody but a person runs.

    sockets: a folder that goes with the old process: once the drop-in is gone, systemd forgets to remove it.
    """
    return f"systemctl {'--user ' if user else ''}restart {shlex.quote(unit)}" + (
        f" && rm -r {sockets}" if sockets else ""
    )


def _home(host: Runs) -> str:
    return run(host, ["sh", "-c", 'printf %s "$HOME"']).decode("utf-8", "replace")
