"""A draft tree as an indented outline: a node a row, numbers in columns, the verdict in words. Pure: no widget."""

from __future__ import annotations

from dataclasses import dataclass

from ddscope.session.views import NodeView, TreeView
from ddscope.tui import foreign
from ddscope.tui.widgets.tree_fold import BONUS, Shown
from ddscope.tui.widgets.tree_layout import Spot, TreeLayout, alarm, at_most, fold_text, heavy_keys, probability

INDENT = 3
TEXT_WIDEST = 40
HEADING = "   p  path  verdict"


@dataclass(frozen=True)
class OutlineLayout(TreeLayout):
    """An outline: its numbers and words begin at `notes_at`, each row padded up to there."""

    notes_at: int = 0


def outline(view: TreeView, shown: Shown) -> OutlineLayout:
    """Lay a tree out as an outline, children in the order of the sentence drawing."""
    order: list[tuple[int, int | None, int, str]] = []
    stack: list[tuple[int, int | None, int]] = [(root, None, 0) for root in reversed(shown.roots)]
    while stack:
        key, parent, depth = stack.pop()
        if key in view.orphans:
            depth = 1
        order.append((key, parent, depth, foreign.elide(_text(view, shown, key), TEXT_WIDEST)))
        stack += [(entry, key, depth + 1) for entry in reversed(shown.entries.get(key, ()))]
    notes_at = max(depth * INDENT + foreign.cells(text) for _, _, depth, text in order) + 1
    rows = []
    for row, (key, parent, depth, text) in enumerate(order):
        gap = " " * (notes_at - depth * INDENT - foreign.cells(text))
        rows.append((Spot(key, parent, row, depth * INDENT, depth, text, note=gap + _note(view, shown, key)),))
    branch = {key: depth * INDENT for key, _, depth, _ in order}
    return OutlineLayout(tuple(rows), (), (), shown, branch, heavy_keys(view), notes_at)


def mark(node: NodeView) -> str:
    """The verdict as one character, so that it does not hang on colour."""
    return "✓" if node.verdict.accepted else "●" if node.index == 0 else "·"


def _text(view: TreeView, shown: Shown, key: int) -> str:
    if key == BONUS:
        return "◆ " + foreign.token(view.bonus.text if view.bonus is not None else "")
    if key < 0:
        return fold_text(shown.hidden[~key])
    node = view.nodes[key]
    return f"{mark(node)} {foreign.token(node.text)}{alarm(view, key)}"


def _note(view: TreeView, shown: Shown, key: int) -> str:
    """The drafter's p, the path's p, and the verdict in words."""
    if key == BONUS:
        if view.bonus is None:
            return ""
        return f"{'':>10}  bonus, target's p {probability(view.bonus.p).strip()}: {foreign.line(view.bonus.words)}"
    if key < 0:
        likeliest = shown.likeliest[~key]
        most = "" if likeliest is None else at_most(likeliest)
        return f"{most:>10}  folded; Enter opens it"
    node = view.nodes[key]
    numbers = f"{probability(node.p):>4}{probability(node.path_p):>6}" if key else f"{'':>10}"
    return f"{numbers}  {foreign.line(node.words)}"
