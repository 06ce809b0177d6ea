"""What a tensor's shape means in words: which dimension is off, by what factor, and what that factor usually is."""

from __future__ import annotations

from collections.abc import Sequence

from ddscope.model import Tensor

_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def shape_text(shape: Sequence[int | None]) -> str:
    """[60, 2880] as "60 × 2,880"; a size that may be anything is "any"; no dimensions are "scalar"."""
    return " × ".join("any" if size is None else f"{size:,}" for size in shape) or "scalar"


def tensor_words(tensor: Tensor, hidden_size: int | None = None) -> str:
    """What to say of a tensor. hidden_size: of the target, which tells that a width counts layers."""
    if tensor.expect is None:
        return (
            "the source calls it wrong and does not say what it expects"
            if tensor.ok is False
            else "no expectation told"
        )
    shape, expect = tensor.shape, tensor.expect
    if len(shape) != len(expect):
        noun = "dimension" if len(shape) == 1 else "dimensions"
        return f"{len(shape)} {noun} where {len(expect)} are expected ({shape_text(expect)})"
    wrong = [
        _dimension(axis, got, want, hidden_size)
        for axis, (got, want) in enumerate(zip(shape, expect, strict=True))
        if want is not None and got != want
    ]
    if wrong:
        return "; ".join(wrong)
    if tensor.ok is False:
        return "the shape fits, yet the source calls it wrong"
    return "as expected"


def _dimension(axis: int, got: int, want: int, hidden: int | None) -> str:
    if hidden is not None and hidden > 0 and got > 0 and got % hidden == 0 and want % hidden == 0 and want > hidden:
        given, needed = got // hidden, want // hidden
        return (
            f"{got:,} given, {want:,} = {needed:,} × {hidden:,} expected: "
            f"{_count(given)} {'layer' if given == 1 else 'layers'} given, {_count(needed)} expected"
        )
    if got > 0 and want > got and want % got == 0:
        return f"{got:,} given, {want:,} = {want // got:,} × {got:,} expected{_layers(want // got)}"
    if want > 0 and got > want and got % want == 0:
        twice = ": exactly twice, as two packed halves would be" if got == 2 * want else ""
        return f"{got:,} = {got // want:,} × {want:,} given, {want:,} expected{twice}"
    return f"{got:,} given, {want:,} expected (dimension {axis})"


def _layers(factor: int) -> str:
    # Captured layers are concatenated along the width; a factor of two is as often a packing or a split.
    return ": one layer given?" if factor > 2 else ""


def _count(number: int) -> str:
    return _COUNTS[number] if 0 <= number < len(_COUNTS) else f"{number:,}"
