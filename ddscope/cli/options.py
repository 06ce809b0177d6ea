"""Options and numbers that several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

Group = argparse.ArgumentParser | argparse._ArgumentGroup
THEMES = ("dark", "light", "high-contrast")


def whole(low: int, high: int) -> Any:
    """A parser of whole numbers."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"takes a whole number from {low} to {high:,}, not {text}")
        return value

    parse.__name__ = "whole number"  # argparse says it of what is none
    return parse


def number(low: float, high: float, of: str = "") -> Any:
    """A parser of numbers. of: what they count, such as seconds."""
    unit = f" {of}" if of else ""

    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # NaN fails here too
            raise argparse.ArgumentTypeError(f"takes {low:g} to {high:g}{unit}, not {text}")
        return value

    parse.__name__ = f"number of {of}" if of else "number"
    return parse


def seconds(low: float, high: float) -> Any:
    """A parser of numbers of seconds."""
    return number(low, high, "seconds")


def log_options(group: Group, *, hosts: bool) -> None:
    """The logs that are read. hosts: whether they may be those of another host."""
    there = "; with --host one there" if hosts else ""
    whose = "the server's systemd unit" if hosts else "this local systemd unit"
    group.add_argument("--unit", metavar="UNIT", help=f"show the journal of {whose}{there}")
    group.add_argument("--log-file", type=Path, metavar="FILE", help=f"show this log file in the journal pane{there}")


def record_option(parser: Group) -> None:
    """Where a workbench records what comes."""
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to record the trace (default: kept among the recent sessions)"
    )


def theme_option(parser: Group) -> None:
    """The colours of a workbench."""
    parser.add_argument("--theme", choices=THEMES, default=None)
