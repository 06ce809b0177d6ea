"""What two widths that disagree mean: layers of hidden states, packed weights, or just two numbers. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from ddscope.diagnose.shape_messages import Widths
from ddscope.diagnose.words import number_word

MAX_LAYERS = 256
"""More layers than any target has: a ratio beyond it is a coincidence."""
PACKED_TYPES = ("uint8", "int8", "float4", "fp4", "nvfp4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Meaning:
    """kind: layers, checkpoint, packed, size. words: the title without its full stop; next: what to do."""

    kind: str
    words: str
    next: tuple[str, ...]
    confidence: float


def explain(widths: Widths, hidden: int | None, layers: int | None, dtype: str = "") -> Meaning:
    """What the widths mean.

    hidden: the target's hidden size, where known.
    layers: how many target layers the drafter's own configuration names, where known.
    dtype:  of the tensor that was given, "" where unknown.
    """
    given, expected = widths.given, widths.expected
    if given == expected:
        return Meaning("size", f"{widths.what} is marked as not fitting", _NEXT_SIZE, 0.7)
    hidden = widths.hidden or hidden
    if widths.by == "weights":
        return _weights(widths, hidden)
    packed = any(name in dtype.lower() for name in PACKED_TYPES)
    if widths.roles and not packed:
        counts = layer_counts(given, expected, hidden, layers)
        if counts is not None:
            return _layers(widths, *counts)
    if _twice(given, expected) and (packed or not widths.roles or hidden is None):
        return _packed(widths, certain=packed)
    if not widths.roles:
        words = f"{widths.what} has width {given:,} where the other has {expected:,}"
        return Meaning("size", words, _NEXT_SIZE, 0.7)
    return Meaning("size", f"width {expected:,} expected, {given:,} given, at {widths.what}", _NEXT_SIZE, 0.8)


def layer_counts(given: int, expected: int, hidden: int | None, layers: int | None) -> tuple[int, int, int] | None:
    """(hidden size, layers given, layers expected) when both widths are whole numbers of hidden states, else None.

    Without a hidden size, the smaller width is taken for one layer, if the count of layers is known to be the ratio.
    """
    if hidden is None or hidden <= 0:
        if given <= 0 or layers is None or expected != given * layers:
            return None
        hidden = given
    if given % hidden or expected % hidden:
        return None
    n, m = given // hidden, expected // hidden
    if not (1 <= n <= MAX_LAYERS and 1 <= m <= MAX_LAYERS) or n == m:
        return None
    return hidden, n, m


def _layers(widths: Widths, hidden: int, n: int, m: int) -> Meaning:
    given, expected = _times(n, hidden), _times(m, hidden)
    words = f"{expected} expected, {given} given: {_count(n)} given, {number_word(m)} expected"
    if n == 1:
        words += ": hidden states are not captured for this algorithm"
        todo: tuple[str, ...] = (
            "Check that the server turns on hidden-state capture for this algorithm (its predicate is often a list of "
            "algorithm names), and that `target_layer_ids` of the drafter's configuration reach it.",
        )
    elif n > m:
        words += ": more layers reach the drafter than it was trained on"
        todo = ("Pass only the layers of `target_layer_ids` on, in that order, not all hidden states.",)
    else:
        words += ": some of the drafter's layers are not captured"
        todo = ("Compare `target_layer_ids` of the drafter's configuration with the layers that are captured.",)
    return Meaning("layers", words, (*todo, _AGAIN), 0.95)


def _weights(widths: Widths, hidden: int | None) -> Meaning:
    given, expected = widths.given, widths.expected
    counts = layer_counts(given, expected, hidden, None)
    if counts is not None:
        size, n, m = counts
        words = (
            f"{widths.what} is {_times(n, size)} wide, the server made room for {_times(m, size)}: "
            f"the drafter is made for {_count(n)}, the server gives it {_count(m)}"
        )
        todo = (
            "Compare `target_layer_ids` in the drafter's configuration with what the server resolved: a "
            "missing key is guessed.",
            _AGAIN,
        )
        return Meaning("checkpoint", words, todo, 0.95)
    if _twice(given, expected):
        return _packed(widths, certain=False)
    words = f"{widths.what} is {given:,} wide in the checkpoint, {expected:,} in the model that the server made"
    return Meaning("checkpoint", words, ("Check that configuration and weights are of the same drafter.", _AGAIN), 0.85)


def _packed(widths: Widths, *, certain: bool) -> Meaning:
    small, large = sorted((widths.given, widths.expected))
    likely = "" if certain else ", most likely"
    words = f"{large:,} is exactly 2 × {small:,}, at {widths.what}: 4-bit weights packed two to a byte{likely}"
    todo = (
        "Check that the module is created with the quantisation its checkpoint has: draft layers are often "
        "left unquantised.",
        "If nothing is quantised, two models with different hidden sizes meet here: compare target and draft.",
    )
    return Meaning("packed", words, todo, 0.9 if certain else 0.6)


def _twice(a: int, b: int) -> bool:
    return min(a, b) > 0 and max(a, b) == 2 * min(a, b)


def _times(n: int, hidden: int) -> str:
    return f"{n * hidden:,}" if n == 1 else f"{n * hidden:,} = {n} × {hidden:,}"


def _count(n: int) -> str:
    return f"{number_word(n)} layer" + ("" if n == 1 else "s")


_AGAIN = "Run again after the fix: the first shape error often hides a second fault."
_NEXT_SIZE = (
    "Find the two modules that meet here, and compare the configurations they were made from.",
    "Check that the draft is made for this target: width alone does not pair them, the tokenizer must match too.",
    _AGAIN,
)
