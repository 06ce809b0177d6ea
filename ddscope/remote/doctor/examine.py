"""One host examined: find the server, run the script in its Python, audit the files, judge all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddscope.remote.doctor import judge_arguments, judge_files, judge_machine, judge_unit
from ddscope.remote.doctor.audit import Audit, audit
from ddscope.remote.doctor.collected import Collected, collect
from ddscope.remote.doctor.items import Item, shown, worst_first
from ddscope.remote.doctor.locate import Server
from ddscope.remote.doctor.pristine import PristineFiles
from ddscope.remote.sudo import Runs

LOAD_S = 60.0
"""Seconds that one import may take in its child process."""


@dataclass(frozen=True)
class Examined:
    """A host, what was found there and what it means, worst first."""

    server: Server
    found: Collected
    audit: Audit
    items: tuple[Item, ...]


def look(host: Runs, server: Server, *, load: bool = True) -> Collected:
    """Everything from the host. load: whether imports are tried. Raises HostError."""
    plan = {
        "pid": server.pid, "unit": server.unit, "user": server.user, "port": server.port, "address": server.address,
        "load": load, "load_s": LOAD_S,
    }  # fmt: skip
    return collect(host, server.python, plan)


def examine(server: Server, found: Collected, *, others: Iterable[Collected] = (), download: bool = True) -> Examined:
    """Audit and judge. others: what other hosts have, for pristine files; download: whether a wheel may be fetched."""
    audited = audit(found, PristineFiles(tuple(others), download))
    items = [
        *judge_arguments.judge(found),
        *judge_files.judge(found, audited),
        *judge_machine.judge(found),
        *judge_unit.judge(found),
    ]
    if found.failed:
        lines = tuple(f"{shown(part)}: {shown(why)}" for part, why in found.failed.items())
        items.append(Item("logs.incomplete", "warning", "Some parts could not be looked at.", lines))
    return Examined(server, found, audited, tuple(worst_first(items)))
