"""`ddscope hooks status | install | enable | disable | rollback`: the hooks on a host, and all of it undone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddscope.cli.errors import CommandError
from ddscope.cli.text import printable

if TYPE_CHECKING:
    from ddscope.cli.types import Commands
    from ddscope.remote.doctor.locate import Server
    from ddscope.remote.hooks.environment import Environment
    from ddscope.remote.host import Host

PARTS = {
    "status": "what is installed, enabled and running",
    "install": "put the hooks into the server's environment, and nothing else",
    "enable": "turn them on for the next start of the unit, by a drop-in",
    "disable": "turn them off for the next start",
    "rollback": "take everything back, and prove it; or put files back that somebody patched",
}


def add(commands: Commands) -> None:
    """Add the command and its parts."""
    parser = commands.add_parser(
        "hooks",
        help="put the hooks on a host, turn them on, and take everything back",
        description="Each command that runs on the host is shown before, and asked about unless --yes is given. What "
        "is changed is written into a journal on the host. No unit file is edited and no service restarted.",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    for name, words in PARTS.items():
        part = parts.add_parser(name, help=words)
        part.add_argument(
            "--host", default="localhost", metavar="HOST", help="as in `ssh HOST` (default: this machine)"
        )
        part.add_argument("--python", metavar="PATH", help="the server's Python (default: of the server that runs)")
        part.add_argument("--pid", type=int, metavar="N", help="the server's main process")
        part.add_argument("--unit", metavar="UNIT", help="the server's systemd unit")
        part.add_argument("--sudo", action="store_true", help="run what is run there by `sudo -n`")
        part.set_defaults(run=_part, part=name)
        if name == "status":
            part.add_argument("--json", action="store_true", help="one object on stdout")
        else:
            part.add_argument("--yes", action="store_true", help="do not ask")
        if name == "install":
            part.add_argument("--quick", action="store_true", help="hash files above 4 MiB by size and time only")
        if name == "enable":
            part.add_argument(
                "--target", metavar="TARGET", help="unix:PATH or file:PATH (default: a socket below /run/ddscope)"
            )
            part.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="DDSCOPE_TOPK, _SAMPLE, _REDACT, _CONTROL",
            )
        if name == "rollback":
            part.add_argument("--file", action="append", default=[], metavar="PATH", help="put this file back instead")
            part.add_argument("--patched", action="store_true", help="put all files back that differ from their wheel")
            part.add_argument("--no-download", action="store_true", help="from backups only: do not fetch a wheel")


def _part(args: argparse.Namespace) -> int:
    from ddscope.remote.doctor.locate import locate
    from ddscope.remote.hooks.environment import Environment
    from ddscope.remote.host import Host, HostError
    from ddscope.remote.sudo import Sudo

    try:
        with Host(args.host) as host:
            server = locate(host, python=args.python, pid=args.pid, unit=args.unit)
            environment = Environment(Sudo(host) if args.sudo else host, server.python)
            return _DO[args.part](args, host, server, environment)
    except HostError as problem:
        raise CommandError(str(problem)) from None


def _say(line: str) -> None:
    print(printable(line), flush=True)


def _asker(args: argparse.Namespace) -> Callable[[str], bool]:
    def ask(question: str) -> bool:
        if args.yes:
            return True
        if not sys.stdin.isatty():
            raise CommandError(
                "Nobody can be asked here: look at the commands above, and say --yes. Nothing was changed."
            )
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    return ask


def _status(args: argparse.Namespace, host: Host, server: Server, environment: Environment) -> int:
    from ddscope.remote.hooks.status import lines, status
    from ddscope.remote.hooks.wheel import build

    found = status(environment.host, server, environment.state(), build())
    if args.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(found.to_json()).decode() + "\n")
    else:
        for line in lines(found):
            _say(line)
    return 0


def _install(args: argparse.Namespace, host: Host, server: Server, environment: Environment) -> int:
    from ddscope.remote.hooks.operations import install

    return 0 if install(environment, _say, _asker(args), quick=args.quick) else 1


def _enable(args: argparse.Namespace, host: Host, server: Server, environment: Environment) -> int:
    from ddscope.remote.hooks.operations import enable

    settings = {}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--set takes NAME=VALUE, not {pair!r}.")
        settings[name] = value
    done = enable(environment, server, _say, _asker(args), target=args.target, settings=settings)
    return 0 if done else 1


def _disable(args: argparse.Namespace, host: Host, server: Server, environment: Environment) -> int:
    from ddscope.remote.hooks.operations import disable

    return 0 if disable(environment, _say, _asker(args)) else 1


def _rollback(args: argparse.Namespace, host: Host, server: Server, environment: Environment) -> int:
    from ddscope.remote.doctor.examine import look
    from ddscope.remote.hooks.operations import put_back, undo

    if not args.file and not args.patched:
        return 0 if undo(environment, _say, _asker(args)) else 1
    found = look(environment.host, server, load=False)
    done = put_back(environment, found, _say, _asker(args), wanted=args.file, download=not args.no_download)
    return 0 if done else 1


_DO: dict[str, Callable[[argparse.Namespace, Host, Server, Environment], int]] = {
    "status": _status,
    "install": _install,
    "enable": _enable,
    "disable": _disable,
    "rollback": _rollback,
}
