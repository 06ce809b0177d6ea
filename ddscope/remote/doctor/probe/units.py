"""A systemd unit: what the manager has loaded, the files it was read from, and backups that lie beside them."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from typing import Any

from ddscope.remote.doctor.probe import secret
from ddscope.remote.doctor.probe.commands import read, tool

PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,FragmentPath,DropInPaths,NeedDaemonReload,MainPID,NRestarts,ExecStart,Environment,"
    "EnvironmentFiles,WorkingDirectory,User,ExecMainStartTimestamp,UnitFileState"
)
_BACKUP = re.compile(
    r"(\.|-|_)(bak|backup|orig|original|old|save|saved|prev|dist|disabled|rpmsave|dpkg-old)[\w.-]*$|~$", re.I
)


def unit(name: str, user: bool) -> dict[str, Any]:
    """{unit, shown {property: value}, files [{path, text, mtime, sha256}], backups [also `of`]}, or {unit, why}."""
    manager = ["systemctl", "--user"] if user else ["systemctl"]
    out, why = tool([*manager, "show", "--no-pager", "-p", PROPERTIES, "--", name])
    if why:
        return {"unit": name, "why": why}
    shown: dict[str, str] = {}
    for line in out.splitlines():
        key, _, value = line.partition("=")
        shown[key] = value if key not in shown else shown[key] + "\n" + value
    if shown.get("LoadState") == "not-found":
        return {"unit": name, "why": "there is no unit of this name"}
    told = {key: secret.text(value) for key, value in shown.items()}
    paths = [path for path in [shown.get("FragmentPath", ""), *shown.get("DropInPaths", "").split()] if path]
    files = [row for row in (_file(path) for path in paths) if row is not None]
    return {"unit": name, "user": user, "shown": told, "files": files, "backups": _backups(paths)}


def _file(path: str) -> dict[str, Any] | None:
    data = read(path)
    if data is None:
        return None
    return {
        "path": path,
        "text": secret.text(data.decode("utf-8", "replace")),
        "mtime": os.stat(path).st_mtime,
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _backups(paths: list[str]) -> list[dict[str, Any]]:
    """Files beside a unit's own that are named like a copy of one of them."""
    found: list[dict[str, Any]] = []
    for path in paths:
        folder, name = os.path.split(path)
        for other in sorted(glob.glob(os.path.join(glob.escape(folder), glob.escape(os.path.splitext(name)[0]) + "*"))):
            if other in paths or not _BACKUP.search(other) or not os.path.isfile(other):
                continue
            row = _file(other)
            if row is not None and len(found) < 12:
                found.append(dict(row, of=path))
    return found
