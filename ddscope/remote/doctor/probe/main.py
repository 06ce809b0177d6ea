"""All of it: from a plan to one JSON object on standard output. A part that fails says so and stops no other."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from ddscope.remote.doctor.probe import calls, commands, contents, loading, machine, packages, process, units

CHECKED = (
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "vllm",
    "ddscope",
    "ddscope-hooks",
    "flashinfer-python",
    "torchcodec",
    "transformers",
)
"""Packages whose files are compared with their RECORD."""


def collect(plan: dict[str, Any]) -> dict[str, Any]:
    """plan: {pid?, unit?, user?, port?, address?, load: bool, load_s, files: bool}. Never raises.

    What comes back: machine, gpu, torch, packages, skew, contents, predicates, calls, loading, process, server_info,
    unit, and `failed` {part: why}.
    """
    told: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def part(name: str, make: Callable[[], Any]) -> Any:
        try:
            told[name] = make()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
        return told.get(name)

    pid, port = plan.get("pid"), plan.get("port")
    environment = process.environment(pid)
    for folder in reversed([entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    dists = packages.installed()
    part("machine", machine.machine)
    part("gpu", machine.gpus)
    part("torch", lambda: machine.torch_build([entry for entry in sys.path if entry]))
    part("packages", lambda: packages.versions(dists))
    part("unmet", lambda: packages.unmet(dists, "sglang"))
    if plan.get("files", True):
        _files(part, dists)
    if plan.get("load", True):
        part("loading", lambda: _loading(dists, environment, float(plan.get("load_s", 60.0))))
    if pid:
        part("process", lambda: process.process(pid))
    if port:
        key = process.option(process.command(pid), "--api-key")
        part("server_info", lambda: process.server_info(port, plan.get("address") or "127.0.0.1", key))
    if plan.get("unit"):
        part("unit", lambda: units.unit(plan["unit"], bool(plan.get("user"))))
    told["failed"] = failed
    return told


def _files(part: Callable[[str, Callable[[], Any]], Any], dists: dict[str, Any]) -> None:
    skews = part("skew", lambda: [packages.skew(dists[name], name) for name in CHECKED if name in dists]) or []
    told = part("contents", lambda: contents.gather(skews)) or []
    root = next((skew["root"] for skew in skews if skew["package"] == "sglang"), None)
    if root is None:
        return
    sources = [contents.unpack(row["data"]) for row in told if row["path"] in contents.ALWAYS and row.get("data")]
    names = part("predicates", lambda: calls.predicates(sources)) or []
    part("calls", lambda: calls.sites(root, "sglang", names))


def _loading(dists: dict[str, Any], environment: dict[str, str], seconds: float) -> list[dict[str, Any]]:
    rows = loading.load(dists, environment, seconds)
    server = next((name for name in ("sglang", "vllm") if name in dists), None)
    where = (str(dists[server].locate_file("")), server) if server else None
    for row in rows:
        if not row["loads"]:
            row["needs"] = loading.needs(dists, row["package"], row["module"], where)
    return rows


def main(plan: dict[str, Any]) -> None:
    """Run it as a script: whatever an import prints goes to standard error."""
    sys.dont_write_bytecode = True
    out = os.dup(1)
    os.dup2(2, 1)
    # Standard input is the script: the folder it happens to run in is no place to import from.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]
    data = json.dumps(commands.plain(collect(plan)), ensure_ascii=True, default=str).encode() + b"\n"
    with os.fdopen(out, "wb") as file:
        file.write(data)
