"""Control messages of the embedded engine: what each command takes, checked before the engine sees it.

A message is turned into one small command value; `ddscope.engine.server` carries it out between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddscope.engine.breakpoints import Breakpoint
from ddscope.engine.breakpoints import parse as parse_breakpoint
from ddscope.engine.errors import EngineError

ALGORITHMS = ("autoregressive", "dflash", "ddtree")
MAX_BUDGET = 1024
AUTO = "auto"


@dataclass(frozen=True)
class Submit:
    """Run a request: a chat prompt or token ids, with the parameters that differ from the engine's own."""

    rid: str | None
    prompt: str | None
    prompt_ids: list[int] | None
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Set:
    """Change parameters of the running request (between steps) and of those that follow."""

    overrides: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """pause, resume or step (one step, then pause)."""

    mode: str


@dataclass(frozen=True)
class Break:
    """Add or remove a breakpoint."""

    point: Breakpoint
    add: bool


@dataclass(frozen=True)
class SelfCheck:
    """Replay probe every `every` steps (0 = off); `now` asks for one at the next step."""

    every: int | None
    now: bool


@dataclass(frozen=True)
class Abort:
    """End a request (None: the running one)."""

    rid: str | None


@dataclass(frozen=True)
class Shutdown:
    """Leave the loop after the running step."""


Command = Submit | Set | Run | Break | SelfCheck | Abort | Shutdown


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise EngineError(f"{name} takes a whole number from {low} to {high:,}, not {value!r}.")
    return value


def _budget(value: Any) -> int | str:
    if isinstance(value, str):
        if value != AUTO:
            raise EngineError(f"budget takes a whole number from 0 to {MAX_BUDGET:,} or {AUTO}, not {value!r}.")
        return AUTO
    return _integer("budget", value, 0, MAX_BUDGET)


def _optional(name: str, value: Any, low: int, high: int) -> int | None:
    return None if value is None else _integer(name, value, low, high)


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise EngineError(f"{name} takes a number from {low:g} to {high:g}, not {value!r}.")
    return float(value)


def _algorithm(value: Any) -> str:
    if value not in ALGORITHMS:
        raise EngineError(f"No algorithm {value!r}; there are {', '.join(ALGORITHMS)}.")
    return str(value)


PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "algorithm": _algorithm,
    "budget": _budget,
    "topk": lambda v: _optional("topk", v, 1, MAX_BUDGET),
    "temperature": lambda v: _number("temperature", v, 0, 10),
    "seed": lambda v: _integer("seed", v, 0, 2**53 - 1),
    "max_new_tokens": lambda v: _integer("max_new_tokens", v, 1, 1 << 20),
    "draft_rows": lambda v: _optional("draft_rows", v, 2, 1 << 12),
    "draft_vocab": lambda v: _optional("draft_vocab", v, 1, 1 << 30),
    "cut": lambda v: _number("cut", v, 0, 0.99),
}
"""Generation parameters by name, as `ddscope.engine.step.Params` has them, and the check of each."""


def parameters(args: dict[str, Any], allowed: tuple[str, ...] = tuple(PARAMETERS)) -> dict[str, Any]:
    """The generation parameters among `args`, checked. Raises EngineError for the first that is wrong."""
    return {name: PARAMETERS[name](args[name]) for name in allowed if name in args}


def _submit(args: dict[str, Any]) -> Submit:
    prompt, ids, rid = args.get("prompt"), args.get("prompt_ids"), args.get("rid")
    if rid is not None and not isinstance(rid, str):
        raise EngineError(f"A request's rid is a text, not {rid!r}.")
    if ids is not None:
        if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise EngineError("prompt_ids takes a list of at least one token id.")
        return Submit(rid, None, ids, parameters(args))
    if not isinstance(prompt, str) or not prompt:
        raise EngineError("submit takes a prompt (a text that is not empty) or prompt_ids.")
    return Submit(rid, prompt, None, parameters(args))


def _set(args: dict[str, Any]) -> Set:
    allowed = ("algorithm", "budget", "topk", "temperature", "draft_rows", "draft_vocab", "cut")
    unknown = [name for name in args if name not in allowed]
    if unknown or not args:
        raise EngineError(f"set takes {', '.join(allowed)}" + (f"; not {', '.join(unknown)}." if unknown else "."))
    return Set(parameters(args, allowed))


def _abort(args: dict[str, Any]) -> Abort:
    rid = args.get("rid")
    return Abort(rid if isinstance(rid, str) else None)


_COMMANDS: dict[str, Callable[[dict[str, Any]], Command]] = {
    "submit": _submit,
    "set": _set,
    "pause": lambda _: Run("pause"),
    "resume": lambda _: Run("resume"),
    "step": lambda _: Run("step"),
    "break": lambda args: Break(parse_breakpoint(args), add=True),
    "unbreak": lambda args: Break(parse_breakpoint(args), add=False),
    "self_check": lambda args: SelfCheck(_integer("every", args.get("every"), 0, 1 << 20), now=False),
    "check_now": lambda _: SelfCheck(None, now=True),
    "abort": _abort,
    "shutdown": lambda _: Shutdown(),
}


def parse(message: dict[str, Any]) -> Command:
    """A control message (`{"command": …, "args": {…}}`) as a command. Raises EngineError in one sentence."""
    name, args = message.get("command"), message.get("args") or {}
    if not isinstance(name, str) or name not in _COMMANDS:
        raise EngineError(f"No command {name!r}; there are {', '.join(_COMMANDS)}.")
    if not isinstance(args, dict):
        raise EngineError(f"The arguments of {name} are an object, not {args!r}.")
    return _COMMANDS[name](args)
