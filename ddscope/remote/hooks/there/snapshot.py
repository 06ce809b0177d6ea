"""An environment as a list of files and one hash of all of it: names, modes, contents."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BIG = 4 << 20
"""With `quick`, of files above this size (in bytes) size and time of change stand for the content."""
SHOWN = 200


def roots() -> list[str]:
    """Folders of the environment: all of a virtual one; of a system's Python the folders of packages."""
    if sys.prefix != sys.base_prefix or os.path.exists(os.path.join(sys.prefix, "conda-meta")):
        return [sys.prefix]
    return sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")})


def take(quick: bool) -> dict[str, Any]:
    """{hash, code, files, bytes, entries {path: line}}: `code` is the hash without what Python compiles by itself."""
    paths = [path for root in roots() for path in _walk(root)]
    total = 0
    with ThreadPoolExecutor(4) as pool:
        lines = dict(zip(paths, pool.map(lambda path: _line(path, quick), paths)))  # noqa: B905 (Python 3.8)
    for path in paths:
        try:
            total += os.lstat(path).st_size
        except OSError:
            continue
    plain = {path: line for path, line in lines.items() if not compiled(path)}
    return {
        "hash": _sum(lines),
        "code": _sum(plain),
        "files": len(lines),
        "bytes": total,
        "entries": lines,
        "quick": quick,
    }


def compiled(path: str) -> bool:
    """Whether Python makes this file (or folder of files) by itself."""
    return path.endswith((".pyc", ".pyo")) or os.path.basename(path) == "__pycache__"


def save(taken: dict[str, Any], path: str) -> None:
    """Write a snapshot."""
    with gzip.open(path, "wt", encoding="ascii") as file:
        json.dump(taken, file)
    os.chmod(path, 0o600)


def load(path: str) -> dict[str, Any] | None:
    """A snapshot that was saved; None where there is none."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            taken = json.load(file)
    except (OSError, ValueError, EOFError):
        return None
    return taken if isinstance(taken, dict) else None


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[list[str]]:
    """[change, path] between two snapshots, source first."""
    was, now = before["entries"], after["entries"]
    rows = [["added", path] for path in now if path not in was]
    rows += [["removed", path] for path in was if path not in now]
    rows += [["changed", path] for path in now if path in was and was[path] != now[path]]
    return sorted(rows, key=lambda row: (compiled(row[1]), row[1]))[:SHOWN]


def _walk(root: str) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        found += [os.path.join(folder, name) for name in sorted(names)]
        found += [os.path.join(folder, name) for name in folders]
    return found


def _line(path: str, quick: bool) -> str:
    """Mode and content of one path as text."""
    try:
        info = os.lstat(path)
        kind = f"{stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid}"
        if stat.S_ISLNK(info.st_mode):
            return f"{kind} -> {os.readlink(path)}"
        if not stat.S_ISREG(info.st_mode):
            return kind
        if quick and info.st_size > BIG:
            return f"{kind} {info.st_size} {info.st_mtime_ns}"
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        return f"! {error.strerror or error}"
    return f"{kind} {digest.hexdigest()}"


def _sum(lines: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(lines):
        digest.update(f"{path}\0{lines[path]}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
