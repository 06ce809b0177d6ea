"""`install`, `enable`, `disable` and `rollback`, whole: what is looked at, shown, asked, done and proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddscope.remote.doctor.collected import Collected
from ddscope.remote.doctor.items import count, shown
from ddscope.remote.doctor.locate import Server
from ddscope.remote.doctor.pristine import PristineFiles
from ddscope.remote.hooks import enabling, installing, rollback
from ddscope.remote.hooks.environment import Environment, Say
from ddscope.remote.hooks.ledger import add_up
from ddscope.remote.hooks.steps import Ask, Step, agree
from ddscope.remote.hooks.wheel import build
from ddscope.remote.host import HostError
from ddscope.remote.sudo import Runs

BEFORE = "before.json.gz"


def install(environment: Environment, say: Say, ask: Ask, *, quick: bool) -> bool:
    """The wheel into the environment; a hash of it is taken first. False when the person said no."""
    state, wheel = environment.state(), build()
    installing.refuse(state, environment.host.name)
    if installing.up_to_date(state, wheel):
        say(f"The hooks {wheel.version} are installed already.")
        return True
    ledger = add_up(state.journal)
    if state.holder() is not None and ledger.installed is None:
        raise HostError("Hooks are installed there, but not by `ddscope hooks install`: remove them first.")
    before = None
    if ledger.installed is None:
        say(f"Hashing {shown(state.prefix)} on {shown(environment.host.name)}, so that a rollback can be proved …")
        before = environment.snapshot(quick=quick, save=BEFORE)
        say(f"{before.hash}  {count(before.files, 'file')}, {before.bytes:,} bytes")
    if not agree(installing.install(environment, state, ledger, wheel, before), environment, say, ask):
        return False
    if not installing.up_to_date(environment.state(), wheel):
        raise HostError(
            f"The hooks were installed on {environment.host.name}, but are not found there as they should be."
        )
    say(f"Installed {wheel.version}. They do nothing until DDSCOPE is set: ddscope hooks enable")
    return True


def enable(
    environment: Environment, server: Server, say: Say, ask: Ask, *, target: str | None, settings: Mapping[str, str]
) -> bool:
    """A drop-in for the unit, read by systemd. The restart is only shown. False when the person said no."""
    host = environment.host
    if server.unit is None:
        raise HostError(
            f"The server on {host.name} is in no systemd unit: start it with DDSCOPE=unix:PATH in its environment."
        )
    state = environment.state()
    if state.holder() is None and state.holder("ddscope") is None:
        raise HostError(f"The hooks are not installed on {host.name}: ddscope hooks install comes first.")
    unit = enabling.load_unit(host, server.unit, server.user)
    text = enabling.drop_in(unit, target, settings)
    if unit.need_reload:
        say(
            f"Mind: files of {shown(unit.name)} changed since systemd read them; the daemon-reload below takes them in."
        )
    if not agree(enabling.enable(host, unit, text), environment, say, ask):
        return False
    now = enabling.load_unit(host, server.unit, server.user)
    if "DDSCOPE" not in now.environment or unit.path not in now.drop_ins:
        raise HostError(f"systemd on {host.name} does not take DDSCOPE from {unit.path}: another drop-in may reset it.")
    say(f"Enabled for the next start of {shown(unit.name)}: DDSCOPE={shown(now.environment['DDSCOPE'])}")
    say(f"ddscope never restarts a service. When it suits:  {enabling.restart(unit.name, unit.user)}")
    return True


def disable(environment: Environment, say: Say, ask: Ask) -> bool:
    """Our drop-ins removed. The restart is only shown. False when the person said no."""
    ledger = add_up(environment.state().journal)
    if not ledger.drop_ins:
        say("Nothing is enabled by `ddscope hooks` there.")
        return True
    steps = [step for drop in ledger.drop_ins for step in enabling.disable(environment.host, drop)]
    if not agree(steps, environment, say, ask):
        return False
    for drop in ledger.drop_ins:
        command = enabling.restart(drop.unit, drop.user, drop.sockets)
        say(f"Off for the next start of {shown(drop.unit)}. When it suits:  {command}")
    return True


def undo(environment: Environment, say: Say, ask: Ask) -> bool:
    """Drop-ins and wheel removed, and the proof. False when the person said no, or the environment is not as before."""
    state = environment.state()
    ledger = add_up(state.journal)
    steps: list[Step] = [step for drop in ledger.drop_ins for step in enabling.disable(environment.host, drop)]
    steps += rollback.removal(environment, state, ledger)
    if not steps:
        say("Nothing of `ddscope hooks` is there: nothing to take back.")
        return True
    if not agree(steps, environment, say, ask):
        return False
    equal = True
    if ledger.installed is not None:
        say(f"Hashing {shown(state.prefix)} …")
        against = BEFORE if ledger.manifest else None
        shot = environment.snapshot(against=against)
        for line in rollback.proof(shot):
            say(line)
        equal = shot.before is None or shot.code == shot.before.code
    for drop in ledger.drop_ins:
        command = enabling.restart(drop.unit, drop.user, drop.sockets)
        say(f"The running service keeps what it has loaded. When it suits:  {command}")
    say(f"What was changed and when stays in {shown(state.state)} (remove it with rm -r).")
    return equal


def put_back(
    environment: Environment,
    found: Collected,
    say: Say,
    ask: Ask,
    *,
    wanted: Sequence[str],
    download: bool,
) -> bool:
    """Foreign patched files as their wheel had them, each after its diff. False when the person said no to one."""
    chosen = rollback.patched(found, wanted, PristineFiles(download=download))
    if not chosen:
        say(f"No file on {shown(found.host)} differs from its wheel.")
        return True
    agreed = True
    for one in chosen:
        for line in one.diff:
            say(shown(line, 1000))
        agreed = agree([rollback.restore(environment, one)], environment, say, ask) and agreed
    say("What was replaced is kept in ddscope's folder on the host. A running server still has the old code loaded.")
    return agreed


def open_environment(host: Runs, server: Server) -> Environment:
    """The environment of a server."""
    return Environment(host, server.python)
