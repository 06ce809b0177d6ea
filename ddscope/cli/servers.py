"""What `attach` and `record` share: which servers, waiting for them, and the session that records them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ddscope.cli.errors import CommandError
from ddscope.cli.options import log_options, seconds, whole

if TYPE_CHECKING:
    from ddscope.diagnose import Diagnosis
    from ddscope.remote.attached import AttachedHost
    from ddscope.session import Session


def server_options(parser: argparse.ArgumentParser) -> None:
    """Options that name servers and their logs."""
    parser.set_defaults(refuse=parser.error)
    group = parser.add_argument_group("servers", "One of --host and --socket is needed.")
    group.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host as in `ssh NAME`, where the server runs; `localhost` needs no ssh; may be given several times. "
        "Its server, journal, sockets and health are found by themselves",
    )
    group.add_argument(
        "--socket",
        action="append",
        default=[],
        metavar="PATH",
        help="the socket of a server that was started with DDSCOPE=unix:PATH; may be given several times. A folder or "
        "a pattern ('/run/ddscope/*.sock') stands for every socket in it that has a server, those that appear later "
        "included: one a rank. With --host a path there",
    )
    group.add_argument(
        "--wait",
        type=seconds(0, 7 * 86400),
        default=0.0,
        metavar="SECONDS",
        help="wait this long for a server that is just starting (default: do not wait)",
    )
    log_options(group, hosts=True)
    there = parser.add_argument_group("with --host")
    there.add_argument("--pid", type=whole(1, 1 << 22), default=0, metavar="PID", help="the server is this process")
    there.add_argument("--port", type=whole(1, 65535), default=0, metavar="PORT", help="the server that listens there")
    there.add_argument(
        "--log-command",
        action="append",
        default=[],
        metavar="COMMAND",
        help="read what this prints ('docker logs -f x')",
    )
    there.add_argument(
        "--lines",
        type=_lines,
        default=2000,
        metavar="N",
        help="how many old lines of each log, or `all` (default: 2000)",
    )
    there.add_argument(
        "--no-probe",
        dest="probe",
        action="store_false",
        help="do not ask the server for four tokens now and then to see whether it still generates",
    )
    there.add_argument(
        "--probe-timeout",
        type=seconds(0.5, 600),
        default=20.0,
        metavar="SECONDS",
        help="how long these four tokens may take (default: 20)",
    )


def need_servers(args: argparse.Namespace) -> None:
    """End with the usage when no server was named, or with an option that makes no sense with what was named."""
    if not args.host and not args.socket:
        args.refuse("say where the server is: --host NAME, or --socket PATH for one on this machine")
    if not args.host and (args.pid or args.port or args.log_command):
        args.refuse("--pid, --port and --log-command are for --host (--host localhost is this machine)")


def _lines(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(whole(0, 1 << 31)(text))


def _hosts(args: argparse.Namespace, waiting: Callable[[str], None]) -> list[AttachedHost]:
    """The hosts, each looked at. Raises HostError; those that were reached before it are left again."""
    from ddscope.remote.attached import AttachedHost, Wanted

    wanted = Wanted(
        unit=args.unit or "",
        pid=args.pid,
        port=args.port,
        sockets=args.socket,
        log_files=[str(args.log_file)] if args.log_file is not None else [],
        log_commands=args.log_command,
        lines=args.lines,
        probe=args.probe,
        probe_timeout=args.probe_timeout,
    )
    hosts: list[AttachedHost] = []
    try:
        for name in dict.fromkeys(args.host):
            waiting(f"Looking for a server on {name}.")
            hosts.append(AttachedHost(name, wanted, several=len(set(args.host)) > 1))
    except BaseException:
        for host in hosts:
            host.close()
        raise
    return hosts


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
    hosts: list[AttachedHost] = []
    try:
        if args.host:
            from ddscope.remote import HostError

            try:
                hosts = _hosts(args, waiting)
            except HostError as problem:
                raise CommandError(str(problem)) from None
            return Session.run(out=out, hosts=hosts, observers=[diagnosis.observe])
        await_servers(args.socket, args.wait, waiting=waiting)
        return Session.run(
            servers=args.socket,
            out=out,
            units=[args.unit] if args.unit else [],
            log_files=[args.log_file] if args.log_file is not None else [],
            observers=[diagnosis.observe],
        )
    except (SourceError, SessionError, TraceError) as problem:
        for host in hosts:
            host.close()
        raise CommandError(str(problem)) from None
