"""A file of a package put back as its wheel had it, with the one it replaces kept aside."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

from ddscope.remote.hooks.there import state


def restore(root: str, path: str, was: str | None, data: bytes, digest: str) -> dict[str, Any]:
    """Replace root/path by `data`, whole or not at all; mode and owner stay. Raises ValueError, and touches nothing.

    was: sha256 (as a RECORD writes it) of the file that was looked at, None where it was missing; digest: of `data`.
    """
    target = os.path.join(root, path)
    if (
        os.path.isabs(path)
        or ".." in path.split("/")
        or os.path.realpath(target) != os.path.join(os.path.realpath(root), path)
    ):
        raise ValueError(f"{path} leads out of its folder")
    if _hash(data) != digest:
        raise ValueError(f"what came for {path} is damaged")
    here = _read(target)
    if (None if here is None else _hash(here)) != was:
        raise ValueError(f"{path} has changed since it was looked at")
    told: dict[str, Any] = {"path": target}
    mode = 0o644
    if here is not None:
        info = os.stat(target)
        mode = info.st_mode & 0o7777
        name = f"{hashlib.sha256(target.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}-{os.path.basename(path)}"
        told["kept"] = state.keep(f"{name}.{hashlib.sha256(here).hexdigest()[:8]}", here)
        told["owner"] = [info.st_uid, info.st_gid]
    draft = f"{target}.ddscope-{os.getpid()}"
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if "owner" in told and (told["owner"] != [os.geteuid(), os.getegid()]):
            os.chown(draft, *told["owner"])
        os.chmod(draft, mode)
        os.replace(draft, target)
    except BaseException:
        os.unlink(draft)
        raise
    return told


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
