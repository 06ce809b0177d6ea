"""Which taps there are, which the server at hand can take, and setting them: each with all of its hooks, or none."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook, Run, choose
from ddscope_hooks.taps.universal import PLAIN as _PLAIN

MODULES = ("requests", "universal", "eagle", "eagle_inputs", "ngram", "dflash", "dspark", "frozen_kv_mtp")
"""In the order in which their hooks are set. Without the first there is no record, and none of the others is set."""

PLAIN = frozenset({_PLAIN})
Register = Callable[[Hook, Run], None]


class Family(Protocol):
    """A module of taps."""

    NAME: str
    ALGORITHMS: frozenset[str] | None

    def hooks(self, core: Core) -> list[list[Hook]]:
        """Alternatives, best first."""


def families() -> list[Any]:
    """The modules; importing them imports neither torch nor the server."""
    return [importlib.import_module(f"ddscope_hooks.taps.{name}") for name in MODULES]


def install(core: Core, register: Register, modules: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Probe every tap and register those that fit. Returns the value of the fact `hooks.taps`."""
    modules = families() if modules is None else modules
    known = PLAIN.union(*(module.ALGORITHMS or () for module in modules))
    told: list[dict[str, Any]] = []
    first_is_off = False
    for number, module in enumerate(modules):
        if not _wanted(module.ALGORITHMS, core.algorithm, known):
            told.append({"tap": module.NAME, "live": False, "why": f"not for {core.algorithm}"})
            continue
        alternatives = module.hooks(core)
        group, why = choose(alternatives)
        if first_is_off:
            group, why = (), "the tap that all need is not live"
        shown = group or (alternatives[0] if alternatives else ())
        entry: dict[str, Any] = {"tap": module.NAME, "live": bool(group)}
        entry["target"] = ", ".join(dict.fromkeys(hook.target for hook in shown))
        if why is not None:
            entry["why"] = why
        breaker = core.breaker(module.NAME)
        ready = [(hook, breaker.guard(hook, core.gate)) for hook in group]  # all of them, before the first is set
        for hook, run in ready:
            register(hook, run)
        first_is_off = first_is_off or (number == 0 and not group)
        told.append(entry)
    return told


def _wanted(algorithms: frozenset[str] | None, algorithm: str, known: frozenset[str]) -> bool:
    """Whether a tap is for the algorithm; `*` stands for every one that no tap names."""
    return algorithms is None or algorithm in algorithms or ("*" in algorithms and algorithm not in known)


def check_applied(core: Core, taps: list[dict[str, Any]]) -> bool:
    """Once the server has applied the hooks: turn off, and tell of, each tap that it could not set. Whether any was."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    applied: Any = getattr(HookRegistry, "_patched", None)
    changed = False
    for tap in taps if isinstance(applied, set) else ():
        missing = [target for target in str(tap.get("target", "")).split(", ") if target not in applied]
        if tap["live"] and missing:
            core.breaker(str(tap["tap"])).off = changed = True
            tap.update(live=False, why=f"the server did not set the hook on {missing[0]}")
    return changed


def with_server(hook: Hook, run: Run) -> None:
    """Register with SGLang, which applies everything once all plug-ins were called."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(hook.target, run, HookType.BEFORE if hook.when == "before" else HookType.AFTER)
