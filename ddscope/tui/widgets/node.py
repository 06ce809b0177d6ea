"""NodeInspector: all that is known of one node, why it is or is not in the text, and a small depth curve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.style import Style
from textual.binding import BindingType
from textual.content import Content
from textual.reactive import reactive

from ddscope.session.views import Choice, Curve, NodeView, TreeView
from ddscope.tui import foreign
from ddscope.tui.actions import DEFAULT_KEYS
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.curve import small_curve
from ddscope.tui.widgets.node_words import why
from ddscope.tui.widgets.pane import Piece, ReadPane
from ddscope.tui.widgets.tree_paint import node_style
from ddscope.tui.widgets.wrapping import labelled, wrap_pieces

LABEL = 11  # cells of the labels


class NodeInspector(ReadPane):
    """The node under the node cursor. Set `view` and `node` (one of its nodes)."""

    BINDINGS: ClassVar[list[BindingType]] = [b for b in DEFAULT_KEYS.bindings("list") if b.action != "open"]

    DEFAULT_CSS = """
    NodeInspector { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    view: reactive[TreeView | None] = reactive(None)
    node: reactive[NodeView | None] = reactive(None)
    entropy: reactive[float | None] = reactive(None)
    """Drafter's entropy in nats at the node's depth (`step.draft.entropy[depth - 1]`); None when unknown."""
    curve: reactive[Curve] = reactive(Curve.empty())
    """P(accepted ≥ depth) of the request, drawn small below; empty to leave it out."""

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._lines: list[list[Piece]] = []

    def watch_view(self) -> None:
        """Another step."""
        self._changed()

    def watch_node(self, old: NodeView | None, new: NodeView | None) -> None:
        """Another node."""
        self._changed()
        if old is None or new is None or old.index != new.index:
            self.jump_to(y=0)

    def watch_entropy(self) -> None:
        """Known now, or not any more."""
        self._changed()

    def watch_curve(self) -> None:
        """Another curve below."""
        self._changed()

    def on_mount(self) -> None:
        """The border says what it is."""
        self.border_title = Content("Node")
        self._changed()

    def on_resize(self) -> None:
        """Wrap again."""
        self._changed()

    def notify_style_update(self) -> None:
        """Another theme, other styles."""
        super().notify_style_update()
        self._changed()

    def _changed(self) -> None:
        if not self.is_mounted or not self.scrollable_size.width:
            return
        self._lines = self._made()
        self.set_extent(0, len(self._lines))
        self.refresh()

    def _made(self) -> list[list[Piece]]:
        view, node = self.view, self.node
        if view is None or node is None:
            return []
        width, palette = self.scrollable_size.width, self.palette
        lines = inspect(view, node, self.entropy, width, palette)
        if curve := small_curve(self.curve, width, palette):
            lines += [[], *curve]
        return lines

    def empty_text(self) -> str:
        """Why there is no node."""
        if self.view is not None and self.node is not None:
            return ""
        return self.empty_reason or "No node is selected: click one in the tree, or move to it with the arrow keys."

    def draw_line(self, y: int) -> Iterable[Piece]:
        """One line."""
        return self._lines[y] if y < len(self._lines) else ()


def inspect(view: TreeView, node: NodeView, entropy: float | None, width: int, palette: Palette) -> list[list[Piece]]:
    """All that is known of a node, in lines of at most `width` cells."""
    lines: list[list[Piece]] = []

    def say(label: str, *pieces: Piece) -> None:
        lines.extend(labelled(label, pieces, width, LABEL, palette.muted))

    text, strong, muted = palette.text, palette.strong, palette.muted
    rank = "" if node.rank is None else f"  rank {node.rank}" + (" of siblings" if node.rank_of == "siblings" else "")
    say("node", (f"{node.index:,}", strong), (f"  depth {node.depth}{rank}", text))
    token = "?" if node.token is None else f"{node.token}"
    say("token", (f"{token}  ", text), *_quoted(node.text, node_style(node, palette) + strong))
    if node.index:
        say("draft p", (number(node.p), text))
        say("path p", (number(node.path_p), text))
    if entropy is not None and node.index:
        say("entropy", (f"{entropy:.2f} nats at depth {node.depth}", text))
    if node.target is not None:
        same = node.index in view.path and view.path[-1] != node.index
        say("target", *_choice(node.target, palette.accepted if same else palette.bonus, text))
    if node.runner_up is not None:
        say("runner-up", *_choice(node.runner_up, text, text))
    if node.gap is not None:
        say("gap", (f"{node.gap:.2f} logits to runner-up", text))
    say("verdict", (foreign.line(node.words), node_style(node, palette)))
    if node.position is not None:
        say("position", *_position(view, node, palette))
    if node.mask_ok is not None:
        right = ("its ancestors and itself", text)
        say("sees", right if node.mask_ok else ("not exactly its ancestors and itself: wrong mask", palette.bad))
    if node.size > 1:
        children = len(node.children)
        say("below", (f"{children:,} {'child' if children == 1 else 'children'}, {node.size - 1:,} in all", muted))
    lines.append([])
    lines += wrap_pieces(why(view, node, palette), width)
    return lines


def number(p: float | None) -> str:
    """A probability with three digits that say something; "not told" when unknown."""
    if p is None:
        return "not told"
    return f"{p:.3f}" if p >= 0.0995 or p == 0 else f"{p:.2g}" if p >= 1e-4 else f"{p:.1e}"


def _quoted(text: str, style: Style) -> list[Piece]:
    return [("'", Style.null()), (foreign.token(text), style), ("'", Style.null())]


def _choice(choice: Choice, style: Style, plain: Style) -> list[Piece]:
    return [*_quoted(choice.text, style), (f"  {number(choice.p)}" if choice.p is not None else "", plain)]


def _position(view: TreeView, node: NodeView, palette: Palette) -> list[Piece]:
    if node.position_ok is not False or view.base is None:
        return [(f"{node.position:,}", palette.text)]
    return [(f"{node.position:,}, expected {view.base + node.depth:,}", palette.bad)]
