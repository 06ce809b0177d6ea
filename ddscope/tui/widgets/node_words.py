"""Why a node is or is not in the text, as a sentence with the tokens it speaks of in their colours. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ddscope.session.views import NodeView, TreeView, Verdict
from ddscope.tui import foreign
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.pane import Piece


def why(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    """The sentence. It says only what the record told."""
    return _SAY[node.verdict](view, node, palette)


def _chose(view: TreeView) -> str:
    return "drew" if view.sampled else "chose"


def _plain(palette: Palette, *parts: str | Piece) -> list[Piece]:
    return [(part, palette.muted) if isinstance(part, str) else part for part in parts]


def _end_of_path(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    """What followed the last node of the path: the bonus."""
    if view.bonus is None:
        return _plain(palette, "The source did not say which token followed.")
    bonus = (foreign.token(view.bonus.text), palette.bonus)
    words = foreign.line(view.bonus.words)
    return _plain(palette, f"The target {_chose(view)} ", bonus, f" here: {words}. So it is the bonus token.")


def _on_the_path(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    """What followed an inner node of the path: the next node."""
    place = view.path.index(node.index)
    after = view.nodes[view.path[place + 1]]
    token = (foreign.token(after.text), palette.accepted)
    return _plain(
        palette,
        f"The target {_chose(view)} ",
        token,
        f" here, and drafted node {after.index:,} is that token: accepted.",
    )


def _root(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    if not view.path_known:
        return _plain(palette, "Every drafted token follows this one; the source did not say which were accepted.")
    if len(view.path) > 1:
        return _on_the_path(view, node, palette)
    return _end_of_path(view, node, palette)


def _inner(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    return _on_the_path(view, node, palette) if node.index != view.path[-1] else _end_of_path(view, node, palette)


def _not_chosen(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    """A child of a path node that is not on the path itself."""
    parent = view.nodes[node.parent or 0]
    on = _chose(view)
    own = (foreign.token(node.text), palette.strong)
    if parent.target is None:
        return _plain(palette, "Its parent was accepted, but the source did not say what the target chose there.")
    chosen = (foreign.token(parent.target.text), palette.bonus if parent.index == view.path[-1] else palette.accepted)
    p = f" (p {parent.target.p:.2f})" if parent.target.p is not None else ""
    return _plain(palette, f"After node {parent.index:,} the target {on} ", chosen, f"{p}, not ", own, ".")


def _not_reached(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    """A node below one that was not accepted."""
    chain = view.ancestors(node.index)
    cut = next((index for index in chain if not view.nodes[index].on_path), node.index)
    branch = (foreign.token(view.nodes[cut].text), palette.strong)
    said = _plain(
        palette, "Its branch ended at node ", (f"{cut:,} ", palette.text), branch, ", which was not accepted."
    )
    if node.agrees:
        said += _plain(palette, " After its parent the target would have chosen just this token.")
    elif node.agrees is False and node.parent is not None and (meant := view.nodes[node.parent].target) is not None:
        token = (foreign.token(meant.text), palette.text)
        said += _plain(palette, " After its parent the target would have chosen ", token, ".")
    return said


def _unknown(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    if node.orphan:
        return _plain(palette, "Its parent is no node of this tree, so nobody can say what it would follow.")
    return _plain(palette, "The source told neither the path nor a verdict.")


_SAY: dict[Verdict, Callable[[TreeView, NodeView, Palette], list[Piece]]] = {
    Verdict.ROOT: _root,
    Verdict.ACCEPTED: _inner,
    Verdict.LAST: _end_of_path,
    Verdict.SIBLING: _not_chosen,
    Verdict.REJECTED: _not_chosen,
    Verdict.NOT_REACHED: _not_reached,
    Verdict.UNKNOWN: _unknown,
    Verdict.BONUS: _end_of_path,
}
