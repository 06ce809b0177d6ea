"""The wheel into an environment and out of it: by pip where there is one, else unpacked. The steps, not their order."""

from __future__ import annotations

import shlex

from ddscope.remote.hooks.environment import Environment, Shot, State
from ddscope.remote.hooks.ledger import INSTALL, UNINSTALL, Ledger
from ddscope.remote.hooks.steps import Step, command
from ddscope.remote.hooks.wheel import Wheel
from ddscope.remote.host import HostError

_UMASK = 'umask 022; exec "$0" "$@"'
"""Whoever installs may have a stricter one; the server's user has to be able to read what is installed."""


def refuse(state: State, name: str) -> None:
    """Raises HostError where the hooks must not, or cannot, be installed."""
    whole = state.holder("ddscope")
    if whole is not None:
        raise HostError(
            f"{name} has ddscope {whole.version} in this environment, hooks included: there is nothing to install."
        )
    if not state.writable:
        raise HostError(
            f"{state.purelib} on {name} cannot be written by this user: connect as its owner, or use --sudo."
        )


def up_to_date(state: State, wheel: Wheel) -> bool:
    """Whether these very hooks are installed, whole."""
    holder = state.holder()
    return holder is not None and holder.version == wheel.version and holder.whole


def install(environment: Environment, state: State, ledger: Ledger, wheel: Wheel, before: Shot | None) -> list[Step]:
    """Steps that install the wheel over whatever hooks are there. before: the snapshot that was just taken."""
    path = f"{state.state}/{wheel.name}"
    way = "pip" if state.pip else "unpack"
    manifest = ledger.manifest or (before.saved if before is not None else None)
    entry = {"what": INSTALL, "way": way, "wheel": path, "version": wheel.version, "manifest": manifest}

    def push() -> None:
        environment.keep(wheel.name, wheel.data)

    def unpack() -> None:
        if state.holder() is not None:
            environment.ask("remove")
        environment.ask("unpack", wheel=path)

    size = f"{len(wheel.data):,} bytes, sha256 {wheel.sha256[:16]}…"
    steps = [Step(f"write {path}  ({size}, {len(wheel.files)} files: ddscope_hooks and nothing else)", act=push)]
    if way == "unpack":
        text = f"{environment.python} - unpack {path} into {state.purelib}  (there is no pip here; a RECORD is written)"
        return [*steps, Step(text, act=unpack, entry=entry)]
    # --isolated: settings of the host (indexes, targets, constraints) are for other packages. No byte code: the
    # server makes it when it needs it, and what is not written need not be removed.
    words = ["--isolated", "install", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "-q"]
    words += ["--force-reinstall"] if state.holder() is not None else []
    words += ["--break-system-packages"] if state.managed else []
    argv = (environment.python, "-B", "-m", "pip", *words, path)
    return [*steps, Step(f"umask 022; {shlex.join(argv)}", ("sh", "-c", _UMASK, *argv), entry=entry)]


def uninstall(environment: Environment, state: State, ledger: Ledger) -> list[Step]:
    """Steps that remove the hooks and what Python compiled of them."""

    def remove() -> None:
        environment.ask("remove")

    def sweep() -> None:
        environment.ask("sweep")

    entry = {"what": UNINSTALL}
    holder = state.holder()
    if holder is None:
        text = f"{environment.python} - remove byte code of ddscope_hooks from {state.purelib}"
        return [Step(text, act=sweep, entry=entry)] if ledger.installed is not None else []
    if holder.installer != "pip" or not state.pip:
        text = f"{environment.python} - remove the files in the RECORD of ddscope_hooks from {state.purelib}"
        return [Step(text, act=remove, entry=entry)]
    words = ["--isolated", "uninstall", "-y", "-q", "--disable-pip-version-check"]
    words += ["--break-system-packages"] if state.managed else []
    return [
        command(environment.python, "-B", "-m", "pip", *words, "ddscope-hooks"),
        Step(f"{environment.python} - remove byte code of ddscope_hooks from {state.purelib}", act=sweep, entry=entry),
    ]
