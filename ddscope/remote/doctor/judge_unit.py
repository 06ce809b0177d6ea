"""What it means when a unit does not run as its files say, or its backups said."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddscope.remote.doctor.collected import Collected, Unit
from ddscope.remote.doctor.drift import BackupDrift, Difference, Drift, drift
from ddscope.remote.doctor.items import Item, Severity, count, several, shown

AREA = "unit.drift"


def judge(found: Collected) -> Iterator[Item]:
    """Items about the unit."""
    unit = found.unit
    if unit is None:
        return
    if unit.why is not None:
        yield Item(AREA, "warning", f"{shown(unit.unit)}: {shown(unit.why)}.")
        return
    seen = drift(unit, found.process)
    yield from _drift(unit, seen)
    for backup in seen.backups:
        if backup.differ:
            yield _backup(unit, backup)
    restarts = unit.shown.get("NRestarts", "0")
    if restarts not in ("", "0"):
        yield Item(AREA, "warning", f"systemd has restarted {shown(unit.unit)} {shown(restarts)} times by itself.")
    if not seen.any:
        files = several([file.path for file in unit.files]) or "no file"
        yield Item(AREA, "fine", f"{shown(unit.unit)} runs as its files say ({files}).")


def reload_commands(unit: Unit) -> tuple[str, ...]:
    """Commands that make what is on disk what runs."""
    manager = "systemctl --user" if unit.user else "systemctl"
    return f"{manager} daemon-reload", f"{manager} restart {shlex.quote(unit.unit)}"


def _drift(unit: Unit, seen: Drift) -> Iterator[Item]:
    lines = tuple(line for one in seen.running for line in _lines(one, "runs", "on disk"))
    reload_, restart = reload_commands(unit)
    if seen.need_reload:
        title = f"{shown(unit.unit)}: its files changed and systemd has not read them: daemon-reload was forgotten."
        yield Item(AREA, "high", title, lines or tuple(shown(file.path) for file in unit.files), (reload_, restart))
    elif seen.running:
        title = f"{shown(unit.unit)} runs with {count(len(seen.running), 'setting')} that its files do not say."
        severity: Severity = "high" if any(one.what == "ExecStart" for one in seen.running) else "warning"
        steps = (restart,) if seen.newer else (reload_, restart)
        yield Item(
            AREA, severity, title, (*lines, *(f"changed after it began: {shown(path)}" for path in seen.newer)), steps
        )


def _backup(unit: Unit, backup: BackupDrift) -> Item:
    lines = tuple(line for one in backup.differ[:12] for line in _lines(one, "now", "backup"))
    names = several([one.what for one in backup.differ])
    title = f"{shown(backup.of)} differs from its backup {shown(backup.path)} in {names}."
    return Item(AREA, "info", title, lines, (f"diff {shlex.quote(backup.path)} {shlex.quote(backup.of)}",))


def _lines(one: Difference, first: str, second: str) -> Iterator[str]:
    """first, second: what the two sides are called."""
    if one.what == "file":
        yield "only in what does not change how it runs"
        return
    yield shown(one.what)
    mine, theirs = one.one, one.other
    if one.what == "ExecStart" and mine and theirs:
        # Of a long command line only the words that differ; where only their order does, all of it.
        here, there = mine.split(), theirs.split()
        fewer = [" ".join(word for word in side if word not in other) for side, other in ((here, there), (there, here))]
        mine, theirs = ("… " + side if side else "–" for side in fewer) if any(fewer) else (mine, theirs)
    width = max(len(first), len(second))
    for name, value in ((first, mine), (second, theirs)):
        yield f"  {name:<{width}}  {shown(value) if value is not None else 'not set'}"
