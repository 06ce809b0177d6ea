"""The doctor's page as plain text: worst first, each with evidence and what to do. Foreign text is made safe before."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from ddscope.remote.doctor.examine import Examined
from ddscope.remote.doctor.items import SEVERITIES, Item, count, shown

WIDTH = 110
CELLS = (9, 44, 30, 30)  # of the table, at most
LINES = 6  # of a cell


def page(one: Examined) -> str:
    """Everything about one host."""
    lines = [*_head(one), ""]
    for item in one.items:
        if item.severity != "fine":
            lines += [*_item(item), ""]
    fine = [item for item in one.items if item.severity == "fine"]
    if fine:
        lines.append("as it should be")
        for item in fine:
            lines += _wrapped(item.title, "  ", "  ")
            lines += [f"      {line}" for line in item.evidence]
    return "\n".join(lines).rstrip() + "\n"


def _head(one: Examined) -> Iterator[str]:
    found, server = one.found, one.server
    machine = found.machine
    told = [shown(found.host)]
    if server.unit:
        told.append(shown(server.unit))
    if server.pid:
        told.append(f"pid {server.pid}")
    told.append(f"{shown(machine.get('executable', server.python))} ({shown(machine.get('python', '?'))})")
    yield " · ".join(told)
    worst = [(name, sum(item.severity == name for item in one.items)) for name in SEVERITIES[:3]]
    said = ", ".join(f"{number} {name}" for name, number in worst if number)
    yield said or "nothing is wrong that can be seen from here"


def _item(item: Item) -> Iterator[str]:
    yield from _wrapped(item.title, f"{item.severity:<9}", " " * 9)
    for line in item.evidence:
        yield f"{'':9}{line}"
    for line in item.next:
        yield f"{'':9}→ {line}"  # never wrapped: most are commands, to be copied


def _wrapped(text: str, first: str, rest: str) -> Iterable[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    ) or [first.rstrip()]


def table(rows: Sequence[tuple[str, str, str, str]], one: str, other: str, meanings: Iterable[str] = ()) -> str:
    """Differences between two hosts, worst first: (severity, what, here, there); below it what they mean.

    A cell goes on below itself: what differs often stands at the end.
    """
    if not rows:
        return f"{one} and {other} do not differ in anything that was looked at.\n"
    heads = ("", "what differs", one, other)
    cells = [[_cell(cell, column) for column, cell in enumerate(row)] for row in [heads, *rows]]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(4)]
    lines = [line for row in cells for line in _lines(row, widths)]
    lines.insert(max(map(len, cells[0])), "  ".join("─" * width for width in widths))
    said = [line for told in meanings for line in _meaning(told)]
    if said:
        lines += ["", *said]
    return f"{count(len(rows), 'difference')}, worst first\n\n" + "\n".join(lines) + "\n"


def _cell(text: str, column: int) -> list[str]:
    width = CELLS[column]
    return textwrap.wrap(shown(text), width, break_on_hyphens=False)[:LINES] or [""]


def _lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for lines in zip_longest(*row, fillvalue=""):
        yield "  ".join(line.ljust(width) for line, width in zip(lines, widths, strict=True)).rstrip()


def _meaning(text: str) -> Iterable[str]:
    """A sentence in lines; what begins with an arrow is never wrapped, as most of it is a command to be copied."""
    return [text] if text.startswith("→") else _wrapped(text, "", "")
