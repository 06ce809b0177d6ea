"""Where everything of a draft tree goes on the screen when it is drawn like a sentence. Pure: no widget, no style.

Columns are depths. A node's first child stays on its row, other children hang below, so a tree takes as many rows as it
has leaves. The accepted path and the bonus fill the first row: it reads as the text that the step emits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ddscope.session.views import TreeView
from ddscope.tui import foreign
from ddscope.tui.widgets.tree_fold import BONUS, Shown

BRANCH = 3  # cells before a column: the branch, a dash, a space
NARROWEST = 3  # a column never gets narrower, so that short tokens do not make the picture jump
FORMS = ((4, 32), (4, 22), (4, 16), (3, 16), (3, 12), (3, 9), (3, 7))
"""Gap between columns, and cells of the widest token: the first with which the tree fits is taken, else the last."""
LEAF_WIDEST = 40  # cells; nothing follows a leaf on its row
SLACK = 6  # cells by which a column may be wider than needed before it shrinks, again against jumping


@dataclass(frozen=True, slots=True)
class Spot:
    """One thing on the screen that can be pointed at: a node, the bonus (key BONUS), or a fold (key ~parent)."""

    key: int
    parent: int | None
    row: int
    x: int
    depth: int
    text: str
    alarm: str = ""  # behind the text, loud: what the target was given for this node is wrong
    note: str = ""  # behind that, quiet

    @property
    def end(self) -> int:
        """First cell behind the text and what belongs to it."""
        return self.x + foreign.cells(self.text) + len(self.alarm) + foreign.cells(self.note)

    @property
    def is_fold(self) -> bool:
        """True for a fold."""
        return self.key < 0


@dataclass(frozen=True, slots=True)
class Wire:
    """A piece of a connecting line. `child`: the key it leads to; None when it only passes by, on the way down."""

    x: int
    text: str
    parent: int
    child: int | None


@dataclass(frozen=True)
class TreeLayout:
    """A drawing: rows of spots from left to right, and the lines between them, made row by row when asked for."""

    rows: tuple[tuple[Spot, ...], ...]
    columns: tuple[int, ...]  # x of each depth; empty in an outline
    widths: tuple[int, ...]
    shown: Shown
    branch: dict[int, int]  # parent → x of its vertical line
    heavy: frozenset[int]  # keys that the heavy line of the path leads to
    spots: dict[int, Spot] = field(init=False)
    width: int = field(init=False)
    _last_row: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        spots = {spot.key: spot for row in self.rows for spot in row}
        last = {parent: spots[keys[-1]].row for parent, keys in self.shown.entries.items()}
        object.__setattr__(self, "spots", spots)
        object.__setattr__(self, "width", max((row[-1].end for row in self.rows), default=0))
        object.__setattr__(self, "_last_row", last)

    def passes(self, parent: int, row: int) -> bool:
        """Whether the vertical line of `parent` goes on below `row`."""
        return self._last_row.get(parent, -1) > row

    def wires(self, row: int) -> list[Wire]:
        """Lines of one row, from left to right."""
        spots = self.rows[row]
        wires = self._left_of(spots[0])
        for spot, after in pairwise(spots):
            wires += self._between(spot, after)
        return wires

    def _left_of(self, spot: Spot) -> list[Wire]:
        parent = spot.parent
        if parent is None:
            return [Wire(spot.x - 2, "? ", 0, spot.key)] if spot.x >= 2 else []
        corner = "├" if self.passes(parent, spot.row) else "└"
        wires = [Wire(self.branch[parent], corner, parent, None if corner == "├" else spot.key)]
        wires.append(Wire(self.branch[parent] + 1, "─ ", parent, spot.key))
        while (above := self.spots[parent].parent) is not None:
            if self.passes(above, spot.row):
                wires.insert(0, Wire(self.branch[above], "│", above, None))
            parent = above
        return wires

    def _between(self, spot: Spot, after: Spot) -> list[Wire]:
        heavy = after.key in self.heavy
        dash, fork = ("━", "┯") if heavy else ("─", "┬")
        at = self.branch[spot.key]
        joint = fork if self.passes(spot.key, spot.row) else dash
        arrow = "◆ " if after.key == BONUS else dash + " "
        return [
            Wire(spot.end, dash * (at - spot.end), spot.key, after.key),
            Wire(at, joint, spot.key, after.key),
            Wire(at + 1, arrow, spot.key, after.key),
        ]

    def spot_at(self, row: int, x: int) -> Spot | None:
        """What is drawn at a cell; None for lines and empty space."""
        if not 0 <= row < len(self.rows):
            return None
        return next((spot for spot in self.rows[row] if spot.x <= x < spot.end), None)

    # moving ---------------------------------------------------------------------------------------------------

    def parent_of(self, key: int) -> int | None:
        """One step towards the root."""
        spot = self.spots.get(key)
        return spot.parent if spot is not None else 0

    def child_of(self, key: int) -> int | None:
        """The first child or fold of a node."""
        return next((child for child in self.shown.entries.get(key, ()) if child != BONUS), None)

    def vertical(self, key: int, direction: int) -> int | None:
        """The nearest node or fold of the same depth below (+1) or above (−1); else the nearest row's closest."""
        here = self.spots.get(key)
        if here is None:
            return 0
        fallback: int | None = None
        row = here.row + direction
        while 0 <= row < len(self.rows):
            stops = [spot for spot in self.rows[row] if spot.key != BONUS]
            if stops:
                near = min(stops, key=lambda spot: abs(spot.depth - here.depth))
                if near.depth == here.depth or not self.columns:
                    return near.key
                fallback = near.key if fallback is None else fallback
            row += direction
        return fallback


def probability(p: float | None) -> str:
    """A probability in three or four cells: .53, 1.0, <.01; ? when unknown."""
    if p is None:
        return "  ?"
    if p >= 0.995:
        return "1.0"
    return f"{p:.2f}"[1:] if p >= 0.005 else "<.01"


def at_most(p: float) -> str:
    """The largest path probability in a fold: p ≤ .03, p < .01."""
    return f"p ≤ {probability(p)}" if p >= 0.005 else "p < .01"


def alarm(view: TreeView, key: int) -> str:
    """ "!" behind a node whose position or mask is wrong, empty otherwise."""
    wrong = 0 <= key < BONUS and (view.nodes[key].position_ok is False or view.nodes[key].mask_ok is False)
    return " !" if wrong else ""


def fold_text(count: int) -> str:
    """What a fold says."""
    return f"⋯ {count:,} node{'s' if count != 1 else ''}"


def heavy_keys(view: TreeView) -> frozenset[int]:
    """What the heavy line leads to: the path and the bonus."""
    return frozenset((*view.path, BONUS) if view.path_known else ())


def sentence(
    view: TreeView,
    shown: Shown,
    *,
    probabilities: bool = False,
    room: int = 0,
    previous: Sequence[int] = (),
) -> TreeLayout:
    """Lay a tree out like a sentence.

    room: cells there are, 0 when unlimited; wide tokens are elided in the middle before the tree gets wider.
    previous: column widths of the drawing before, kept where they nearly fit.
    """
    labels = _labels(view, shown, probabilities)
    for form in FORMS:
        grid = _grid(_needed(labels, form), labels, form)
        if not room or grid.reach <= room:
            break
    kept = _grid(_settle(previous, grid.widths), labels, form)
    if not room or kept.reach <= max(room, grid.reach):
        grid = kept
    rows = _rows(shown, labels, grid.columns, form)
    branch = {key: grid.columns[labels[key].depth + 1] - BRANCH for key in shown.entries}
    return TreeLayout(rows, grid.columns, grid.widths, shown, branch, heavy_keys(view))


@dataclass(frozen=True, slots=True)
class _Label:
    """What is written for a key. inner: something follows it on its row, so its column has to hold it."""

    text: str
    alarm: str
    note: str
    depth: int
    inner: bool
    cells: int  # of the text

    def width(self, form: tuple[int, int]) -> int:
        """Cells with the text elided as the form says."""
        return min(self.cells, self.widest(form)) + len(self.alarm) + len(self.note)

    def widest(self, form: tuple[int, int]) -> int:
        """Cells that the text may take: leaves have room to their right."""
        return form[1] if self.inner else min(LEAF_WIDEST, 2 * form[1])


@dataclass(frozen=True, slots=True)
class _Grid:
    """Columns of a drawing; reach: cells it takes in all."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    reach: int


def _labels(view: TreeView, shown: Shown, probabilities: bool) -> dict[int, _Label]:
    """The label of every key that is drawn."""
    labels: dict[int, _Label] = {}

    def add(key: int, text: str, p: str, depth: int) -> None:
        note = f" {p}" if probabilities and p else ""
        labels[key] = _Label(text, alarm(view, key), note, depth, key in shown.entries, foreign.cells(text))

    for index in shown.nodes:
        node = view.nodes[index]
        add(index, foreign.token(node.text), probability(node.p) if index else "", node.depth)
    for parent, count in shown.hidden.items():
        p = shown.likeliest[parent]
        add(~parent, fold_text(count), at_most(p) if p is not None else "", view.nodes[parent].depth + 1)
    bonus = view.bonus
    if bonus is not None and BONUS in shown.entries.get(bonus.parent, ()):
        add(BONUS, foreign.token(bonus.text), probability(bonus.p), bonus.depth)
    return labels


def _needed(labels: dict[int, _Label], form: tuple[int, int]) -> list[int]:
    """Cells of each column, for what is followed by something on its row; leaves may reach over."""
    widths = [NARROWEST] * (max((label.depth for label in labels.values()), default=0) + 1)
    for label in labels.values():
        if label.inner:
            widths[label.depth] = max(widths[label.depth], label.width(form))
    return widths


def _grid(widths: Sequence[int], labels: dict[int, _Label], form: tuple[int, int]) -> _Grid:
    columns = [0]
    for width in widths[:-1]:
        columns.append(columns[-1] + width + form[0])
    reach = max((columns[label.depth] + label.width(form) for label in labels.values()), default=0)
    return _Grid(tuple(columns), tuple(widths), reach)


def _settle(previous: Sequence[int], needed: Sequence[int]) -> list[int]:
    """Needed widths, but those of before where they are enough and not much more."""
    before = [*previous, *needed[len(previous) :]]
    return [old if new <= old <= new + SLACK else new for old, new in zip(before, needed, strict=False)]


def _rows(
    shown: Shown, labels: dict[int, _Label], columns: Sequence[int], form: tuple[int, int]
) -> tuple[tuple[Spot, ...], ...]:
    rows: list[list[Spot]] = []
    stack: list[tuple[int, int | None, int]] = [(root, None, -1) for root in reversed(shown.roots)]
    while stack:
        key, parent, row = stack.pop()
        if row < 0:
            row = len(rows)
            rows.append([])
        label = labels[key]
        widest = label.widest(form)
        text = label.text if label.cells <= widest else foreign.elide(label.text, widest)
        rows[row].append(Spot(key, parent, row, columns[label.depth], label.depth, text, label.alarm, label.note))
        entries = shown.entries.get(key, ())
        stack += [(entry, key, -1) for entry in reversed(entries[1:])]
        stack += [(entry, key, row) for entry in entries[:1]]
    return tuple(tuple(row) for row in rows)
