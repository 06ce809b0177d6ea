"""The ladder of liveness in words: the headline of what fails, what is attached to, and what a person can do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddscope.session import HostView
from ddscope.session.views import ProbeRow

MEANS = {
    "unit": "the unit does not run",
    "process": "a process of the server is not well",
    "port": "the server does not take connections",
    "health": "the server does not say that it is healthy",
    "generate": "the server is alive, and does not generate",
    "progress": "requests run, and no token comes",
}


def failing(hosts: Sequence[HostView]) -> tuple[HostView, ProbeRow] | None:
    """The lowest rung that fails, of the first host on which one does."""
    return next(((host, row) for host in hosts if (row := host.failing) is not None), None)


def _of(host: HostView, several: bool) -> str:
    return f"{host.name} " if several and host.name else ""


def headline(hosts: Sequence[HostView]) -> str:
    """For the title: `generate: no answer for 23 s`; "" while every rung holds."""
    found = failing(hosts)
    if found is None:
        return ""
    host, row = found
    return f"{_of(host, len(hosts) > 1)}{row.rung}: {row.detail}"


def sentence(hosts: Sequence[HostView]) -> str:
    """For an empty pane: what the failing rung means, and what was seen; "" while every rung holds."""
    found = failing(hosts)
    return f"{_means(*found)}: {found[1].detail}." if found is not None else ""


def meaning(hosts: Sequence[HostView]) -> str:
    """Above the ladder, which says itself what was seen: what the failing rung means, and where more is said."""
    found = failing(hosts)
    return f"{_means(*found)}. The findings say what to do." if found is not None else ""


def _means(host: HostView, row: ProbeRow) -> str:
    where = f"On {host.name}, " if host.name else ""
    means = where + MEANS.get(row.rung, f"{row.rung} fails")
    return means[:1].upper() + means[1:]


def lines(hosts: Sequence[HostView]) -> str:
    """The whole ladder, a rung a line, for a pane that has room."""
    said = []
    for host in hosts:
        if len(hosts) > 1:
            said.append(f"{host.name}  {host.words}")
        said += [f"{'✓' if row.ok else '✗'} {row.rung:<9} {row.detail}" for row in host.rungs]
    return "\n".join(said)


def source_words(hosts: Sequence[HostView], names: Sequence[str]) -> str:
    """For the title: `ct129 · sglang-qwen.service · sglang 0.5.23`. names: hosts of which nothing is known yet."""
    said = [" · ".join(part for part in (host.name, host.words) if part) for host in hosts]
    known = {host.name for host in hosts}
    return " + ".join([*said, *(name for name in names if name not in known)])


def clocks(hosts: Sequence[HostView]) -> str:
    """Clocks that are off so far that lines and steps stand in another order than they happened; "" for none."""
    return "; ".join(f"{_of(host, len(hosts) > 1)}{host.clock_words}" for host in hosts if host.clock_words)
