"""The hooks' wheel in an environment without pip: unpacked with a RECORD, and removed by it. And what is installed."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import sys
import sysconfig
import zipfile
from importlib import metadata
from typing import Any

NAME = "ddscope-hooks"
FOLDER = "ddscope_hooks"
GROUP = "sglang.srt.plugins"


def purelib() -> str:
    """Where packages without compiled code go."""
    return sysconfig.get_path("purelib")


def pip() -> str | None:
    """Version of pip here; None where there is none."""
    if importlib.util.find_spec("pip") is None:
        return None
    try:
        return metadata.version("pip")
    except metadata.PackageNotFoundError:
        return None


def externally_managed() -> bool:
    """Whether pip refuses to install here unless it is told to (PEP 668); a virtual environment is never managed."""
    return sys.prefix == sys.base_prefix and os.path.exists(
        os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    )


def holders() -> list[dict[str, Any]]:
    """Distributions that bring the hooks: [{name, version, installer, whole}]; whole: files are as in the RECORD."""
    found = []
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name in (NAME, "ddscope"):
            installer = (dist.read_text("INSTALLER") or "").strip()
            found.append({"name": name, "version": dist.version, "installer": installer, "whole": _whole(dist)})
    return found


def plugins() -> list[str]:
    """Names in SGLang's group of entry points."""
    found = []
    for dist in metadata.distributions():
        found += [point.name for point in dist.entry_points if point.group == GROUP]
    return sorted(set(found))


def unpack(wheel: str) -> list[str]:
    """Install a wheel of pure Python by hand; returns what was written, relative to `purelib`. Never over a file."""
    root, written = purelib(), []
    with zipfile.ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        for name in names:
            if name.startswith("/") or ".." in name.split("/") or os.path.lexists(os.path.join(root, name)):
                raise ValueError(f"{name} is in the way")
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = archive.read(record).decode()
        installer = os.path.dirname(record) + "/INSTALLER"
        rows = rows.replace(record + ",,", f"{installer},{_digest(b'ddscope')},7\n{record},,")
        for name in names:
            data = rows.encode() if name == record else archive.read(name)
            _write(os.path.join(root, name), data)
            written.append(name)
        _write(os.path.join(root, installer), b"ddscope")
    return [*written, installer]


def remove() -> list[str]:
    """Remove what the RECORD of the hooks lists, and what Python compiled beside it. Raises ValueError when strange."""
    root, removed = purelib(), []
    for dist in metadata.distributions(path=[root]):
        if (dist.metadata["Name"] or "").lower().replace("_", "-") != NAME:
            continue
        for row in csv.reader(io.StringIO(dist.read_text("RECORD") or "")):
            top = row[0].split("/", 1)[0] if row else ""
            if not row or ".." in row[0].split("/") or not top.startswith(FOLDER):
                raise ValueError(f"its RECORD lists {row[:1]}, which is not of the hooks")
            path = os.path.join(root, row[0])
            if os.path.lexists(path):
                os.unlink(path)
                removed.append(row[0])
    return removed + sweep()


def sweep() -> list[str]:
    """Byte code and empty folders that a removed package leaves behind; nothing else is touched."""
    top, removed = os.path.join(purelib(), FOLDER), []
    for name in [FOLDER, *_infos()]:
        top = os.path.join(purelib(), name)
        for folder, _, names in os.walk(top, topdown=False):
            for one in names:
                if one.endswith((".pyc", ".pyo")) and os.path.basename(folder) == "__pycache__":
                    os.unlink(os.path.join(folder, one))
                    removed.append(os.path.relpath(os.path.join(folder, one), purelib()))
            try:
                os.rmdir(folder)
            except OSError:
                continue  # something is in it that is not ours to remove
    return removed


def _infos() -> list[str]:
    return [name for name in os.listdir(purelib()) if name.startswith(FOLDER + "-") and name.endswith(".dist-info")]


def _whole(dist: metadata.Distribution) -> bool:
    for row in csv.reader(io.StringIO(dist.read_text("RECORD") or "")):
        if len(row) == 3 and row[1].startswith("sha256=") and not row[0].startswith(".."):
            try:
                with open(str(dist.locate_file(row[0])), "rb") as file:
                    if _digest(file.read()) != row[1]:
                        return False
            except OSError:
                return False
    return True


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(number, "wb") as file:
        file.write(data)
