"""Where ddscope keeps its own things on a host, outside of any environment: journal, copies, manifests."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any


def folder(make: bool = False) -> str:
    """The folder for this environment, mode 0700: below /var/lib for root, else in the user's state folder.

    The host's variable DDSCOPE_STATE names another place.
    """
    if os.environ.get("DDSCOPE_STATE", "").startswith("/"):
        base = os.environ["DDSCOPE_STATE"]
    elif os.geteuid() == 0:
        base = "/var/lib"
    else:
        base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    name = hashlib.sha256(os.path.realpath(sys.prefix).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    path = os.path.join(base, "ddscope", "hooks", name)
    if make:
        os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def note(entry: dict[str, Any]) -> None:
    """Append a change to the journal; on the disk before this returns."""
    path = os.path.join(folder(make=True), "journal.jsonl")
    line = json.dumps(dict(entry, t=int(time.time()), prefix=sys.prefix), sort_keys=True) + "\n"
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(number, line.encode())
        os.fsync(number)
    finally:
        os.close(number)


def journal() -> list[dict[str, Any]]:
    """All entries, oldest first. A torn last line is left out."""
    try:
        with open(os.path.join(folder(), "journal.jsonl"), encoding="utf-8") as file:
            lines = file.readlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def keep(name: str, data: bytes) -> str:
    """Write a file of ours there, whole or not at all; returns its path."""
    path = os.path.join(folder(make=True), os.path.basename(name))
    draft = f"{path}.{os.getpid()}"
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    return path
