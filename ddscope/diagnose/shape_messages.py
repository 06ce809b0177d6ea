"""Shape errors in the words of frameworks, parsed to the two widths that disagree. Pure functions over text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Widths:
    """Two widths that should be equal.

    given:    what came.
    expected: what the receiving side has.
    what:     the thing that has the width, in words.
    hidden:   the target's hidden size, when the message itself says it.
    roles:    False when the message does not say which side is right.
    by:       inputs: `given` came into a module; weights: a checkpoint's tensor does not fit the module that the
              server made; other: two sides of an operation.
    """

    given: int
    expected: int
    what: str
    hidden: int | None = None
    roles: bool = True
    by: str = "inputs"


_INT = r"(\d{1,12})"
_MATMUL = re.compile(rf"mat1 and mat2 shapes cannot be multiplied \({_INT}x{_INT} and {_INT}x{_INT}\)")
_FEATURE = re.compile(
    rf"feature dim mismatch\. Expected shape [\[(]N, ?{_INT}[\])].{{0,200}}?got shape=?\s?[\[(]{_INT}, ?{_INT}[\])]",
    re.S,
)
_HIDDEN = re.compile(rf"\bhidden_size={_INT}")
_FC_WEIGHT = re.compile(
    rf"fc\.weight shape mismatch.{{0,300}}?Expected fc\.weight\.shape=\({_INT}, ?{_INT}\) "
    rf"\(num_context_features={_INT}, hidden_size={_INT}\), but got \({_INT}, ?{_INT}\)",
    re.S,
)
_SIZE_MISMATCH = re.compile(
    r"size mismatch for (\S{1,200}): copying a param with shape torch\.Size\(\[([\d, ]{1,60})\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([\d, ]{1,60})\]\)"
)
_MUST_MATCH = re.compile(rf"The size of tensor a \({_INT}\) must match the size of tensor b \({_INT}\)")
_HAS_SHAPE = re.compile(rf"(\S{{1,200}}) has shape \[(?:\d+, )*{_INT}\] where \[(?:(?:\d+|any), )*{_INT}\] is expected")
_CAT = re.compile(rf"Expected size {_INT} but got size {_INT} for tensor number \d+ in the list")

MARKS = (
    "shapes cannot be multiplied",
    "shape mismatch",
    "dim mismatch",
    "size mismatch",
    "must match the size",
    "but got size",
    "is expected",
)
"""One of these is in every message that can be parsed; looking for them first keeps ordinary log lines cheap."""


def parse(message: str) -> Widths | None:
    """The widths of the first shape error in a message; None when there is none that is understood."""
    if "size" not in message and "match" not in message and "shape" not in message and "is expected" not in message:
        return None  # as nearly always
    if not any(mark in message for mark in MARKS):
        return None
    for pattern, read in _READERS:
        match = pattern.search(message)
        if match is not None:
            widths = read(match)
            if widths is not None and widths.given != widths.expected:
                return widths
    return None


def _matmul(m: re.Match[str]) -> Widths:
    return Widths(int(m[2]), int(m[3]), "the input of a matrix product")


def _feature(m: re.Match[str]) -> Widths:
    hidden = _HIDDEN.search(m[0])
    return Widths(int(m[3]), int(m[1]), "the hidden states given to the drafter", int(hidden[1]) if hidden else None)


def _has_shape(m: re.Match[str]) -> Widths:
    return Widths(int(m[2]), int(m[3]), m[1])


def _fc_weight(m: re.Match[str]) -> Widths:
    return Widths(int(m[6]), int(m[2]), "the drafter's fc.weight", int(m[4]), by="weights")


def _size_mismatch(m: re.Match[str]) -> Widths | None:
    checkpoint = [int(n) for n in m[2].split(",") if n.strip()]
    model = [int(n) for n in m[3].split(",") if n.strip()]
    if len(checkpoint) != len(model):
        return None
    for given, expected in zip(reversed(checkpoint), reversed(model), strict=True):
        if given != expected:
            return Widths(given, expected, m[1], by="weights")
    return None


def _must_match(m: re.Match[str]) -> Widths:
    return Widths(int(m[1]), int(m[2]), "one side of an elementwise operation", roles=False, by="other")


def _cat(m: re.Match[str]) -> Widths:
    return Widths(int(m[2]), int(m[1]), "one of the tensors to be joined", roles=False, by="other")


_READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Widths | None]], ...] = (
    (_FEATURE, _feature),
    (_HAS_SHAPE, _has_shape),
    (_FC_WEIGHT, _fc_weight),
    (_MATMUL, _matmul),
    (_SIZE_MISMATCH, _size_mismatch),
    (_MUST_MATCH, _must_match),
    (_CAT, _cat),
)
