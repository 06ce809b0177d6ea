"""`ddscope attach`: the workbench on servers that run already. They are looked at, never paused."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ddscope.cli.options import record_option, theme_option
from ddscope.cli.servers import need_servers, open_session, server_options

if TYPE_CHECKING:
    from ddscope.cli.types import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "attach",
        help="open the workbench on a running server",
        description="The workbench on servers that run already. Pausing, going back and searching are the viewer's "
        "own: the server goes on. What comes is recorded as a trace.",
    )
    server_options(parser)
    record_option(parser)
    theme_option(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ddscope.cli.screen import need_terminal
    from ddscope.diagnose import Diagnosis

    need_servers(args)
    need_terminal()
    diagnosis = Diagnosis()
    with open_session(args, args.out, diagnosis, lambda why: print(f"Waiting. {why}", file=sys.stderr)) as session:
        from ddscope import tui

        tui.run(session, diagnosis=diagnosis, theme=args.theme)
    print(f"Recorded: {session.path}\nOpen it again with: ddscope replay {session.path}")
    return 0
