"""Stacks of a server's Python processes by py-spy, which is never allowed to stop them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from ddscope.remote.there import procs

TIMEOUT_S = 20.0
MODE = "py-spy --nonblocking"


def find(python: str) -> str:
    """py-spy of the server's environment, else of this user's PATH; "" where there is none."""
    beside = os.path.join(os.path.dirname(python), "py-spy") if python else ""
    if beside and os.access(beside, os.X_OK):
        return beside
    return shutil.which("py-spy") or ""


def dump(py_spy: str, pids: list[int]) -> tuple[list[dict[str, Any]], list[str]]:
    """(stacks, problems): one a Python process. A process that is no Python is left out."""
    told, problems = [], []
    for pid in pids:
        one = procs.process(pid)
        if one is None or one.state == "Z":
            continue
        threads, problem = _dump(py_spy, pid)
        if threads is not None:
            told.append({"pid": pid, "process": one.title, "mode": MODE, "threads": threads})
        elif problem:
            problems.append(f"pid {pid} {one.title}: {problem}")
    return told, problems


def _dump(py_spy: str, pid: int) -> tuple[list[dict[str, Any]] | None, str]:
    problem = ""
    for _ in range(2):  # unstopped, a process may change while it is read
        try:
            done = subprocess.run(
                [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return None, f"py-spy: {error}"
        if done.returncode == 0:
            try:
                return [_thread(one) for one in json.loads(done.stdout)], ""
            except (ValueError, KeyError, TypeError) as error:
                return None, f"py-spy printed something else than stacks: {error}"
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        if "python version" in said or "not a python" in said.lower():
            return None, ""
        problem = said[-300:]
        if "ermission" in said:
            return None, "py-spy may not look into it: connect as its user or as root"
    return None, problem


def _thread(one: dict[str, Any]) -> dict[str, Any]:
    frames = [f"{f['name']} ({f.get('filename') or f.get('short_filename')}:{f['line']})" for f in one["frames"]]
    told = {"id": one.get("os_thread_id") or one["thread_id"], "frames": frames, "active": bool(one.get("active"))}
    if one.get("thread_name"):
        told["name"] = one["thread_name"]
    if one.get("owns_gil"):
        told["gil"] = True
    return told
