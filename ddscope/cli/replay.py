"""`ddscope replay`: a trace file in the workbench."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddscope.cli.errors import CommandError
from ddscope.cli.options import theme_option

if TYPE_CHECKING:
    from ddscope.cli.types import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("replay", help="open a trace in the workbench")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", nargs="?", type=Path, metavar="TRACE")
    which.add_argument(
        "--sample", action="store_true", help="the trace that comes with ddscope: a real run of the embedded engine"
    )
    parser.add_argument("--at", type=int, metavar="STEP", help="open at this step instead of the end")
    parser.add_argument(
        "--speed", type=_speed, metavar="X", help="play from the start (or --at) at X times the recorded speed"
    )
    theme_option(parser)
    parser.set_defaults(run=_run)


def _speed(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError("a speed is more than 0 and at most 1000")
    return value


def sample_trace() -> Path:
    """The trace that is shipped in the package."""
    return Path(__file__).parent.parent / "data" / "sample.jsonl"


def _run(args: argparse.Namespace) -> int:
    from ddscope.cli.screen import need_terminal
    from ddscope.session import Session
    from ddscope.trace import TraceError

    path = sample_trace() if args.sample else args.file
    try:
        session = Session.replay(path, at=args.at)
    except TraceError as problem:
        raise CommandError(str(problem)) from None
    need_terminal()
    from ddscope import tui

    # Not started here: the first paint comes before the index, and the workbench starts it after that.
    try:
        tui.run(session, speed=args.speed, theme=args.theme)
    finally:
        session.close()
    return 0
