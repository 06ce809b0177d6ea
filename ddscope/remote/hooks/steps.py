"""A change as a list of steps: each command shown before it runs, written into the host's journal before and after."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddscope.remote.doctor.items import shown
from ddscope.remote.hooks.environment import Environment, Say, run
from ddscope.remote.host import HostError


@dataclass(frozen=True)
class Step:
    """One command on the host. shown: as it is shown; content: what it is given, shown too; act: instead of a command.

    entry: what the journal says of it; act may return more for it.
    """

    shown: str
    argv: tuple[str, ...] = ()
    content: str = ""
    act: Callable[[], dict[str, Any] | None] | None = None
    entry: dict[str, Any] = field(default_factory=dict)


def command(*argv: str, content: str = "", entry: dict[str, Any] | None = None) -> Step:
    """A step that is a command."""
    text = shlex.join(argv)
    return Step(f"{text} <<'EOF'" if content else text, argv, content, None, entry or {})


def show(steps: Sequence[Step], host: str, say: Say) -> None:
    """All steps, as they will run."""
    say(f"On {shown(host)}, in this order:")
    for number, step in enumerate(steps, 1):
        say(f"  {number}  {shown(step.shown, 1000)}")
        for line in step.content.splitlines():
            say(f"       | {shown(line)}")


def carry_out(steps: Sequence[Step], environment: Environment, say: Say) -> None:
    """Run them. Stops at the first that fails (HostError); the journal says how far it came."""
    for step in steps:
        say(f"$ {shown(step.shown, 1000)}")
        told = {"shown": step.shown, **step.entry}
        if step.entry:
            environment.note(state="begun", **told)
        try:
            more = step.act() if step.act is not None else None
            if step.argv:
                run(environment.host, step.argv, input=step.content.encode())
        except HostError as problem:
            if step.entry:
                environment.note(state="failed", why=str(problem), **told)
            raise
        if step.entry:
            environment.note(state="done", **{**told, **(more or {})})


Ask = Callable[[str], bool]
"""Asks a person a question; True for yes."""


def agree(steps: Sequence[Step], environment: Environment, say: Say, ask: Ask) -> bool:
    """Show all steps, ask once, run them. False when the answer was no: then nothing was changed."""
    show(steps, environment.host.name, say)
    if not ask("Go on?"):
        say("Nothing was changed.")
        return False
    carry_out(steps, environment, say)
    return True
