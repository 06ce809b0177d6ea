"""Containers as their host sees them: by cgroup and network namespace. Nothing is run inside of one.

What only a container's own program knows (its published ports) is asked of it once.
"""

from __future__ import annotations

import os
import re
import subprocess

from ddscope.remote.there import procs

ID = "[0-9a-f]{64}"
SCOPE = re.compile(rf"(docker|libpod|libpod-payload|crio|cri-containerd|nerdctl)[-/:]({ID})(?:\.scope)?(?:/|$)")
POD = re.compile(rf"/kubepods\S*/({ID})(?:/|$)")
PROGRAMS = {"libpod": "podman", "libpod-payload": "podman", "crio": "crictl", "cri-containerd": "crictl"}
ANY = ("", "0.0.0.0", "::", "[::]")
CLIENTS = ("docker", "podman", "nerdctl")
SHORT = 12  # digits of an id, as all of these programs print it
_ports: dict[str, dict[int, tuple[str, int]]] = {}


def of(pid: int) -> tuple[str, str]:
    """(program that knows it, id) of the container that a process runs in; ("", "") for none."""
    for path in procs.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines():
        found = SCOPE.search(path)
        if found:
            return PROGRAMS.get(found.group(1), found.group(1)), found.group(2)[:SHORT]
        pod = POD.search(path)
        if pod:
            return "crictl", pod.group(1)[:SHORT]
    return "", ""


def apart(pid: int) -> bool:
    """Whether a process has a network of its own, so that its loopback is not the host's."""
    own, other = procs.link("/proc/self/ns/net"), procs.link(f"/proc/{pid}/ns/net")
    return bool(own and other and own != other)


def addresses(pid: int) -> list[str]:
    """IPv4 addresses of a process's network, loopback left out, in the order of the kernel's table."""
    found, last = [], ""
    for line in procs.read(f"/proc/{pid}/net/fib_trie", 1 << 20).decode("ascii", "replace").splitlines():
        leaf = re.search(r"\|-- (\d+\.\d+\.\d+\.\d+)", line)
        if leaf:
            last = leaf.group(1)
        elif "/32 host LOCAL" in line and last and not last.startswith("127."):
            found.append(last)
    return list(dict.fromkeys(found))


def outside(pid: int, port: int, known: dict[int, procs.Process]) -> tuple[str, int] | None:
    """Where the host reaches a port of a container: as it is published, else at the container's own address."""
    told = published(pid, known).get(port)
    if told is not None:
        return told
    own = addresses(pid)
    return (own[0], port) if own else None


def published(pid: int, known: dict[int, procs.Process]) -> dict[int, tuple[str, int]]:
    """Ports of a container → (address, port) on the host: by docker's proxies, else as its program says."""
    own = addresses(pid)
    found: dict[int, tuple[str, int]] = {}
    for one in known.values():
        words = proxy(one)
        if words.get("container-ip") in own:
            found[int(words["container-port"])] = (_reachable(words["host-ip"]), int(words["host-port"]))
    program, short = of(pid)
    if found or program not in CLIENTS:
        return found
    if short not in _ports:  # one question a container: its ports are set when it is made
        _ports[short] = parse_ports(_ask(program, "port", short))
    return _ports[short]


def proxy(one: procs.Process) -> dict[str, str]:
    """What a docker-proxy forwards: host-ip, host-port, container-ip, container-port; {} for another process."""
    if not one.argv or os.path.basename(one.argv[0]) != "docker-proxy":
        return {}
    words = {one.argv[n].lstrip("-"): one.argv[n + 1] for n in range(1, len(one.argv) - 1)}
    names = ("host-ip", "host-port", "container-ip", "container-port")
    if words.get("proto", "tcp") != "tcp" or not all(name in words for name in names):
        return {}
    if not (words["host-port"].isdigit() and words["container-port"].isdigit()):
        return {}
    return {name: words[name] for name in names}


def behind(pid: int, known: dict[int, procs.Process]) -> int:
    """The first process of the container that a docker-proxy forwards to; the process itself for any other one."""
    words = proxy(known[pid]) if pid in known else {}
    if not words:
        return pid
    inside = [one for one in known.values() if apart(one.pid) and words["container-ip"] in addresses(one.pid)]
    pids = {one.pid for one in inside}
    return min((one.pid for one in inside if one.ppid not in pids), default=pid)


def parse_ports(text: str) -> dict[int, tuple[str, int]]:
    """`8000/tcp -> 0.0.0.0:9000` lines of `docker port` and `podman port`."""
    found: dict[int, tuple[str, int]] = {}
    for inner, address, outer in re.findall(r"^(\d+)/tcp -> (\S+):(\d+)\s*$", text, re.M):
        found.setdefault(int(inner), (_reachable(address), int(outer)))
    return found


def _reachable(address: str) -> str:
    return "127.0.0.1" if address in ANY else address.strip("[]")


def _ask(*words: str) -> str:
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def client(root: procs.Process, known: dict[int, procs.Process]) -> int:
    """The `docker run` that a container's first process was started with, 0 for none: both end in the same words.

    It matters where it runs in a unit: the unit has the container's output, though not its processes.
    """
    best, most = 0, 1
    for one in known.values():
        if not one.argv or os.path.basename(one.argv[0]) not in CLIENTS or "run" not in one.argv:
            continue
        same = 0
        while same < min(len(one.argv), len(root.argv)) and one.argv[-1 - same] == root.argv[-1 - same]:
            same += 1
        if same > most:
            best, most = one.pid, same
    return best
