"""What the journal of a host adds up to: what of ddscope is there now, and what to go back to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

INSTALL, UNINSTALL, ENABLE, DISABLE, RESTORE, RELOAD = "install", "uninstall", "enable", "disable", "restore", "reload"


@dataclass(frozen=True)
class DropIn:
    """A file that was written for a unit. made: folders that did not exist before; sockets: folder of the sockets."""

    path: str
    unit: str
    user: bool
    made: tuple[str, ...] = ()
    sockets: str = ""


@dataclass(frozen=True)
class Ledger:
    """installed: the newest installation that was not undone; manifest: the snapshot before the first of them.

    An installation that began and did not end counts: something of it may be there.
    """

    installed: dict[str, Any] | None = None
    manifest: str | None = None
    drop_ins: tuple[DropIn, ...] = ()
    restored: tuple[dict[str, Any], ...] = field(default=())


def add_up(journal: Iterable[dict[str, Any]]) -> Ledger:
    """From all entries, oldest first."""
    installed: dict[str, Any] | None = None
    manifest: str | None = None
    drop_ins: dict[str, DropIn] = {}
    restored: list[dict[str, Any]] = []
    for entry in journal:
        what, state = entry.get("what"), entry.get("state")
        if what == INSTALL and state in ("begun", "done"):
            manifest = manifest if installed is not None else entry.get("manifest")
            installed = entry
        elif what == UNINSTALL and state == "done":
            installed, manifest = None, None
        elif what == ENABLE and state in ("begun", "done") and isinstance(entry.get("path"), str):
            made = entry.get("made")
            before = drop_ins.get(entry["path"])
            kept = before.made if before is not None else tuple(map(str, made if isinstance(made, list) else []))
            unit, user, sockets = str(entry.get("unit")), bool(entry.get("user")), str(entry.get("sockets", ""))
            drop_ins[entry["path"]] = DropIn(entry["path"], unit, user, kept, sockets)
        elif what == DISABLE and state == "done":
            drop_ins.pop(str(entry.get("path")), None)
        elif what == RESTORE and state == "done":
            restored.append(entry)
    return Ledger(installed, manifest, tuple(drop_ins.values()), tuple(restored))
