"""`ddscope record`: what running servers tell, into a trace, without a screen."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ddscope.cli.errors import CommandError
from ddscope.cli.options import seconds
from ddscope.cli.servers import need_servers, open_session, server_options

if TYPE_CHECKING:
    from ddscope.cli.recording import RecordProgress
    from ddscope.cli.types import Commands
    from ddscope.session import Session

POLL_S = 0.25
GONE_S = 3.0
"""Seconds that a server which went away may take to come back, unless --wait gives it more."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "record",
        help="record running servers into a trace, without a screen",
        description="Record what running servers tell until Ctrl-C, --for, or until every server has gone for good "
        f"(for longer than {GONE_S:g} seconds, or --wait). Ends with a summary and the findings; exit 1 when a "
        "detector found a fault.",
    )
    server_options(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the trace to write")
    parser.add_argument(
        "--for", dest="for_s", type=seconds(0.1, 366 * 86400), metavar="SECONDS", help="end after this long"
    )
    parser.add_argument("--json", action="store_true", help="one object on stdout instead of the summary")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ddscope.cli.recording import progress_for, summarise
    from ddscope.diagnose import Diagnosis

    need_servers(args)
    diagnosis = Diagnosis()
    progress = progress_for(args.out)
    try:
        with _interrupts(), open_session(args, args.out, diagnosis, progress.waiting) as session:
            ended = _until_the_end(session, progress, args)
            session.finish()
            summary = summarise(session, session.ask(diagnosis.findings), ended)
    finally:
        progress.done()
    if args.json:
        sys.stdout.write(json.dumps(summary.to_json(), ensure_ascii=False) + "\n")
    else:
        from rich.console import Console

        from ddscope.cli.recording import show

        show(Console(), summary)
    return 1 if any(finding.severity != "info" for finding in summary.findings) else 0


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """A service manager ends a recording with SIGTERM: as good an end as Ctrl-C."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _until_the_end(session: Session, progress: RecordProgress, args: argparse.Namespace) -> str:
    """Record; returns why it ended. Raises CommandError when the trace takes no more."""
    patience = max(GONE_S, args.wait)
    deadline = None if args.for_s is None else time.monotonic() + args.for_s
    try:
        while True:
            progress.tell(session)
            if session.trouble is not None:
                raise CommandError(f"{session.trouble} What came before is kept in {session.path}.")
            gone = session.gone_s
            if gone is not None and gone >= patience:
                return "every server is gone"
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if left <= 0:
                return f"{args.for_s:g} seconds are over"
            version = session.version
            session.wait_for(lambda _, version=version: session.version != version, left)  # type: ignore[misc]
            time.sleep(min(left, 0.02))  # a busy server moves the version at every record
    except KeyboardInterrupt:
        return "interrupted"
