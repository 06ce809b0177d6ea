"""Tables on the terminal, with rich. Values come from the summary of a run and the stats of a trace.

Foreign text is never markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddscope.cli.text import printable

if TYPE_CHECKING:
    from ddscope.cli.summary import Summary
    from ddscope.trace import Stats

BAR = 24
"""Cells of a full bar in the depth curve."""


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where it is unknown."""
    return "–" if value is None else format(value, form)


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, justify in columns:
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    return table


def run_summary(console: Console, summary: Summary) -> None:
    """Requests, depth curve and stage times of a headless run."""
    rows = [
        (request.rid, request.tokens, request.steps, request.tau, request.tokens_per_s, request.reason or request.state)
        for request in summary.requests
    ]
    requests_table(console, rows, (summary.tau, summary.tokens_per_s))
    depth_curve(console, summary.curve.p)
    timing = summary.timing
    stage_times(console, {stage.name: stage.mean_us for stage in timing.stages if stage.mean_us is not None})
    if summary.dropped:
        console.print(f"{summary.dropped:,} records were dropped; their places are marked in the trace.")


def trace_stats(console: Console, stats: Stats) -> None:
    """What a trace holds: records by type, requests, depth curve, stage times, the books of its sources."""
    kinds = _table(("record", "left"), ("count", "right"))
    for name, count in {**stats.types, **stats.unknown_types}.items():
        kinds.add_row(Text(printable(name)), f"{count:,}")
    if stats.damaged:
        kinds.add_row("damaged", f"{stats.damaged:,}")
    console.print(kinds)
    rows = [
        (request.rid, request.emitted, request.steps, request.tau, request.tokens_per_s, request.reason or "open")
        for request in stats.requests
    ]
    requests_table(console, rows, (stats.tau, stats.tokens_per_s))
    depth_curve(console, stats.curve)
    stage_times(console, {name: stage.mean_us for name, stage in stats.stages.items() if name != "total"})
    names = ("emitted", "received", "dropped")
    books(console, {source: tuple(book[name] for name in names) for source, book in stats.sources.items()})
    if not stats.finished:
        console.print("No footer: the file is still being written, or was cut off.")


Row = tuple[str, int, int, float | None, float | None, str]
"""rid, tokens, steps, τ, tokens/s, how it ended."""


def books(console: Console, sources: Mapping[str, Sequence[int]]) -> None:
    """emitted, received and dropped of each source."""
    table = _table(("source", "left"), ("emitted", "right"), ("received", "right"), ("dropped", "right"))
    for source, numbers in sources.items():
        table.add_row(Text(printable(source)), *(f"{number:,}" for number in numbers))
    console.print(table)


def requests_table(console: Console, rows: Sequence[Row], overall: tuple[float | None, float | None] | None) -> None:
    """Requests, and below several of them τ and tokens/s over all; overall None: without that line."""
    heads = ("request", "left"), ("tokens", "right"), ("steps", "right"), ("τ", "right"), ("tokens/s", "right")
    table = _table(*heads, ("ended", "left"))
    for rid, tokens, steps, tau, rate, ended in rows:
        cells = f"{tokens:,}", f"{steps:,}", number(tau), number(rate, ".1f")
        table.add_row(Text(printable(rid)), *cells, Text(printable(ended)))
    if len(rows) > 1 and overall is not None:
        sums = f"{sum(row[1] for row in rows):,}", f"{sum(row[2] for row in rows):,}"
        table.add_row("all", *sums, number(overall[0]), number(overall[1], ".1f"), "", style="bold")
    console.print(table)


def depth_curve(console: Console, shares: Sequence[float]) -> None:
    """P(accepted ≥ depth) as bars; nothing where nothing was accepted."""
    if not any(shares):
        return
    table = _table(("depth", "right"), ("P(accepted ≥ depth)", "left"), ("", "right"))
    for depth, share in enumerate(shares, 1):
        if share:
            table.add_row(str(depth), "█" * max(1, round(share * BAR)), f"{share:.2f}")
    console.print(table)


def stage_times(console: Console, means: Mapping[str, float]) -> None:
    """Mean milliseconds a step by stage (µs in), and each one's share of their sum."""
    total = sum(means.values())
    if not total:
        return
    table = _table(("stage", "left"), ("ms a step", "right"), ("share", "right"))
    for name, mean in means.items():
        table.add_row(name, number(mean / 1000), f"{mean / total:.0%}")
    console.print(table)
