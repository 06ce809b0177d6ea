"""Installed packages: versions, and which files differ from what their wheel's RECORD says. Nothing is imported."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
from importlib import metadata
from typing import Any

from ddscope.remote.doctor.probe.commands import named, tool

MATTER = re.compile(
    r"^(sglang.*|sgl-.*|vllm.*|torch.*|triton.*|flashinfer.*|flash-.*"
    r"|nvidia-(cudnn|cublas|nccl|cuda-runtime|cuda-nvrtc|nvshmem|cutlass).*|transformers|tokenizers|numpy|ddscope.*|xgrammar|outlines.*|llguidance|cuda-python|cuda-bindings"
    r"|deep-gemm|quack-kernels|apache-tvm-ffi|tilelang|mooncake.*|nixl.*|numba|av|decord2?|soundfile|compressed-tensors"
    r"|orjson|msgspec|pyzmq|fastapi|uvicorn|uvloop|py-spy|kernels|humming-kernels|setproctitle)$"
)
"""Packages whose version can explain how a server behaves."""
HASHED = 4 << 20
"""Files up to this size are hashed; of bigger ones (compiled kernels) the size is compared."""
SOURCE = (".py", ".pyi", ".json", ".txt", ".cu", ".cuh", ".h", ".cpp", ".jinja", ".toml", ".yaml", ".yml", ".md", ".sh")
_LEFT_OUT = re.compile(r"(^|/)__pycache__(/|$)|\.py[co]$")


def normal(name: str) -> str:
    """A distribution's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, metadata.Distribution]:
    """Distributions by normal name; the first on the path wins, as for imports."""
    found: dict[str, metadata.Distribution] = {}
    for dist in metadata.distributions():
        try:
            name = dist.metadata["Name"]
        except Exception:
            continue
        if name:
            found.setdefault(normal(name), dist)
    return found


def versions(dists: dict[str, metadata.Distribution]) -> dict[str, str]:
    """Versions of the packages that matter."""
    return {name: str(dist.version) for name, dist in sorted(dists.items()) if MATTER.match(name)}


def unmet(dists: dict[str, metadata.Distribution], name: str) -> list[dict[str, str]]:
    """Pins (`==`) of a distribution that what is installed does not meet: [{package, wanted, version}]."""
    if name not in dists:
        return []
    found = []
    for line in dists[name].requires or []:
        pin = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?==\s*([^;,\s)*]+)\)?", line.strip())
        have = dists.get(normal(pin[1])) if pin else None
        # What follows a plus says which build it is; a pin without it takes any.
        if pin and have is not None and have.version != pin[2] and have.version.partition("+")[0] != pin[2]:
            found.append({"package": normal(pin[1]), "wanted": pin[2], "version": str(have.version)})
    return found


def skew(dist: metadata.Distribution, name: str) -> dict[str, Any]:
    """Files of a distribution that differ from its RECORD.

    root: the folder that paths are relative to. differ: [{path, change, sha256?, size?, record?}], `change` is changed,
    missing or added (files beside ours that no RECORD names). checked: files looked at; sized: those of them whose
    size alone was compared. why: the sentence, where nothing could be compared.
    """
    root = str(dist.locate_file(""))
    told = {"package": name, "version": str(dist.version), "root": root, "checked": 0, "sized": 0, "differ": []}
    editable = _editable(dist)
    if editable:
        told["root"] = _package_root(name) or root
        return dict(
            told,
            editable=editable,
            why="installed from a folder, so there is no list to compare with",
            **_git(editable),
        )
    listed = dist.read_text("RECORD")
    if not listed:
        return dict(told, why="it has no RECORD: it was not installed from a wheel")
    differ: list[dict[str, Any]] = []
    known, tops = set(), set()
    sized = checked = 0
    for path, want, size in _rows(listed):
        known.add(path)
        if path.startswith("..") or os.path.isabs(path) or _LEFT_OUT.search(path) or not want:
            continue
        if "/" in path and not path.split("/", 1)[0].endswith((".dist-info", ".data")):
            tops.add(path.split("/", 1)[0])
        checked += 1
        found = _compare(os.path.join(root, path), want, size)
        sized += not found.pop("hashed")
        if found:
            differ.append(dict(found, path=path, record=want))
    for top in sorted(tops):
        strange = [path for path in _walk(root, top) if path not in known]
        differ += [{"path": path, "change": "added", **_digest(os.path.join(root, path))} for path in strange]
    told["installed"] = _installed(dist)
    return dict(told, checked=checked, sized=sized, differ=sorted(differ, key=lambda row: str(row["path"])))


def _installed(dist: metadata.Distribution) -> float | None:
    """When it was installed, in seconds since the epoch, by its list."""
    for file in dist.files or []:
        if file.name == "RECORD" and ".dist-info" in str(file.parent):
            try:
                return os.stat(str(dist.locate_file(file))).st_mtime
            except OSError:
                return None
    return None


def _rows(listed: str) -> list[tuple[str, str, int | None]]:
    """(path, sha256 in urlsafe base64 or "", size) of a RECORD."""
    rows: list[tuple[str, str, int | None]] = []
    for row in csv.reader(io.StringIO(listed)):
        if len(row) == 3 and row[0]:
            method, _, digest = row[1].partition("=")
            rows.append((row[0], digest if method == "sha256" else "", int(row[2]) if row[2].isdigit() else None))
    return rows


def _compare(path: str, want: str, size: int | None) -> dict[str, Any]:
    """{} and `hashed`, or what is different."""
    try:
        real = os.path.getsize(path)
    except OSError:
        return {"change": "missing", "hashed": True}
    if real > HASHED and size is not None:
        return {"hashed": False} if real == size else {"change": "changed", "size": real, "hashed": False}
    digest = _digest(path)
    if digest.get("sha256") == want:
        return {"hashed": True}
    return dict(digest, change="changed", hashed=True)


def _digest(path: str) -> dict[str, Any]:
    """sha256 as a RECORD writes it, and size; `error` where the file cannot be read."""
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
                size += len(block)
        mtime = int(os.stat(path).st_mtime)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"sha256": base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode(), "size": size, "mtime": mtime}


def _walk(root: str, top: str) -> list[str]:
    """Files under root/top, relative to root, without what Python compiles by itself."""
    found = []
    for folder, folders, names in os.walk(os.path.join(root, top)):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if not _LEFT_OUT.search(path):
                found.append(path)
    return found


def _editable(dist: metadata.Distribution) -> str | None:
    """The folder of an editable installation."""
    try:
        url = json.loads(dist.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    if isinstance(url, dict) and isinstance(url.get("dir_info"), dict) and url["dir_info"].get("editable"):
        return re.sub(r"^file://", "", str(url.get("url", ""))) or None
    return None


def _package_root(name: str) -> str | None:
    """The folder that holds a package, without importing it."""
    try:
        spec = importlib.util.find_spec(name.replace("-", "_"))
    except (ImportError, ValueError):
        return None
    return os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else None


def _git(folder: str) -> dict[str, Any]:
    """Commit and changed files of a checkout."""
    where = ["git", "-c", "safe.directory=*", "--no-optional-locks", "-C", folder]
    commit, why = tool([*where, "rev-parse", "HEAD"])
    if why:
        return {}
    changed, _ = tool([*where, "status", "--porcelain", "--untracked-files=no"])
    return named({"commit": commit.strip(), "git": changed.splitlines()[:200]})
