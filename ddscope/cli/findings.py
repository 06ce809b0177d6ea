"""`ddscope findings`: what the detectors say of a trace, without a screen."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddscope.cli.errors import CommandError

if TYPE_CHECKING:
    from ddscope.cli.types import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("findings", help="what the detectors say of a trace; exit 1 when there is a fault")
    parser.add_argument("file", type=Path, metavar="TRACE")
    parser.add_argument("--json", action="store_true", help="a list of findings on stdout")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ddscope.diagnose import diagnose, render_text, to_json
    from ddscope.trace import TraceError

    try:
        found = diagnose(args.file)
    except TraceError as problem:
        raise CommandError(str(problem)) from None
    if args.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode([to_json(finding) for finding in found]).decode() + "\n")
    else:
        print(render_text(found), end="")
    return 1 if any(finding.severity != "info" for finding in found) else 0
