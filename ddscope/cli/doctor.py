"""`ddscope doctor`: what a server's environment, unit and arguments are, and what of it is not as it should be."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddscope.cli.errors import CommandError
from ddscope.cli.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from ddscope.cli.types import Commands
    from ddscope.remote.doctor.examine import Examined


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="what is wrong with a server's environment, unit or arguments; exit 1 when something is",
        description="Runs one script in the server's own Python, which writes nothing: torch, driver and GPU, "
        "packages and files that differ from their wheel, libraries that do not load, the unit, the arguments.",
    )
    parser.add_argument("--host", default="localhost", metavar="HOST", help="as in `ssh HOST` (default: this machine)")
    parser.add_argument("--against", metavar="HOST", help="another host: one table of what differs, worst first")
    parser.add_argument("--python", metavar="PATH", help="the server's Python (default: that of the server that runs)")
    parser.add_argument("--pid", type=int, metavar="N", help="the server's main process")
    parser.add_argument("--unit", metavar="UNIT", help="the server's systemd unit")
    parser.add_argument("--port", type=int, metavar="N", help="the server's port (default: as its command line says)")
    parser.add_argument("--sudo", action="store_true", help="run the script by `sudo -n`, for a server of another user")
    parser.add_argument("--no-download", action="store_true", help="do not fetch a wheel to compare files with")
    parser.add_argument("--no-load", action="store_true", help="do not try imports (each is tried in a child process)")
    parser.add_argument("--json", action="store_true", help="one object on stdout, with whole diffs")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="also write the facts as a trace")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ddscope.remote.host import HostError
    from ddscope.trace import TraceError

    if args.out is not None and args.out.exists() and args.out.stat().st_size:
        raise CommandError(f"{args.out} exists and is not empty: choose another name, so that nothing is lost.")
    try:
        hosts = _examine(args)
        if args.out is not None:
            from ddscope.remote.doctor.facts import write

            write(args.out, hosts)
    except (HostError, TraceError) as problem:
        raise CommandError(str(problem)) from None
    return _tell(args, hosts)


def _examine(args: argparse.Namespace) -> list[Examined]:
    from ddscope.remote.doctor.examine import examine, look
    from ddscope.remote.doctor.locate import locate
    from ddscope.remote.host import Host
    from ddscope.remote.sudo import Sudo

    looked = []
    for name in [args.host, *([args.against] if args.against else [])]:
        with Host(name) as host:
            # A process id means something on one host only.
            pid = args.pid if name == args.host else None
            server = locate(host, python=args.python, pid=pid, unit=args.unit, port=args.port)
            print(f"Looking at {printable(name)} with {printable(server.python)} …", file=sys.stderr)
            looked.append((server, look(Sudo(host) if args.sudo else host, server, load=not args.no_load)))
    return [
        examine(
            server, found, others=[other for _, other in looked if other is not found], download=not args.no_download
        )
        for server, found in looked
    ]


def _tell(args: argparse.Namespace, hosts: list[Examined]) -> int:
    from ddscope.remote.doctor.against import differences, folded, meanings
    from ddscope.remote.doctor.page import page, table

    rows = differences(*hosts) if len(hosts) == 2 else []
    bad = [item for one in hosts for item in one.items if item.severity in ("critical", "high", "warning")]
    if args.json:
        import msgspec

        from ddscope.remote.doctor.report import to_json

        told: dict[str, Any] = {"hosts": [to_json(one) for one in hosts]}
        if len(hosts) == 2:
            told["differences"] = [row.to_json() for row in rows]
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    elif len(hosts) == 2:
        cells = [(row.severity, row.what, row.here, row.there) for row in folded(rows)]
        names = hosts[0].found.host, hosts[1].found.host
        _print(table(cells, *names, meanings(rows, *names)))
    else:
        _print(page(hosts[0]))
    return 1 if any(row.severity in ("critical", "high", "warning") for row in rows) or (len(hosts) == 1 and bad) else 0


COLOURS = {"critical": "bold red", "high": "red", "warning": "yellow", "info": "cyan"}


def coloured(text: str) -> Text:
    """The page with its severities in colour. It is text, never markup."""
    from rich.text import Text

    made = Text(printable(text), no_wrap=True)
    for word, style in COLOURS.items():
        made.highlight_regex(rf"(?m)^{word}\b", style)
    made.highlight_regex(r"(?m)^ +-(?!>).*$", "red")
    made.highlight_regex(r"(?m)^ +\+.*$", "green")
    made.highlight_regex(r"(?m)^ *→ .*$", "bold")
    return made


def _print(text: str) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(coloured(text), end="")
    else:
        print(printable(text), end="")
