"""The list of keys, made from the registry: grouped, with the user's keymap, without what cannot be done here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.style import Style

from ddscope.tui.actions import GROUPS, Action, Keys, Need, available
from ddscope.tui.foreign import cells, cut, pad
from ddscope.tui.screens.pick import Pick, PickLines
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import Line
from ddscope.tui.widgets.pane import Piece

KEYS_CELLS = 12
TWO_COLUMNS_FROM = 84


def help_groups(offers: Iterable[Need]) -> list[tuple[str, list[Action]]]:
    """Groups in their order with the actions that the session can do."""
    actions = available(offers)
    groups = [(group, [action for action in actions if action.group == group]) for group in GROUPS]
    return [(group, members) for group, members in groups if members]


def help_lines(keys: Keys, offers: Iterable[Need], palette: Palette, width: int) -> list[Line]:
    """The screen's lines: two columns of groups where there is room, one else."""
    groups = help_groups(offers)
    blocks = [_block(group, members, keys, palette) for group, members in groups]
    if width < TWO_COLUMNS_FROM:
        return [Line(row) for block in blocks for row in block]
    half = sum(len(block) for block in blocks) / 2
    left: list[tuple[Piece, ...]] = []
    right: list[tuple[Piece, ...]] = []
    for block in blocks:
        (left if len(left) + len(block) / 2 <= half else right).extend(block)
    column = width // 2
    rows = []
    for number in range(max(len(left), len(right))):
        spans = _fitted(left[number] if number < len(left) else (), column - 1)
        rows.append(Line((*spans, *(right[number] if number < len(right) else ()))))
    return rows


def _block(group: str, members: Sequence[Action], keys: Keys, palette: Palette) -> list[tuple[Piece, ...]]:
    rows: list[tuple[Piece, ...]] = [((group, palette.root),)]
    for action in members:
        text = keys.text(action) or "no key"
        rows.append(((pad("  " + text, KEYS_CELLS) + " ", palette.strong), (action.title, palette.text)))
    return [*rows, ()]


def _fitted(spans: tuple[Piece, ...], width: int) -> tuple[Piece, ...]:
    """Spans in exactly `width` cells."""
    out: list[Piece] = []
    used = 0
    for text, style in spans:
        text = cut(text, width - used)
        out.append((text, style))
        used += cells(text)
    return (*out, (" " * (width - used + 1), Style()))


class HelpLines(PickLines):
    """Lines that are only read."""

    SELECTS = False


class Help(Pick):
    """All keys. Nothing is picked here: Enter and Escape close."""

    DEFAULT_CSS = "Help #box { width: 120; }"
    LINES = HelpLines

    def __init__(self, keys: Keys, offers: Iterable[Need], note: str) -> None:
        wanted = frozenset(offers)
        super().__init__(
            "Keys",
            lambda palette, width: help_lines(keys, wanted, palette, width),
            foot=note,
        )
