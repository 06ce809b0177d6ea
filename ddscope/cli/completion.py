"""`ddscope completion`: prints a completion script for a shell (made by shtab from the parser)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddscope.cli.types import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="print shell completion (bash, zsh, tcsh)",
        description="Print a completion script, for example: ddscope completion bash > "
        "~/.local/share/bash-completion/completions/ddscope",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    import shtab

    from ddscope.cli.parser import build_parser

    print(shtab.complete(build_parser(), shell=args.shell))
    return 0
