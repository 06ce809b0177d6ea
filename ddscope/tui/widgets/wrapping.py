"""Wrapping styled pieces into lines of a pane, with a label in front or without. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.style import Style

from ddscope.tui import foreign
from ddscope.tui.widgets.pane import Piece

_ATOM = re.compile(r" +|[^ ]+")


def wrap_pieces(pieces: Iterable[Piece], width: int) -> list[list[Piece]]:
    """Pieces in lines of at most `width` cells, broken at spaces; a word longer than a line is broken inside.

    A word may span pieces: styles never move a break.
    """
    width = max(width, 1)
    lines: list[list[Piece]] = [[]]
    used = 0
    for word in _words(pieces):
        size = sum(foreign.cells(text) for text, _ in word)
        if word[0][0].isspace():
            if used and used + size <= width:
                lines[-1] += word
                used += size
            elif used:
                lines.append([])
                used = 0
            continue
        if used and used + size > width:
            lines.append([])
            used = 0
        for text, style in word:
            for place, part in enumerate(foreign.split(text, width - used, width)):
                if place:
                    lines.append([])
                    used = 0
                if part:
                    lines[-1].append((part, style))
                    used += foreign.cells(part)
    return lines


def _words(pieces: Iterable[Piece]) -> Iterable[list[Piece]]:
    """Runs of spaces, and words made of parts with different styles."""
    word: list[Piece] = []
    for text, style in pieces:
        for match in _ATOM.finditer(text):
            atom = match.group()
            if atom.isspace() or (word and word[-1][0].isspace()):
                if word:
                    yield word
                word = []
            word.append((atom, style))
    if word:
        yield word


def labelled(label: str, pieces: Iterable[Piece], width: int, indent: int, style: Style) -> list[list[Piece]]:
    """A label, and pieces wrapped behind it. In a pane too narrow for both, the pieces go below, indented by two."""
    pieces = list(pieces)
    room = width - indent
    if room < 12:
        return [[(label, style)], *([("  ", style), *line] for line in wrap_pieces(pieces, width - 2))]
    lines = wrap_pieces(pieces, room)
    head = [[(foreign.pad(label, indent), style), *lines[0]]]
    return head + [[(" " * indent, style), *line] for line in lines[1:]]
