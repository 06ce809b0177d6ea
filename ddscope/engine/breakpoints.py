"""Breakpoints of the embedded engine: conditions on a verified, not yet committed step.

Pure checks; what happens when one hits is `ddscope.engine.server`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddscope.engine.errors import EngineError

if TYPE_CHECKING:
    from ddscope.engine.step import StepResult

FLOOD_WINDOW = 8
"""Tokens: one id this many times in a row is a flood."""


@dataclass(frozen=True)
class Moment:
    """A step that may stop: its number, its result (None where the drafter's input did not fit), the output so far."""

    step: int
    result: StepResult | None
    output: list[int]
    tree_nodes: int
    shape_mismatch: str | None
    token_text: Callable[[int], str]


@dataclass(frozen=True)
class Breakpoint:
    """`kind` is one of KINDS; `value` is a text for token_text, a step number for step, else None."""

    kind: str
    value: str | int | None = None

    def as_fact(self) -> dict[str, Any]:
        """JSON form, as in the `breakpoints` fact."""
        return {"kind": self.kind, "value": self.value}


def _accepted_zero(_: Breakpoint, at: Moment) -> str | None:
    # Plain decoding drafts nothing, so nothing could have been accepted.
    if at.result is not None and at.tree_nodes and len(at.result.path) == 1:
        return "no drafted token was accepted"
    return None


def _nonfinite(_: Breakpoint, at: Moment) -> str | None:
    counts = {place: n for place, n in (at.result.nonfinite if at.result else {}).items() if n}
    if not counts:
        return None
    return "non-finite logits: " + ", ".join(f"{n:,} at the {place}" for place, n in counts.items())


def _token_flood(_: Breakpoint, at: Moment) -> str | None:
    if at.result is None:
        return None
    tail = (at.output + at.result.emitted)[-FLOOD_WINDOW:]
    if len(tail) == FLOOD_WINDOW and len(set(tail)) == 1:
        return f"token {tail[0]} {at.token_text(tail[0])!r} {FLOOD_WINDOW} times in a row"
    return None


def _shape_mismatch(_: Breakpoint, at: Moment) -> str | None:
    return at.shape_mismatch


def _token_text(bp: Breakpoint, at: Moment) -> str | None:
    if at.result is None:
        return None
    for token in at.result.emitted:
        if str(bp.value) in at.token_text(token):
            return f"token {token} {at.token_text(token)!r} is about to be emitted"
    return None


def _step(bp: Breakpoint, at: Moment) -> str | None:
    return f"step {at.step}" if at.step == bp.value else None


KINDS: dict[str, Callable[[Breakpoint, Moment], str | None]] = {
    "accepted_zero": _accepted_zero,
    "nonfinite": _nonfinite,
    "token_flood": _token_flood,
    "shape_mismatch": _shape_mismatch,
    "token_text": _token_text,
    "step": _step,
}
"""Kind → check; a check returns the reason in words, or None."""


def parse(args: dict[str, Any]) -> Breakpoint:
    """A breakpoint from a control message's arguments. Raises EngineError in one sentence."""
    kind = args.get("kind")
    if kind not in KINDS:
        raise EngineError(f"No breakpoint of kind {kind!r}; there are {', '.join(KINDS)}.")
    value = args.get("value")
    if kind == "step":
        try:
            return Breakpoint(kind, int(str(value)))
        except ValueError:
            raise EngineError(f"A breakpoint on a step takes its number, not {value!r}.") from None
    if kind == "token_text":
        if not isinstance(value, str) or not value:
            raise EngineError("A breakpoint on a token's text takes the text to look for.")
        return Breakpoint(kind, value)
    return Breakpoint(kind)


def first_hit(points: Iterable[Breakpoint], moment: Moment) -> str | None:
    """Why the engine should stop here: the first breakpoint that holds, in words; None to go on."""
    for point in points:
        reason = KINDS[point.kind](point, moment)
        if reason:
            return reason
    return None
