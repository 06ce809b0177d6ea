"""Starts the hooks of one scheduler process: emitter, core, taps, facts. Called by the plug-in, once."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from ddscope_hooks.config import Config
from ddscope_hooks.emit import EmitError, Emitter
from ddscope_hooks.relay import AnyEmitter, RelayEmitter
from ddscope_hooks.taps import control, errors, facts, registry
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.place import place_of
from ddscope_hooks.taps.text import TokenText
from ddscope_hooks.taps.universal import PLAIN

RING = 4096
logger = logging.getLogger("ddscope_hooks")


def start(config: Config, call: Mapping[str, Any], environ: Mapping[str, str]) -> Core | None:
    """Begin to serve, and set what fits. call: arguments of the scheduler's entry function.

    None when there is nowhere to emit to; the reason is logged.
    """
    args, place = call["server_args"], place_of(call)
    algorithm = str(getattr(args, "speculative_algorithm", None) or PLAIN)
    text, commands = TokenText(), control.Control()
    options: dict[str, Any] = {
        "ring": RING,
        "token_text": None if config.redact else text,
        "on_control": commands,
        "control": config.control,
    }
    header = facts.header(args, place, algorithm, environ, config.redact)
    emitter, problems = _emitter(config, f"engine/{place.rank}", header, options)
    used, unused = _listen(emitter, config, place.rank)
    problems += unused
    if not used:
        emitter.close(0.1)
        say([*config.problems, *problems, "Hooks are off."], logging.WARNING)
        return None
    core = Core(config, emitter, place, algorithm)
    taps = registry.install(core, registry.with_server)
    commands.serve(core)
    core.on_meet(lambda scheduler: _recheck(core, taps))
    core.on_meet(lambda scheduler: text.use(getattr(scheduler, "tokenizer", None)))
    core.fact("versions", facts.versions())
    core.fact("hooks.taps", taps)
    core.fact("hooks.sampling", control.sampling(core))
    errors.listen(emitter)
    say([*config.problems, *problems, f"Emitting to {', '.join(used)}.", summary(taps)], logging.WARNING)
    return core


def summary(taps: list[dict[str, Any]]) -> str:
    """Taps in one sentence: which are live, which are missing and why. Those of other algorithms are neither."""
    live = [str(tap["tap"]) for tap in taps if tap["live"]]
    missing = [f"{tap['tap']} ({tap.get('why')})" for tap in taps if not tap["live"] and "target" in tap]
    return f"Taps live: {', '.join(live) or 'none'}; not: {', '.join(missing) or 'none'}."


def say(sentences: list[str], level: int) -> None:
    """One line in the server's log: a warning, as no other level is set up in a scheduler when plug-ins load."""
    logger.log(level, "ddscope [pid %d]: %s", os.getpid(), " ".join(sentences))


def _emitter(config: Config, src: str, header: dict[str, Any], options: dict[str, Any]) -> tuple[AnyEmitter, list[str]]:
    """One with a process of its own; where that cannot be started, one in this process, and a sentence."""
    problems = []
    if config.relay:
        try:
            return RelayEmitter(src, header, **options), []
        except EmitError as error:
            problems = [f"{error} This process does it itself."]
    return Emitter(src, header, **options), problems


def _recheck(core: Core, taps: list[dict[str, Any]]) -> None:
    if registry.check_applied(core, taps):
        core.fact("hooks.taps", taps)
        say([summary(taps)], logging.WARNING)


def _listen(emitter: AnyEmitter, config: Config, rank: int) -> tuple[list[str], list[str]]:
    used, problems = [], []
    for target in config.targets:
        try:
            used.append(emitter.listen(target.replace("%r", str(rank))))
        except EmitError as error:
            problems.append(str(error))
    return used, problems
