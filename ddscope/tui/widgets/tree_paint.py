"""How a draft tree looks: styles of nodes and lines, the words around the drawing. Pure: styled pieces come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from rich.color import Color, blend_rgb
from rich.style import Style
from textual.geometry import Offset, Size

from ddscope.session.views import NodeView, TreeView, Verdict
from ddscope.tui import foreign
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.pane import Piece, over
from ddscope.tui.widgets.tree_fold import BONUS
from ddscope.tui.widgets.tree_layout import Spot, TreeLayout, Wire

LIKELY = (0.1, 0.01)  # path probabilities from which a rejected node is drawn bright, or between bright and faint


@cache
def rejected_styles(palette: Palette) -> tuple[Style, Style, Style]:
    """Styles of nodes that were not accepted: likely, less likely, unlikely."""
    text, muted = palette.text.color, palette.muted.color
    if text is None or muted is None:
        return palette.text, palette.rejected, palette.rejected
    between = blend_rgb(text.get_truecolor(), muted.get_truecolor(), 0.55)
    return Style(color=Color.from_triplet(between)), palette.muted, palette.rejected


def node_style(node: NodeView, palette: Palette) -> Style:
    """Style of a node's text by its verdict; rejected ones by path probability."""
    if node.verdict is Verdict.ROOT:
        return palette.root
    if node.verdict.accepted:
        return palette.accepted + Style(strike=True) if node.committed is False else palette.accepted
    if node.verdict is Verdict.UNKNOWN:
        return palette.text
    path_p = node.path_p
    if path_p is None:
        return palette.muted
    step = 0 if path_p >= LIKELY[0] else 1 if path_p >= LIKELY[1] else 2
    return rejected_styles(palette)[step]


@dataclass(frozen=True)
class Painter:
    """Draws rows of a layout. `at`: key under the node cursor; `chain`: parent → key on the way from the root to it."""

    view: TreeView
    layout: TreeLayout
    palette: Palette
    at: int
    hover: int | None
    chain: Mapping[int, int]

    def row(self, index: int) -> Iterator[Piece]:
        """Pieces of one row, from cell 0."""
        marks: list[tuple[int, list[Piece]]] = [
            (wire.x, [(wire.text, self._wire(wire, index))]) for wire in self.layout.wires(index) if wire.text
        ]
        marks += [(spot.x, self._spot(spot)) for spot in self.layout.rows[index]]
        marks.sort(key=lambda mark: mark[0])
        x, held, ink = 0, "", self.palette.faint  # lines and space between them are held back, to go out as one piece
        for start, pieces in marks:
            held += " " * (start - x)
            x = max(x, start)
            for text, style in pieces:
                if style is not ink:
                    if held:
                        yield held, ink
                    held, ink = "", style
                held += text
                x += foreign.cells(text)
        yield held, ink

    def _spot(self, spot: Spot) -> list[Piece]:
        style = self._text_style(spot)
        if spot.key == self.at:
            style = over(self.palette.cursor, style)
        elif spot.key == self.hover:
            style = over(self.palette.selected, style)
        pieces = [(spot.text, style)]
        if spot.alarm:
            pieces.append((spot.alarm, self.palette.bad))
        if spot.note:
            pieces.append((spot.note, self.palette.muted))
        return pieces

    def _text_style(self, spot: Spot) -> Style:
        if spot.key == BONUS:
            cut = self.view.bonus is not None and self.view.bonus.committed is False
            return self.palette.bonus + Style(strike=True) if cut else self.palette.bonus
        if spot.is_fold:
            return self.palette.muted + Style(italic=True)
        node = self.view.nodes[spot.key]
        if spot.key in self.chain and not node.on_path:
            return self.palette.strong
        return node_style(node, self.palette)

    def _wire(self, wire: Wire, row: int) -> Style:
        if wire.child == BONUS:
            return self.palette.bonus
        if wire.child is not None and wire.child in self.layout.heavy:
            return self.palette.good
        if wire.text == "? ":
            return self.palette.bad
        towards = self.chain.get(wire.parent)
        if towards is not None and (wire.child == towards or self._passes_down(wire, towards, row)):
            return self.palette.strong
        return self.palette.faint

    def _passes_down(self, wire: Wire, towards: int, row: int) -> bool:
        """Whether the way to the cursor runs down along this piece of a vertical line."""
        return wire.child is None and self.layout.spots[towards].row > row


def outside(layout: TreeLayout, at: Offset, room: Size, *, notes: int, outline: bool) -> str:
    """What is drawn outside a pane, in words that fit into its heading. at: scrolled to; room: cells of the content;
    notes: lines below the tree."""
    left, top = at
    width, height = room
    parts = []
    if left:
        parts.append(f"← {left}")
    if (right := layout.width - left - width) > 0:
        deeper = sum(x >= left + width for x in layout.columns)
        parts.append("→" if outline else f"{deeper} deeper →" if deeper else f"{right} more →")
    if top:
        parts.append(f"↑ {top}")
    if (below := len(layout.rows) + notes - top - height) > 0:
        parts.append(f"↓ {below} row{'s' if below != 1 else ''}")
    return "  " + "  ".join(parts) if parts else ""


def notes(view: TreeView, bare_reason: str = "") -> list[tuple[str, bool]]:
    """What has to be said below a tree, each with whether it is alarming. bare_reason: why there is none."""
    said: list[tuple[str, bool]] = []
    if not view.has_tree:
        said.append((bare_reason or "This step's record holds no tree: the source told none.", False))
    elif len(view.nodes) == 1:
        budget = " (budget 0)" if view.budget == 0 else ""
        plain = f"Nothing was drafted{budget}: plain decoding, the target alone chose the next token."
        auto = "The budget is auto, and nothing drafted was likely enough to pay for its verify."
        said.append((plain if view.auto is None else auto, False))
    if not view.path_known and len(view.nodes) > 1:
        bonus = f" The bonus is {view.bonus.text}." if view.bonus is not None else ""
        said.append((f"The source did not say what was accepted, so no node has a verdict.{bonus}", False))
    if len(view.nodes) > 1 and all(node.target is None for node in view.nodes):
        said.append(("The source did not say what the target chose at the nodes.", False))
    if view.truncated:
        emitted = "" if view.emitted is None else f": {len(view.emitted)} of {len(view.path)} tokens were emitted"
        said.append((f"The text ended inside this step{emitted}. Struck through: not in the text.", False))
    said += [(f"! {problem}", True) for problem in view.problems]
    return said


def foot(view: TreeView, stopped: str, palette: Palette, width: int, *, problems: bool = True) -> list[list[Piece]]:
    """Lines that stay at the bottom of the pane: a breakpoint that holds the step, and the first of the problems.

    problems: say them here, because the notes below the tree are out of sight.
    """
    lines: list[list[Piece]] = []
    if problems and view.problems:
        more = f" (+{len(view.problems) - 1:,} more below the tree)" if len(view.problems) > 1 else ""
        text = foreign.cut(foreign.line(view.problems[0]), max(width - len(more) - 3, 8))
        lines.append([(f"! {text}{more}", palette.bad)])
    if stopped:
        badge = " ■ STOPPED BEFORE COMMIT "
        why = foreign.cut(" " + foreign.line(stopped), max(width - len(badge), 0))
        lines.append([(badge, palette.badge_warn), (why, palette.warn)])
    return lines
