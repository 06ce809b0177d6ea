"""Processes of a Linux host and their sockets, read from /proc. What cannot be read is left out, nothing raises."""

from __future__ import annotations

import os
import re

SECRET = re.compile(r"(api|admin|auth|hf|access)[-_]?(api)?[-_]?(key|token)|password|secret|token$", re.I)
LISTEN_TCP, LISTEN_UNIX = "0A", 0x10000
try:
    TICKS = os.sysconf("SC_CLK_TCK")
except (ValueError, OSError):
    TICKS = 100


class Process:
    """One process. start: ticks since boot, which with the pid names it for good. state: a letter as in ps."""

    def __init__(self, pid: int, ppid: int, comm: str, state: str, start: int, argv: list[str]) -> None:
        self.pid, self.ppid, self.comm, self.state, self.start, self.argv = pid, ppid, comm, state, start, argv

    @property
    def title(self) -> str:
        """What the process calls itself (`sglang::scheduler_TP0`), else the name of its program."""
        first = self.argv[0].split(" ")[0] if self.argv else ""
        return first if "::" in first else self.comm


def read(path: str, limit: int = 1 << 20) -> bytes:
    """A file; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def link(path: str) -> str:
    """What a link points at; empty when that cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def process(pid: int) -> Process | None:
    """One process; None when it is gone."""
    stat = read(f"/proc/{pid}/stat", 4096).decode("utf-8", "replace")
    comm, bracket, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if not bracket or len(fields) < 20:
        return None
    words = read(f"/proc/{pid}/cmdline", 1 << 17).decode("utf-8", "replace").rstrip("\0").split("\0")
    return Process(pid, int(fields[1]), comm, fields[0], int(fields[19]), words if words != [""] else [])


def processes() -> dict[int, Process]:
    """All of them by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            one = process(int(name))
            if one is not None:
                found[one.pid] = one
    return found


def tree(root: int, known: dict[int, Process]) -> list[Process]:
    """A process and all that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for one in known.values():
        children.setdefault(one.ppid, []).append(one.pid)
    found, queue = [], [root]
    while queue:
        pid = queue.pop(0)
        if pid in known:
            found.append(known[pid])
            queue += sorted(children.get(pid, []))
    return found


def started(one: Process) -> float | None:
    """Seconds since the epoch at which a process began."""
    boot = re.search(rb"^btime (\d+)$", read("/proc/stat"), re.M)
    return int(boot.group(1)) + one.start / TICKS if boot else None


def environ(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it may not be read."""
    pairs = read(f"/proc/{pid}/environ").decode("utf-8", "replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def arguments(argv: list[str]) -> dict[str, str]:
    """`--name value` and `--name=value` as {name: value}, "" for a switch; secrets are hidden."""
    told: dict[str, str] = {}
    name = ""
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            name = name.replace("_", "-")  # vLLM takes both
            told[name] = value
        elif re.match(r"-[A-Za-z]", word):
            name = ""  # a short option, which ends the values of the one before
        elif name and not told[name]:
            told[name] = word
        elif name and not word.startswith("-"):
            told[name] += " " + word
    return {name: "(hidden)" if value and SECRET.search(name) else value for name, value in told.items()}


def secret(argv: list[str], name: str) -> str:
    """The value of a secret argument, for use on the host alone."""
    for place, word in enumerate(argv):
        option, sign, value = word.partition("=")
        if option.replace("_", "-") != "--" + name:
            continue
        if sign:
            return value
        if place + 1 < len(argv):
            return argv[place + 1]
    return ""


# sockets ---------------------------------------------------------------------------------------------------------


def inodes(pids: list[int]) -> set[str]:
    """Inodes of the sockets that these processes hold."""
    held = set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            target = link(folder + "/" + name)
            if target.startswith("socket:["):
                held.add(target[8:-1])
    return held


def listening_tcp(pids: list[int]) -> list[tuple[str, int]]:
    """(address, port) on which these processes listen, in the order of the ports."""
    held, found = inodes(pids), set()
    for pid in pids[:1]:
        for name in ("tcp", "tcp6"):
            for row in read(f"/proc/{pid}/net/{name}", 1 << 24).decode("ascii", "replace").splitlines()[1:]:
                fields = row.split()
                if len(fields) > 9 and fields[3] == LISTEN_TCP and fields[9] in held:
                    address, port = fields[1].split(":")
                    found.add((_address(address), int(port, 16)))
    return sorted(found, key=lambda pair: pair[1])


def _address(text: str) -> str:
    """An address of /proc/net/tcp as one to connect to: of "any" it is the loopback one."""
    if len(text) == 8:
        parts = [str(int(text[i : i + 2], 16)) for i in (6, 4, 2, 0)]
        return "127.0.0.1" if parts == ["0"] * 4 else ".".join(parts)
    words = [text[i : i + 8] for i in range(0, 32, 8)]
    if set(text) == {"0"}:
        return "127.0.0.1"  # [::] takes both kinds
    if words[:2] == ["00000000", "00000000"] and words[2].upper() == "FFFF0000":
        return _address(words[3])
    hexes = "".join("".join(word[i : i + 2] for i in (6, 4, 2, 0)) for word in words).lower()
    return ":".join(hexes[i : i + 4] for i in range(0, 32, 4))


def pid_of_port(port: int, known: dict[int, Process]) -> int | None:
    """The topmost process that listens on a port."""
    wanted = f"{port:04X}"
    inode = set()
    for name in ("tcp", "tcp6"):
        for row in read("/proc/net/" + name, 1 << 24).decode("ascii", "replace").splitlines()[1:]:
            fields = row.split()
            if len(fields) > 9 and fields[3] == LISTEN_TCP and fields[1].split(":")[1] == wanted:
                inode.add(fields[9])
    holders = [pid for pid in sorted(known) if inode and inodes([pid]) & inode]
    return next((pid for pid in holders if known[pid].ppid not in holders), None)


def listening_unix(pids: list[int]) -> list[str]:
    """Paths of the unix sockets on which these processes listen."""
    held, found = inodes(pids), []
    for pid in pids[:1]:
        for row in read(f"/proc/{pid}/net/unix", 1 << 24).decode("utf-8", "replace").splitlines()[1:]:
            fields = row.split(None, 7)
            if len(fields) == 8 and int(fields[3], 16) & LISTEN_UNIX and fields[6] in held:
                found.append(fields[7])
    return found
