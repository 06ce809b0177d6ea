"""Tables on the terminal, with rich. Values come from the summary of a run and the stats of a trace.

Foreign text is never markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddscope.cli.text import printable

if TYPE_CHECKING:
    from ddscope.cli.summary import Summary
    from ddscope.session.views import Curve, Timing

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
    table = _table(
        ("request", "left"),
        ("tokens", "right"),
        ("steps", "right"),
        ("τ", "right"),
        ("tokens/s", "right"),
        ("ended", "left"),
    )
    for request in summary.requests:
        table.add_row(
            Text(printable(request.rid)), f"{request.tokens:,}", f"{request.steps:,}", number(request.tau),
            number(request.tokens_per_s, ".1f"), Text(printable(request.reason or request.state)),
        )  # fmt: skip
    if len(summary.requests) > 1:
        tokens = sum(request.tokens for request in summary.requests)
        table.add_row(
            "all",
            f"{tokens:,}",
            f"{summary.steps:,}",
            number(summary.tau),
            number(summary.tokens_per_s, ".1f"),
            "",
            style="bold",
        )
    console.print(table)
    depth_curve(console, summary.curve)
    stage_times(console, summary.timing)
    if summary.dropped:
        console.print(f"{summary.dropped:,} records were dropped; their places are marked in the trace.")


def depth_curve(console: Console, curve: Curve) -> None:
    """P(accepted ≥ depth) as bars; nothing where nothing was drafted."""
    if not any(curve.at_least):
        return
    table = _table(("depth", "right"), ("P(accepted ≥ depth)", "left"), ("", "right"))
    for depth, share in enumerate(curve.p, 1):
        if share:
            table.add_row(str(depth), "█" * max(1, round(share * BAR)), f"{share:.2f}")
    console.print(table)


def stage_times(console: Console, timing: Timing) -> None:
    """Mean milliseconds a step by stage, and their share."""
    stages = [stage for stage in timing.stages if stage.mean_us is not None]
    if not stages:
        return
    table = _table(("stage", "left"), ("ms a step", "right"), ("share", "right"))
    for stage in stages:
        table.add_row(
            stage.name, number((stage.mean_us or 0) / 1000, ".2f"), "–" if stage.share is None else f"{stage.share:.0%}"
        )
    console.print(table)
