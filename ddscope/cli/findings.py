"""`ddscope findings`: what the detectors say of traces, journals and logs, without a screen."""

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
    parser = commands.add_parser(
        "findings",
        help="what the detectors say of traces and journals; exit 1 when there is a fault",
        description="One list of findings, the most pressing first, from any number of traces, journals "
        "(`journalctl -o export` or `-o json --all`) and text logs together. What a file is, is told by its content. "
        "Give the kernel's journal (`journalctl -k`), too: faults of a GPU are in no unit's. Exit status 1 when there "
        "is a fault.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a trace, a journal, or a log")
    parser.add_argument("--json", action="store_true", help="a list of findings on stdout")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ddscope.diagnose import diagnose_files, render_text, to_json
    from ddscope.sources import SourceError
    from ddscope.trace import TraceError

    try:
        found = diagnose_files(args.files)
    except (TraceError, SourceError) as problem:
        raise CommandError(str(problem)) from None
    if args.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode([to_json(finding) for finding in found]).decode() + "\n")
    else:
        print(render_text(found), end="")
    return 1 if any(finding.severity != "info" for finding in found) else 0
