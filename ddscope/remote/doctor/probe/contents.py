"""Text of the files that differ, of backups beside them, and of the file that defines the algorithms."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from typing import Any

from ddscope.remote.doctor.probe.commands import read
from ddscope.remote.doctor.probe.packages import SOURCE

ONE = 1 << 20
ALL = 12 << 20
ALWAYS = ("sglang/srt/speculative/spec_info.py", "sglang/srt/speculative/spec_registry.py")
BACKUP = re.compile(r"(\.|-|_)(bak|backup|orig|original|old|save|saved|pristine|dist|prev)[\w.-]*$|~$|\.py\.\d+$", re.I)


def gather(skews: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """[{package, path, data (zlib, base64), sha256, backups [{path, sha256, data}]}] in a bounded size."""
    told: list[dict[str, Any]] = []
    left = ALL
    for skew in skews:
        root = str(skew["root"])
        paths = [str(row["path"]) for row in skew["differ"]]
        if skew["package"] == "sglang":
            paths = [path for path in ALWAYS if os.path.exists(os.path.join(root, path))] + paths
        for path in dict.fromkeys(paths):
            if not path.endswith(SOURCE):
                continue
            row = _file(root, path)
            size = len(row.get("data", "")) + sum(len(backup["data"]) for backup in row["backups"])
            if left < size:
                continue
            left -= size
            told.append(dict(row, package=skew["package"]))
    return told


def unpack(data: str) -> str:
    """Text of what `gather` packed."""
    return zlib.decompress(base64.b64decode(data)).decode("utf-8", "replace")


def _file(root: str, path: str) -> dict[str, Any]:
    row = {"path": path, **_packed(os.path.join(root, path)), "backups": []}
    folder, name = os.path.split(os.path.join(root, path))
    try:
        others = sorted(os.listdir(folder))
    except OSError:
        return row
    stem = os.path.splitext(name)[0]
    for other in others:
        beside = other != name and (other.startswith((name, stem + "."))) and BACKUP.search(other)
        if beside and len(row["backups"]) < 8:
            packed = _packed(os.path.join(folder, other))
            if packed:
                row["backups"].append({"path": os.path.join(os.path.dirname(path), other), **packed})
    return row


def _packed(path: str) -> dict[str, Any]:
    data = read(path, ONE + 1)
    if data is None or len(data) > ONE:
        return {}
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return {"sha256": digest, "data": base64.b64encode(zlib.compress(data, 6)).decode()}
