"""Hooks on functions of the server: what one needs, whether its target has it, and the guard around each.

An exception in a hook would end the server, so none gets out; the breaker of a tap turns all of its hooks off at once.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Run = Callable[..., None]


class Gate:
    """Closed: no hook does anything, for as little as a look at this costs."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False


@dataclass(frozen=True)
class Hook:
    """A function of ours before or after one of the server's.

    target: dotted path of a function or method. when: "before" or "after". needs: names of parameters of the target,
    `self` included, whose values `run` gets in this order, however the caller gave them; "after" gets the result first.
    What `run` returns is ignored, so neither arguments nor results of the server are ever exchanged. always: also while
    the gate is closed. gate: one of its own, instead of the one for all.
    """

    target: str
    when: str
    needs: tuple[str, ...]
    run: Run
    always: bool = False
    gate: Gate | None = None


Places = tuple[tuple[str, int, Any], ...]
"""(name, position, default) of the parameters that a hook needs."""


class Breaker:
    """One tap's switch. It opens at the first exception and stays open; `report` is told once."""

    def __init__(self, tap: str, report: Callable[[str, BaseException], object]) -> None:
        self.tap = tap
        self.off = False
        self._report = report

    def trip(self, error: BaseException) -> None:
        """Turn the tap off for good. Never raises."""
        if not self.off:
            self.off = True
            with contextlib.suppress(Exception):  # nothing may come of a report that fails
                self._report(self.tap, error)

    def guard(self, hook: Hook, gate: Gate | None = None) -> Run:
        """What is registered for `hook`: never raises, returns None, does nothing once the breaker is open."""
        run, after, where = hook.run, hook.when == "after", places(hook)
        door = hook.gate or (Gate() if gate is None or hook.always else gate)
        shift = 1 if after else 0
        wanted = [0] * shift + [at + shift for _, at, _ in where]
        top, pick = max(wanted, default=-1), _picker(wanted)

        def guarded(*args: Any, **kwargs: Any) -> None:
            if door.closed or self.off:
                return
            try:
                if len(args) > top:  # all by position
                    run(*pick(args))
                    return
                values = [
                    kwargs[name] if name in kwargs else args[at + shift] if at + shift < len(args) else default
                    for name, at, default in where
                ]
                run(*args[:shift], *values)
            except Exception as error:
                self.trip(error)

        return guarded


def _picker(wanted: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Takes the wanted places out of a tuple."""
    if len(wanted) > 1:
        return operator.itemgetter(*wanted)
    return (lambda args: (args[wanted[0]],)) if wanted else lambda _: ()


def resolve(target: str) -> Any:
    """The function at a dotted path. Imports its module. Raises ValueError in one sentence when there is none."""
    path, _, name = target.rpartition(".")
    try:
        owner = pkgutil.resolve_name(path)
    except Exception as error:  # whatever a module raises when it is imported
        raise ValueError(f"{path} cannot be imported ({type(error).__name__}: {error})"[:300]) from None
    function = getattr(owner, name, None)
    if function is None:
        raise ValueError(f"{target} does not exist")
    if isinstance(function, type) or not callable(function):
        raise ValueError(f"{target} is no function")
    return function


def places(hook: Hook) -> Places:
    """Where the target has what the hook needs. Raises ValueError in one sentence when it cannot be set."""
    try:
        parameters = inspect.signature(resolve(hook.target)).parameters
    except TypeError:
        raise ValueError(f"{hook.target} does not say what it takes") from None
    missing = [need for need in hook.needs if need not in parameters]
    if missing:
        raise ValueError(f"{hook.target} has no parameter {', '.join(missing)}")
    order = list(parameters)
    by_name = inspect.Parameter.KEYWORD_ONLY
    return tuple(
        (need, 1 << 30 if parameters[need].kind is by_name else order.index(need), _default(parameters[need]))
        for need in hook.needs
    )


def _default(parameter: inspect.Parameter) -> Any:
    return None if parameter.default is inspect.Parameter.empty else parameter.default


def problem(hook: Hook) -> str | None:
    """Why the hook cannot be set, in one sentence; None when it can."""
    try:
        places(hook)
    except ValueError as error:
        return str(error)
    return None


def choose(alternatives: Sequence[Sequence[Hook]]) -> tuple[Sequence[Hook], str | None]:
    """The first group of hooks that can be set as a whole; else none, and why the first could not."""
    whys = []
    for group in alternatives:
        problems = [why for hook in group if (why := problem(hook)) is not None]
        if not problems:
            return group, None
        whys.append(problems[0])
    return (), whys[0] if whys else "it has no hooks"
