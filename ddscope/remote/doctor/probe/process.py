"""The server's process: command line, environment and what it answers about its settings. Looked at, never touched."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from typing import Any

from ddscope.remote.doctor.probe import secret
from ddscope.remote.doctor.probe.commands import named, read

_LIMIT = 16 << 20


def environment(pid: int | None) -> dict[str, str]:
    """Variables of a process as it was started; {} when they cannot be read."""
    data = read(f"/proc/{pid}/environ") if pid else None
    pairs = (item.partition("=") for item in os.fsdecode(data or b"").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def command(pid: int | None) -> list[str]:
    """Command line of a process; [] when it cannot be read."""
    data = read(f"/proc/{pid}/cmdline") if pid else None
    return list(os.fsdecode(data or b"").split("\0")[:-1])


def started(pid: int) -> float | None:
    """When a process began, in seconds since the epoch."""
    stat, boot = read(f"/proc/{pid}/stat"), read("/proc/stat")
    if stat is None or boot is None:
        return None
    since = re.search(rb"^btime (\d+)", boot, re.M)
    fields = stat.rpartition(b")")[2].split()
    if since is None or len(fields) < 20:
        return None
    return int(since[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def process(pid: int) -> dict[str, Any]:
    """{pid, argv, env, cwd, started}; `why` where it cannot be looked at."""
    argv = command(pid)
    if not argv:
        gone = not os.path.exists(f"/proc/{pid}")
        return {"pid": pid, "why": "it is gone" if gone else "its command line cannot be read"}
    told: dict[str, Any] = {"pid": pid, "argv": secret.arguments(argv), "started": started(pid)}
    try:
        told["cwd"] = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        told["cwd"] = None
    variables = environment(pid)
    told["shadows"] = shadows(argv, told["cwd"], variables.get("PYTHONPATH", ""))
    if variables:
        told["env"] = secret.environment(variables)
    else:
        told["why"] = "its environment cannot be read: look as its user or as root"
    return named(told)


def shadows(argv: list[str], cwd: str | None, path: str) -> list[str]:
    """Folders from which a server takes its package instead of from where it is installed.

    With `-m` or `-c` that is the folder it was started in, before all of PYTHONPATH.
    """
    folders = [cwd] if cwd and {"-m", "-c"} & set(argv[1:6]) else []
    folders += [os.path.join(cwd or "/", entry) for entry in path.split(os.pathsep) if entry]
    return [
        os.path.join(folder, name)
        for folder in folders
        for name in ("sglang", "vllm", "torch")
        if os.path.exists(os.path.join(folder, name, "__init__.py")) and "-packages" not in folder
    ]


def server_info(port: int, host: str, key: str | None, seconds: float = 5.0) -> dict[str, Any]:
    """{settings} as a server on this machine tells them, or {why}. One request, two for an old server."""
    why = ""
    # Proxies of the environment are for the outside, and would see the key.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ("/server_info", "/get_server_info"):
        url = "http://{}:{}{}".format(f"[{host}]" if ":" in host else host, port, path)
        request = urllib.request.Request(url, headers={"Authorization": "Bearer " + key} if key else {})
        try:
            with opener.open(request, timeout=seconds) as answer:
                value = json.loads(answer.read(_LIMIT).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            why = f"{url} answers {error.code}"
            if error.code == 404:
                continue
        except (OSError, ValueError) as error:
            why = "{}: {}".format(url, getattr(error, "reason", None) or error or type(error).__name__)
        else:
            if isinstance(value, dict):
                return {"url": url, "settings": secret.settings(value)}
            why = f"{url} tells no settings"
        return {"why": why}
    return {"why": why}


def option(argv: list[str], name: str) -> str | None:
    """Value of `--name` on a command line."""
    for index, word in enumerate(argv):
        if word == name and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
    return None
