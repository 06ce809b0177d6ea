"""`ddscope trace verify | recover | stats`: checking, repairing and counting a trace without a screen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ddscope.cli.errors import CommandError
from ddscope.cli.text import printable

if TYPE_CHECKING:
    from ddscope.cli.types import Commands


def add(commands: Commands) -> None:
    """Add the command and its three parts."""
    parser = commands.add_parser("trace", help="verify, recover or count a trace file")
    parts = parser.add_subparsers(metavar="PART", required=True)
    verify = parts.add_parser("verify", help="check every invariant; exit 1 when one is broken")
    recover = parts.add_parser("recover", help="copy every whole record of a damaged file, with a new footer")
    stats = parts.add_parser("stats", help="records, requests, τ, depth curve, stage times, drops")
    for part, run in ((verify, _verify), (recover, _recover), (stats, _stats)):
        part.add_argument("file", type=Path, metavar="FILE")
        part.set_defaults(run=_refusals(run))
    recover.add_argument("--out", type=Path, metavar="FILE", help="where to (default: NAME.recovered.jsonl)")
    stats.add_argument("--json", action="store_true", help="one object on stdout")


def _refusals(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def wrapped(args: argparse.Namespace) -> int:
        from ddscope.trace import TraceError

        try:
            return run(args)
        except TraceError as problem:
            raise CommandError(str(problem)) from None

    return wrapped


def _verify(args: argparse.Namespace) -> int:
    from ddscope.trace import verify

    report = verify(args.file)
    for problem in report.problems:
        where = "" if problem.record is None else f"record {problem.record:,}, "
        print(f"{args.file.name}: {where}byte {problem.offset:,}: {printable(problem.text)}")
    for note in report.notes:
        print(f"{args.file.name}: note: {printable(note)}")
    print(
        f"{args.file.name}: {report.records:,} records, "
        + (f"{len(report.problems):,} problem(s)" if report.problems else "every invariant holds")
    )
    return 1 if report.problems else 0


def _recover(args: argparse.Namespace) -> int:
    from ddscope.trace import recover

    out = args.out or args.file.with_name(f"{args.file.stem}.recovered.jsonl")
    report = recover(args.file, out)
    print(printable(report.summary()))
    return 0


def _stats(args: argparse.Namespace) -> int:
    from ddscope.trace import stats

    result = stats(args.file)
    if args.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(result.to_json()).decode() + "\n")
    else:
        from rich.console import Console

        from ddscope.cli.tables import trace_stats

        trace_stats(Console(), result)
    return 0
