"""What `attach` and `record` share: which servers, waiting for them, and the session that records them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddscope.cli.errors import CommandError

if TYPE_CHECKING:
    from ddscope.diagnose import Diagnosis
    from ddscope.session import Session


def server_options(parser: argparse.ArgumentParser) -> None:
    """Options that name servers and their logs."""
    group = parser.add_argument_group("servers", "A server is one that was started with DDSCOPE=unix:PATH.")
    group.add_argument(
        "--socket",
        action="append",
        required=True,
        metavar="PATH",
        help="the server's socket; may be given several times. A folder or a pattern ('/run/ddscope/*.sock') stands "
        "for every socket in it that has a server, those that appear later included: one a rank",
    )
    group.add_argument(
        "--wait",
        type=seconds(0, 7 * 86400),
        default=0.0,
        metavar="SECONDS",
        help="wait this long for a server that is just starting (default: do not wait)",
    )
    group.add_argument("--unit", metavar="UNIT", help="also read the journal of this local systemd unit")
    group.add_argument("--log-file", type=Path, metavar="FILE", help="also read this log file")


def seconds(low: float, high: float) -> Any:
    """A parser of numbers of seconds."""

    def number(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # NaN fails here too
            raise argparse.ArgumentTypeError(f"takes {low:g} to {high:g} seconds, not {text}")
        return value

    number.__name__ = "number of seconds"
    return number


def open_session(
    args: argparse.Namespace, out: Path | None, diagnosis: Diagnosis, waiting: Callable[[str], None]
) -> Session:
    """A running session on the servers. Raises CommandError where there is none, or it cannot be recorded.

    waiting: told once why it waits.
    """
    from ddscope.session import Session, SessionError
    from ddscope.sources import SourceError, await_servers
    from ddscope.trace import TraceError

    if out is not None and out.exists() and out.stat().st_size:
        raise CommandError(f"{out} exists and is not empty: choose another name, so that nothing is lost.")
    try:
        await_servers(args.socket, args.wait, waiting=waiting)
        return Session.run(
            servers=args.socket,
            out=out,
            units=[args.unit] if args.unit else [],
            log_files=[args.log_file] if args.log_file is not None else [],
            observers=[diagnosis.observe],
        )
    except (SourceError, SessionError, TraceError) as problem:
        raise CommandError(str(problem)) from None
