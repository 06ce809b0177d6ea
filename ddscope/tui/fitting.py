"""Putting parts of unequal worth on one line: the least important give way first, in forms they offer themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddscope.tui.foreign import cells
from ddscope.tui.widgets.pane import Piece


@dataclass(frozen=True)
class Part:
    """One part of a line. forms: widest first, the last may be empty; weight: the higher, the longer it stays whole."""

    forms: tuple[tuple[Piece, ...], ...]
    weight: int
    gap: int = 3  # cells before it
    right: bool = False  # belongs to the right edge
    action: str = ""  # what a click on it does

    def size(self, form: int) -> int:
        """Cells of a form, the gap before it included; nothing when it is empty."""
        width = sum(cells(text) for text, _ in self.forms[form])
        return width + self.gap if width else 0


def fit(parts: Sequence[Part], width: int) -> list[int]:
    """The form of each part with which all fit into `width`; the smallest forms when even these do not."""
    chosen = [0] * len(parts)
    while sum(part.size(form) for part, form in zip(parts, chosen, strict=True)) > width:
        shrinkable = [place for place, part in enumerate(parts) if chosen[place] + 1 < len(part.forms)]
        if not shrinkable:
            break
        chosen[min(shrinkable, key=lambda place: (parts[place].weight, chosen[place]))] += 1
    return chosen
