"""systemd's units on a host, those of users' managers included: which one a process belongs to, which would serve."""

from __future__ import annotations

import glob
import os
import pwd
import re
import subprocess
from typing import TYPE_CHECKING

from ddscope.remote.there import procs

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = re.compile(r"sglang|vllm", re.I)
SYSTEM_FOLDERS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
)  # fmt: skip
USER_FOLDERS = ("~/.config/systemd/user", "/etc/systemd/user", "/usr/lib/systemd/user")
SHOWN = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "NRestarts", "ExecMainCode", "ExecMainStatus",
    "StateChangeTimestampMonotonic", "FragmentPath", "StatusText", "ControlGroup",
)  # fmt: skip


def me() -> str:
    """The name of the user that runs this."""
    return name_of(os.geteuid())


def name_of(uid: int) -> str:
    """A user's name; the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def systemctl(user: str, *words: str) -> str:
    """What systemctl prints, of the system or of a user's manager; empty where there is none or it says nothing.

    Another user's manager only answers that user, whom root becomes for the question.
    """
    told = dict(os.environ, LC_ALL="C.UTF-8", SYSTEMD_COLORS="0", SYSTEMD_PAGER="")
    become = None
    if user:
        owner = id_of(user)
        if owner is None:
            return ""
        told["XDG_RUNTIME_DIR"] = f"/run/user/{owner}"  # a session without PAM's help does not know it
        told.pop("DBUS_SESSION_BUS_ADDRESS", None)
        if owner != os.geteuid():
            become = becoming(owner)
    try:
        done = subprocess.run(
            ["systemctl", *(["--user"] if user else []), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
            env=told,
            preexec_fn=become,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def becoming(owner: int) -> Callable[[], None]:
    """What makes a child another user; it fails, and so the question, for anybody but root."""

    def become() -> None:
        group = pwd.getpwuid(owner).pw_gid
        os.setgroups([])
        os.setgid(group)
        os.setuid(owner)

    return become


def state_of(unit: str, user: str = "") -> dict[str, str]:
    """Properties of a unit of the system, or of a user; empty where systemd does not answer."""
    text = systemctl(user, "show", "--property=" + ",".join(SHOWN), "--", unit)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def id_of(user: str) -> int | None:
    """A user's number; None for nobody."""
    try:
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def full_name(unit: str) -> str:
    """A unit's name with its type."""
    return unit if "." in unit.rpartition("/")[2] else unit + ".service"


def find(unit: str) -> tuple[dict[str, str], str]:
    """A unit's properties and its user, looked for in the system first, then among one's own units."""
    state = state_of(unit)
    if state.get("LoadState") in (None, "not-found"):
        own = state_of(unit, me())
        if own.get("LoadState") not in (None, "not-found"):
            return own, me()
    return state, ""


def unit_of(pid: int) -> tuple[str, str]:
    """(service unit, user) that a process belongs to; the user is "" for units of the system, the unit for none."""
    for line in procs.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines():
        path = line.split(":", 2)[-1]
        services = [part for part in path.split("/") if part.endswith(".service")]
        if services and (line.startswith("0::") or ":name=systemd:" in line):
            if services[-1].startswith("user@"):
                return "", ""
            owner = re.fullmatch(r"user@(\d+)\.service", services[0])
            return services[-1], name_of(int(owner.group(1))) if owner else ""
    return "", ""


def that_serve() -> list[tuple[str, str]]:
    """(unit, user) of services whose files name a server, running or not: the system's and one's own."""
    found = []
    for user, folders in (("", SYSTEM_FOLDERS), (me(), USER_FOLDERS)):
        for folder in folders:
            for path in sorted(glob.glob(glob.escape(os.path.expanduser(folder)) + "/*.service")):
                text = procs.read(path, 1 << 16).decode("utf-8", "replace")
                commands = re.findall(r"^\s*ExecStart\s*=((?:.*\\\n)*.*)$", text, re.M)
                name = os.path.basename(path)
                if any(WORDS.search(command) for command in commands) or (commands and WORDS.search(name)):
                    found.append((name, user))
    return list(dict.fromkeys(found))
