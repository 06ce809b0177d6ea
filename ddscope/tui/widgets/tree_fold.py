"""Which nodes of a large tree are drawn, and which wait in counted folds. Pure: a TreeView in, a Shown out.

Nodes are shown most probable first until the rows are used up, so a fold never hides anything likelier than what is
drawn beside it. The path is always shown. Every node is either shown or counted in exactly one fold.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass

from ddscope.session.views import NodeView, TreeView

BONUS = 1 << 40
"""Key of the bonus in a drawing. Other keys: a node's index, or ~parent for the fold that hangs from `parent`."""

FEW_ROWS = 24  # a tree of so few leaves is drawn whole, whatever its probabilities
UNLIKELY = 1e-3  # branches below this path probability fold in larger trees: one step in a thousand takes them


@dataclass(frozen=True, slots=True)
class Shown:
    """What hangs from each shown node, in drawing order: children, the bonus, a fold; and how much each fold holds."""

    roots: tuple[int, ...]  # the root and nodes whose parent is invalid
    entries: dict[int, tuple[int, ...]]
    hidden: dict[int, int]  # parent → nodes in its fold
    likeliest: dict[int, float | None]  # parent → largest path probability in its fold

    @property
    def nodes(self) -> list[int]:
        """Indices of the shown nodes."""
        below = [key for keys in self.entries.values() for key in keys if 0 <= key < BONUS]
        return [*self.roots, *below]


@dataclass(frozen=True)
class Folding:
    """What a person and the room ask for. rows: about how many rows a drawing may take, None for all.

    opened: nodes whose whole subtree is shown. closed: nodes whose children are folded away. reveal: nodes to show.
    """

    rows: int | None = None
    opened: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    reveal: frozenset[int] = frozenset()


def likeness(node: NodeView) -> tuple[bool, float, int]:
    """Order among siblings: on the path, then likelier to the drafter, then earlier."""
    logprob = node.logprob
    return not node.on_path, math.inf if logprob is None or math.isnan(logprob) else -logprob, node.index


def fold(view: TreeView, folding: Folding) -> Shown:
    """Choose the shown nodes. Never raises on an invalid tree; nodes out of range are left out of opened and reveal."""
    forced = _forced(view, folding)
    bonus_at = view.bonus.parent if view.bonus is not None and view.path_known else None
    visible: dict[int, list[int]] = {0: [], **{orphan: [] for orphan in view.orphans}}
    limit = math.inf if folding.rows is None else folding.rows
    floor = UNLIKELY if folding.rows is not None and view.root.leaves > FEW_ROWS else 0.0
    rows = len(visible) + (bonus_at is not None and bool(view.nodes[bonus_at].children))
    queue: list[tuple[bool, float, int]] = []
    for top in visible:
        _offer(queue, view, top, forced)
    while queue:
        must, _, index = heapq.heappop(queue)
        node = view.nodes[index]
        parent = node.parent if node.parent is not None else 0
        more = _extra_rows(view, visible[parent], parent, bonus_at)
        if must:
            if parent in folding.closed:
                continue
            likely = node.path_p is None or node.path_p >= floor
            if more > 0 and not (likely and rows + more <= limit):
                continue
        rows += more
        visible[parent].append(index)
        visible[index] = []
        _offer(queue, view, index, forced)
    return _shown(view, visible, bonus_at)


def _forced(view: TreeView, folding: Folding) -> frozenset[int]:
    """Nodes that are shown in any case, with all that leads to them."""
    known = range(len(view.nodes))
    wanted = {index for index in (*view.path, *folding.reveal) if index in known}
    for top in folding.opened:
        stack = [top] if top in known else []
        while stack:
            index = stack.pop()
            wanted.add(index)
            stack += view.nodes[index].children
    for index in tuple(wanted):
        wanted.update(view.ancestors(index))
    return frozenset(wanted)


def _offer(queue: list[tuple[bool, float, int]], view: TreeView, parent: int, forced: Collection[int]) -> None:
    for child in view.nodes[parent].children:
        logprob = view.nodes[child].path_logprob
        order = math.inf if logprob is None or math.isnan(logprob) else -logprob
        heapq.heappush(queue, (child not in forced, order, child))


def _extra_rows(view: TreeView, shown: list[int], parent: int, bonus_at: int | None) -> int:
    """Rows that one more child of `parent` costs: none for the first on its row, or in place of a fold of one."""
    hidden = len(view.nodes[parent].children) - len(shown)
    other = len(shown) + (parent == bonus_at)
    before = other + (hidden > 0)
    after = other + 1 + (hidden > 1)
    return max(after - 1, 0) - max(before - 1, 0)


def _shown(view: TreeView, visible: dict[int, list[int]], bonus_at: int | None) -> Shown:
    entries: dict[int, tuple[int, ...]] = {}
    hidden: dict[int, int] = {}
    likeliest: dict[int, float | None] = {}
    for parent, shown in visible.items():
        keys = sorted(shown, key=lambda index: likeness(view.nodes[index]))
        if parent == bonus_at:
            keys.insert(0, BONUS)
        drawn = set(shown)
        away = [view.nodes[child] for child in view.nodes[parent].children if child not in drawn]
        if away:
            keys.append(~parent)
            hidden[parent] = sum(node.size for node in away)
            likeliest[parent] = max((node.path_p for node in away if node.path_p is not None), default=None)
        if keys:
            entries[parent] = tuple(keys)
    return Shown((0, *view.orphans), entries, hidden, likeliest)
