"""Which servers of language models a host has: units, processes, ports, arguments, Python, packages. One look."""

from __future__ import annotations

import glob
import json
import os
import re
import stat
from typing import Any

from ddscope.remote.there import containers, procs, units

PORTS = {"sglang": 30000, "vllm": 8000}
PACKAGES = re.compile(
    r"(sglang|vllm|torch|triton|transformers|flashinfer(_python|_cubin)?|sgl_kernel|sglang_kernel|ddscope|xgrammar|numpy)$"
)


def kind_of(one: procs.Process) -> str:
    """`sglang`, `vllm`, or "" for another process."""
    words = one.argv
    if not words:
        return ""
    for kind in ("sglang", "vllm"):
        if words[0].lower().startswith(kind + "::"):
            return kind
    program = os.path.basename(procs.link(f"/proc/{one.pid}/exe") or words[0])
    if not (program.startswith("python") or program in ("sglang", "vllm")):
        return ""  # a shell, a container's client, ssh: it only names a server
    for place, word in enumerate(words):
        if word == "sglang.launch_server" or word.endswith("sglang/launch_server.py"):
            return "sglang"
        if word.startswith("vllm.entrypoints.") and word.endswith("server"):
            return "vllm"
        base = "vllm" if word == "vllm.entrypoints.cli.main" else os.path.basename(word)
        if base in ("sglang", "vllm") and words[place + 1 : place + 2] == ["serve"]:
            return base
    return ""


def roots(known: dict[int, procs.Process]) -> list[int]:
    """Servers: processes of a kind that no other one started; the script, where a script started the workers."""
    kinds = {pid for pid, one in known.items() if kind_of(one)}
    found = []
    for pid in sorted(kinds):
        above, above_all = known[pid].ppid, set()
        while above in known and above not in above_all:
            above_all.add(above)
            above = known[above].ppid
        if not above_all & kinds:
            script = known.get(known[pid].ppid) if "::" in known[pid].title else None
            found.append(script.pid if script is not None and _is_python(script) else pid)
    return list(dict.fromkeys(found))


def _is_python(one: procs.Process) -> bool:
    return os.path.basename(procs.link(f"/proc/{one.pid}/exe")).startswith("python")


# one server ------------------------------------------------------------------------------------------------------


def describe(root: int, known: dict[int, procs.Process], unit: str = "", port: int = 0) -> dict[str, Any]:
    """What is known of the server whose first process is `root`."""
    family = procs.tree(root, known)
    pids = [one.pid for one in family]
    main = next((one for one in family if kind_of(one)), family[0])
    kind = kind_of(main)
    program, container = containers.of(root)
    own, user = units.unit_of(root)
    if container and not own:
        own, user = units.unit_of(containers.client(main, known) or root)
    if unit and unit != own:
        user = ""
    args = procs.arguments(main.argv)
    listening = procs.listening_tcp(pids)
    address, chosen = _port(kind, args, listening, procs.listening_tcp([root]), port)
    if containers.apart(root):
        address, chosen = containers.outside(root, chosen, known) or (address, chosen)
    python = python_of(family)
    told = {
        "kind": kind,
        "unit": unit or own,
        "user_unit": user,
        "container": f"{program} {container}" if container else "",
        "log_command": f"{program} logs -f {container}" if container else "",
        "pid": root,
        "start": known[root].start,
        "started": procs.started(known[root]),
        "address": address,
        "port": chosen,
        "listening": [list(pair) for pair in listening],
        "args": args,
        "algorithm": algorithm(args),
        "python": python,
        "packages": packages(main.pid, python),
        "processes": [{"pid": one.pid, "ppid": one.ppid, "name": one.title} for one in family],
        "sockets": hook_sockets(pids),
    }
    told = {name: value for name, value in told.items() if value not in ("", None, 0)}
    return dict(told, user_id=units.id_of(user)) if user else told


def algorithm(args: dict[str, str]) -> str:
    """What the arguments call the speculation: SGLang's algorithm, the method in vLLM's JSON."""
    for name in ("speculative-algorithm", "speculative-algo"):
        if name in args:
            return args[name]
    told = args.get("speculative-config", "")
    try:
        value = json.loads(told) if told.startswith("{") else {}
    except ValueError:
        return ""
    method = value.get("method", "draft_model" if "model" in value else "") if isinstance(value, dict) else ""
    return method if isinstance(method, str) else ""


def _port(
    kind: str, args: dict[str, str], listening: list[tuple[str, int]], own: list[tuple[str, int]], wanted: int
) -> tuple[str, int]:
    """(address, port) where requests go: as asked, as in the arguments, else the lowest of its first process's own."""
    said = args.get("port", "")
    number = wanted or (int(said) if said.isdigit() else 0)
    for address, port in listening:
        if port == number or (not number and port == PORTS.get(kind)):
            return address, port
    if not number and (own or listening):
        return (own or listening)[0]
    host = args.get("host", "")
    usable = host if host and host not in ("0.0.0.0", "::", "localhost") else "127.0.0.1"
    return usable, number or PORTS.get(kind, 0)


def python_of(family: list[procs.Process]) -> str:
    """The Python that runs the server, as its environment is entered; "" when that cannot be told."""
    for one in family:
        if not os.path.basename(procs.link(f"/proc/{one.pid}/exe")).startswith("python"):
            continue
        first = one.argv[0] if one.argv else ""
        if first.startswith("/") and os.path.exists(f"/proc/{one.pid}/root{first}"):
            return first
        venv = procs.environ(one.pid).get("VIRTUAL_ENV", "")
        if venv:
            return venv + "/bin/python"
        for folder in procs.environ(one.pid).get("PATH", "").split(":"):
            if first and folder.startswith("/") and os.path.exists(f"/proc/{one.pid}/root{folder}/{first}"):
                return folder + "/" + first
        return procs.link(f"/proc/{one.pid}/exe")
    return ""


def packages(pid: int, python: str) -> dict[str, str]:
    """Versions of the packages that matter, by the folders that the process or its Python uses."""
    prefix = os.path.dirname(os.path.dirname(python)) if python else ""
    patterns = ["lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"]
    folders = [folder for pattern in patterns for folder in glob.glob(f"/proc/{pid}/root{prefix}/{pattern}")]
    maps = procs.read(f"/proc/{pid}/maps", 1 << 24).decode("utf-8", "replace")
    loaded = sorted(set(re.findall(r" (/\S*?/(?:site|dist)-packages)/", maps)))
    folders += [f"/proc/{pid}/root{path}" for path in loaded]
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                package, _, version = name[:-10].rpartition("-")
                if PACKAGES.match(package):
                    found.setdefault(package, version)
    return dict(sorted(found.items()))


def hook_sockets(pids: list[int]) -> list[str]:
    """Sockets of ddscope's hooks in these processes, by what DDSCOPE says in their environment.

    A socket is bound under another name and renamed, so the kernel does not tell which of them it is: its file does.
    """
    # A worker that names itself overwrites its environment as seen from outside: any process of the server will do.
    targets = {target.strip() for pid in pids for target in procs.environ(pid).get("DDSCOPE", "").split(",")}
    paths = sorted(target[5:] for target in targets if target.startswith("unix:/"))
    found: dict[str, None] = {}
    if not paths or not any(procs.listening_unix([pid]) for pid in pids):
        return []
    for pid in pids:  # who listens may be another process than the one that is named: the hooks' own relay
        for path in paths:
            pattern = glob.escape(path.replace("%p", str(pid))).replace("%r", "[!.]*")
            for root in ("", f"/proc/{pid}/root"):  # a container's own files are reached through its process
                sockets = [name for name in sorted(glob.glob(root + pattern)) if _is_socket(name)]
                found.update(dict.fromkeys(sockets))
                if sockets:
                    break
    return list(found)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


# the host --------------------------------------------------------------------------------------------------------


def look(unit: str = "", pid: int = 0, port: int = 0) -> dict[str, Any]:
    """Servers of this host, or the one that was named; units that would serve and do not run; problems as sentences."""
    known = procs.processes()
    servers, problems = [], []
    idle: list[tuple[dict[str, str], str]] = []
    if unit:
        unit = units.full_name(unit)
        state, user = units.find(unit)
        root = int(state.get("MainPID") or 0)
        if root in known:
            servers.append(describe(inside(root, known), known, unit, port))
        elif state.get("LoadState") == "not-found":
            problems.append(f"systemd knows no unit {unit}")
        else:
            idle.append((dict(state, Id=state.get("Id") or unit), user))
    elif pid:
        if pid in known:
            servers.append(describe(pid, known, "", port))
        else:
            problems.append(f"there is no process {pid}")
    elif port:
        servers = _by_port(port, known)
        if not servers:
            problems.append(f"nobody listens on port {port}")
    else:
        servers = [describe(root, known) for root in roots(known)]
        running = {(server.get("unit"), server.get("user_unit", "")) for server in servers}
        for name, user in units.that_serve():
            if (name, user) not in running:
                state = units.state_of(name, user)
                idle.append((dict(state, Id=state.get("Id") or name), user))
    return {
        "host": os.uname().nodename,
        "boot_id": procs.read("/proc/sys/kernel/random/boot_id").decode().strip(),
        "machine": os.uname().machine,
        "uid": os.geteuid(),
        "systemd": os.path.isdir("/run/systemd/system"),
        "servers": servers,
        "idle": [_idle(state, user) for state, user in idle],
        "problems": problems,
    }


def _idle(state: dict[str, str], user: str) -> dict[str, Any]:
    told: dict[str, Any] = {"unit": state.get("Id", ""), "state": state.get("ActiveState", "")}
    return dict(told, user_unit=user, user_id=units.id_of(user)) if user else told


def _by_port(port: int, known: dict[int, procs.Process]) -> list[dict[str, Any]]:
    """Servers that listen on a port of this host, or in a container at that port, or publish it, or were asked to."""
    found = roots(known)
    here = [root for root in found if port in [number for _, number in procs.listening_tcp(_pids(root, known))]]
    if here:
        return [describe(root, known, "", port) for root in here]
    apart = [root for root in found if containers.apart(root)]
    shown = [root for root in apart if port in [outer for _, outer in containers.published(root, known).values()]]
    if shown:
        return [describe(root, known) for root in shown]
    named = [root for root in found if procs.arguments(known[root].argv).get("port") == str(port)]
    if named:
        return [describe(root, known, "", port) for root in named]
    holder = procs.pid_of_port(port, known)
    if not holder:
        return []
    first = containers.behind(holder, known)
    return [describe(first, known, "", port if first == holder else 0)]


def inside(root: int, known: dict[int, procs.Process]) -> int:
    """The server in the container whose `docker run` is a unit's main process; the process itself for any other."""
    for server in roots(known):
        if containers.of(server)[1] and containers.client(known[server], known) == root:
            return server
    return root


def _pids(root: int, known: dict[int, procs.Process]) -> list[int]:
    return [one.pid for one in procs.tree(root, known)]
