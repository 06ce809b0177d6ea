"""One operation on an environment, named by the plan; one JSON object comes back: what was done, or `why` not."""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

from ddscope.remote.doctor.probe.commands import plain
from ddscope.remote.hooks.there import packages, restoring, snapshot, state


def main(plan: dict[str, Any]) -> None:
    """plan: {op, …}. No byte code is written; standard input, which is this script, is no place to import from."""
    sys.dont_write_bytecode = True
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]
    os.umask(0o022)
    try:
        told = OPERATIONS[plan["op"]](plan)
    except Exception as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        name = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        told = {"why": name + (why or type(error).__name__)}
    out = json.dumps(plain(told), ensure_ascii=True).encode()
    sys.stdout.buffer.write(out + b"\n")


def _status(plan: dict[str, Any]) -> dict[str, Any]:
    root = packages.purelib()
    return {
        "prefix": sys.prefix,
        "purelib": root,
        "python": sys.version.split()[0],
        "pip": packages.pip(),
        "managed": packages.externally_managed(),
        "writable": os.access(root, os.W_OK),
        "holders": packages.holders(),
        "plugins": packages.plugins(),
        "state": state.folder(),
        "journal": state.journal(),
        "user": os.geteuid(),
    }


def _snapshot(plan: dict[str, Any]) -> dict[str, Any]:
    """save: name to keep it under; against: name of one that was kept."""
    before = None
    if plan.get("against"):
        before = snapshot.load(os.path.join(state.folder(), os.path.basename(plan["against"])))
    taken = snapshot.take(bool(before["quick"] if before is not None else plan.get("quick")))
    told = {key: taken[key] for key in ("hash", "code", "files", "bytes", "quick")}
    told["roots"] = snapshot.roots()
    if plan.get("save"):
        path = os.path.join(state.folder(make=True), os.path.basename(plan["save"]))
        snapshot.save(taken, path)
        told["saved"] = path
    if before is not None:
        told["before"] = {key: before[key] for key in ("hash", "code", "files", "bytes", "quick")}
        told["differences"] = snapshot.differences(before, taken)
    return told


def _keep(plan: dict[str, Any]) -> dict[str, Any]:
    return {"path": state.keep(plan["name"], base64.b64decode(plan["data"]))}


def _note(plan: dict[str, Any]) -> dict[str, Any]:
    state.note(plan["entry"])
    return {"folder": state.folder()}


def _unpack(plan: dict[str, Any]) -> dict[str, Any]:
    return {"written": packages.unpack(plan["wheel"])}


def _remove(plan: dict[str, Any]) -> dict[str, Any]:
    return {"removed": packages.remove()}


def _sweep(plan: dict[str, Any]) -> dict[str, Any]:
    return {"removed": packages.sweep()}


def _restore(plan: dict[str, Any]) -> dict[str, Any]:
    data = base64.b64decode(plan["data"])
    return restoring.restore(plan["root"], plan["path"], plan.get("was"), data, plan["sha256"])


OPERATIONS = {
    "status": _status,
    "snapshot": _snapshot,
    "keep": _keep,
    "note": _note,
    "unpack": _unpack,
    "remove": _remove,
    "sweep": _sweep,
    "restore": _restore,
}
