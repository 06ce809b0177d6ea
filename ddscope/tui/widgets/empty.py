"""EmptyPane: a place on the screen whose content does not exist here; it says why and what gives it."""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.tui.widgets.pane import LinePane, Piece


class EmptyPane(LinePane):
    """Only ever its `empty_reason`."""

    def draw_line(self, y: int) -> Iterable[Piece]:
        """Nothing."""
        return ()
