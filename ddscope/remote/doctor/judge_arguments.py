"""What was asked of the server against what it does: arguments, and variables that change what is measured."""

from __future__ import annotations

from collections.abc import Iterator

from ddscope.remote.doctor import arguments
from ddscope.remote.doctor.collected import Collected
from ddscope.remote.doctor.items import Item, count, shown

AREA = "config.requested_vs_effective"
SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD")


def judge(found: Collected) -> Iterator[Item]:
    """Items about arguments and variables of the process."""
    if found.process is None:
        yield Item(
            AREA, "info", "No server runs here: its arguments were not looked at.", next=("Name it with --pid.",)
        )
        return
    if found.process.why and not found.process.argv:
        yield Item(AREA, "warning", f"Process {found.process.pid}: {shown(found.process.why)}.")
        return
    for name in SIMULATED:
        value = found.process.env.get(name, "")
        if value not in ("", "0", "-1", "-1.0", "None"):
            title = f"Acceptance is simulated: {name}={shown(value)}. Text and acceptance are not the model's."
            yield Item(AREA, "critical", title, next=(f"Unset {name} and restart.",))
    yield from _compared(found)


def _compared(found: Collected) -> Iterator[Item]:
    info = found.server_info
    if info is None or info.settings is None:
        why = info.why if info is not None and info.why else "its port is not known; name it with --port"
        yield Item(AREA, "info", f"What is in force cannot be compared with what was asked for: {shown(why)}.")
        return
    changes = arguments.changes(found)
    real = [row for row in changes if not row.benign]
    if real:
        lines = tuple(
            f"{shown(row.name)}: asked for {shown(row.requested, 80)}, in force {shown(row.effective, 80)}"
            for row in real
        )
        telling = any(arguments.TELLING.search(row.name) for row in real)
        names = shown(", ".join(row.name for row in real), 160)
        title = f"{count(len(real), 'argument')} not in force as asked for: {names}."
        steps = ("The server's log says why, near `server_args`.",)
        yield Item(AREA, "high" if telling else "warning", title, lines, steps)
    asked = len(arguments.requested(found))
    fine = [row for row in changes if row.benign and row.benign != "secret"]
    said = tuple(f"{shown(row.name)}: {shown(row.requested)} → {shown(row.effective)} ({row.benign})" for row in fine)
    if not real:
        yield Item(AREA, "fine", f"All {asked} arguments asked for are in force.", said)
