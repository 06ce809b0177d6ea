"""DraftTree: the draft tree of one step, as a sentence or as an outline. Layout is `tree_layout` and `tree_outline`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from ddscope.session.views import TreeView
from ddscope.tui import foreign
from ddscope.tui.actions import DEFAULT_KEYS
from ddscope.tui.widgets import tree_outline, tree_paint
from ddscope.tui.widgets.pane import LinePane, Piece, strip_of_pieces
from ddscope.tui.widgets.tree_fold import BONUS, Folding, fold
from ddscope.tui.widgets.tree_layout import TreeLayout, sentence

ROWS_AT_LEAST = 40  # a tree folds when it takes more rows than this and than SCREENS times the pane
SCREENS = 2


class DraftTree(LinePane):
    """The tree of the step under the time cursor.

    Set `view`; a tree of another record puts `cursor` on the last node of the path. The widget keeps its own border
    title and subtitle.
    """

    HEADING_LINES = 1
    KEYS = "tree"
    ALLOW_SELECT = False

    DEFAULT_CSS = """
    DraftTree { scrollbar-gutter: stable; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [*DEFAULT_KEYS.bindings("tree")]

    class NodeSelected(Message):
        """The node cursor moved to `index` (by key or click)."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    class NodeHovered(Message):
        """The mouse is over node `index`; None when it left."""

        def __init__(self, index: int | None) -> None:
            super().__init__()
            self.index = index

    view: reactive[TreeView | None] = reactive(None)
    cursor: reactive[int] = reactive(0)
    """Index of the selected node."""
    outline: reactive[bool] = reactive(False)
    show_probabilities: reactive[bool] = reactive(False)
    stopped: reactive[str] = reactive("")
    """Why a breakpoint holds this step before its commit; empty when it does not."""
    bare_reason: reactive[str] = reactive("")
    """Why the step's record holds no tree; set it before `view`."""

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._layout: TreeLayout | None = None
        self._room = (0, 0)
        self._foot: list[list[Piece]] = []
        self._notes: list[tuple[str, bool]] = []
        self._widths: tuple[int, ...] = ()
        self._opened: frozenset[int] = frozenset()
        self._shut: frozenset[int] = frozenset()
        self._all_open = False
        self._reveal: frozenset[int] = frozenset()
        self._at: int = 0  # the key under the node cursor: `cursor`, or a fold that hangs from it
        self._hover: int | None = None
        self._chain: dict[int, int] = {}  # parent → key, along the way from the root to the node cursor

    # the value ------------------------------------------------------------------------------------------------

    def watch_view(self, old: TreeView | None, new: TreeView | None) -> None:
        """A new tree: the same one read again keeps folds and cursor, another step starts afresh."""
        same = old is not None and new is not None and (old.record, old.rid) == (new.record, new.rid)
        if not same or (new is not None and self.cursor >= len(new.nodes)):
            self._opened = self._shut = self._reveal = frozenset()
            self._at = new.path[-1] if new is not None and new.path else 0
            self.set_reactive(DraftTree.cursor, self._at)
            self._hover = None
            self.jump_to(y=0)
        if old is None or new is None or old.rid != new.rid:
            self._widths = ()
            self.jump_to(x=0)
        self._relayout()

    def watch_cursor(self, index: int) -> None:
        """The node cursor moved, by a key here or by the workbench."""
        if self._at not in (index, ~index):
            self._at = index
        self._show_cursor()

    def watch_outline(self) -> None:
        """Sentence or outline."""
        self._relayout()
        self._show_cursor()

    def watch_show_probabilities(self) -> None:
        """Probabilities beside the nodes, or not."""
        self._relayout()

    def watch_stopped(self) -> None:
        """The foot comes or goes."""
        self._changed()

    def on_resize(self) -> None:
        """Room decides how wide tokens are drawn and how much is folded."""
        if self._room != (self.scrollable_size.width, self.scrollable_size.height):
            self._layout = None
        self._changed()

    def on_mount(self) -> None:
        """The border says what the tree is of."""
        self._changed()

    def notify_style_update(self) -> None:
        """Another theme, other styles."""
        super().notify_style_update()
        self._changed()

    def _relayout(self) -> None:
        self._layout = None
        self._changed()

    def _changed(self) -> None:
        """Something that is drawn changed: extent, border, screen."""
        if not self.is_mounted or not self.scrollable_size.width:
            return
        self._foot = []
        if self.view is None:
            self.set_extent(0, 0)
        else:
            layout = self.drawing()
            self._notes = self._wrapped_notes(self.view)
            below = len(layout.rows) + len(self._notes) > self.scrollable_size.height - self.HEADING_LINES
            width = self.scrollable_size.width
            self._foot = tree_paint.foot(self.view, self.stopped, self.palette, width, problems=below)
            self._trace_chain()
            lines = len(layout.rows) + len(self._notes) + len(self._foot)
            # What fits is all one size to the scrollbars: another step of the film then asks for no new layout.
            room = self.scrollable_size
            self.set_extent(max(layout.width, room.width), max(lines, room.height - self.HEADING_LINES))
        self._label()
        self.refresh()

    def _wrapped_notes(self, view: TreeView) -> list[tuple[str, bool]]:
        width = max(self.scrollable_size.width - 2, 20)
        lines = [
            (line, alarming)
            for text, alarming in tree_paint.notes(view, self.bare_reason)
            for line in foreign.wrap(foreign.line(text), width)
        ]
        return [("", False), *lines] if lines else []

    def _label(self) -> None:
        """Border title: which step. Subtitle: what the lines and marks mean."""
        view = self.view
        if view is None:
            self.border_title, self.border_subtitle = Content("Tree"), None
            return
        said = f"Tree · {foreign.line(view.rid)} · step {view.step:,}"
        if view.accepted is not None and len(view.nodes) > 1:
            said += f" · {view.accepted} of {len(view.nodes) - 1:,} accepted"
        if view.auto is not None:
            said += f" · {view.auto.emitted - 1:.1f} expected in {view.auto.us / 1000:.3g} ms"
        self.border_title = Content(said)
        taken, left = ("✓", "·") if self.outline else ("━", "─")
        self.border_subtitle = Content.assemble(
            (f"{taken} accepted", "bold $success"), "  ", ("◆ bonus", "bold $warning"), "  ", f"{left} not accepted"
        )

    def drawing(self) -> TreeLayout:
        """The layout on the screen, made once for a tree, the room, and what is folded. Call with a `view` set."""
        if self._layout is None:
            assert self.view is not None
            self._room = (self.scrollable_size.width, self.scrollable_size.height)
            shown = fold(self.view, self._folding())
            if self.outline:
                self._layout = tree_outline.outline(self.view, shown)
            else:
                room = self.scrollable_size.width
                self._layout = sentence(
                    self.view, shown, probabilities=self.show_probabilities, room=room, previous=self._widths
                )
                self._widths = self._layout.widths
        return self._layout

    def _folding(self) -> Folding:
        rows = None if self._all_open else max(ROWS_AT_LEAST, SCREENS * self.scrollable_size.height)
        return Folding(rows, self._opened, self._shut, self._reveal)

    def _trace_chain(self) -> None:
        spots = self.drawing().spots
        self._chain = {}
        key = self._at
        while key in spots and (parent := spots[key].parent) is not None:
            self._chain[parent] = key
            key = parent

    def _show_cursor(self) -> None:
        """Bring the node under the cursor on the screen, out of a fold if need be."""
        view = self.view
        if (
            view is None
            or not self.is_mounted
            or not self.scrollable_size.width
            or not 0 <= self.cursor < len(view.nodes)
        ):
            return
        if self._at not in self.drawing().spots:
            self._at = self.cursor
        if self._at not in self.drawing().spots:
            self._reveal |= {self.cursor}
            self._shut -= frozenset(view.ancestors(self.cursor))
            self._relayout()
        self._trace_chain()
        spot = self.drawing().spots[self._at]
        self.show_line(spot.row, margin=1, foot=len(self._foot))
        self.show_columns(spot.x, spot.x + foreign.cells(spot.text))
        self.refresh()

    # drawing --------------------------------------------------------------------------------------------------

    def empty_text(self) -> str:
        """Why there is no tree."""
        if self.view is not None:
            return ""
        return self.empty_reason or "No step under the time cursor yet: a tree is drawn for each step of a request."

    def render_line(self, y: int) -> Strip:
        """The foot stays at the bottom of the pane."""
        first = self.scrollable_size.height - len(self._foot)
        if self.view is not None and self._foot and y >= max(first, self.HEADING_LINES):
            return strip_of_pieces(self._foot[y - first], 0, self.scrollable_size.width, self._base())
        return super().render_line(y)

    def draw_heading(self, y: int) -> Iterable[Piece]:
        """Depth numbers over their columns, and what lies outside the pane."""
        layout, palette, width = self.drawing(), self.palette, self.scrollable_size.width
        if self.outline:
            at = layout.notes_at if isinstance(layout, tree_outline.OutlineLayout) else 0
            line = " node".ljust(at) + tree_outline.HEADING
        else:
            line = ""
            for depth, x in enumerate(layout.columns):
                line = line.ljust(x) + f"{depth} "
        left = self.scroll_offset.x
        room = Size(width, self.scrollable_size.height - self.HEADING_LINES - len(self._foot))
        outside = tree_paint.outside(layout, self.scroll_offset, room, notes=len(self._notes), outline=self.outline)
        yield line[left : left + width - len(outside)].ljust(width - len(outside)), palette.muted
        yield outside, palette.info

    def draw_line(self, y: int) -> Iterable[Piece]:
        """A row of the tree, then the notes."""
        layout, palette = self.drawing(), self.palette
        if y < len(layout.rows):
            assert self.view is not None
            painter = tree_paint.Painter(self.view, layout, palette, self._at, self._hover, self._chain)
            return painter.row(y)
        note = y - len(layout.rows)
        if note < len(self._notes):
            text, alarming = self._notes[note]
            return [(text, palette.bad if alarming else palette.muted)]
        return ()

    # keys -----------------------------------------------------------------------------------------------------

    def select(self, key: int | None) -> None:
        """Move the node cursor to a node, or to the fold of a node (~parent), and tell it."""
        if key is None or self.view is None or key not in self.drawing().spots:
            return
        index = key if key >= 0 else ~key
        moved = self._at != key
        self._at = key
        if index != self.cursor:
            self.cursor = index
        elif moved:
            self._show_cursor()
        self.post_message(self.NodeSelected(index))

    def action_to_parent(self) -> None:
        """Towards the root."""
        if self.view is not None:
            self.select(self.drawing().parent_of(self._at))

    def action_to_child(self) -> None:
        """To the first child, or the fold that stands for it."""
        if self.view is not None:
            self.select(self.drawing().child_of(self._at))

    def action_to_above(self) -> None:
        """To the nearest node of this depth above."""
        if self.view is not None:
            self.select(self.drawing().vertical(self._at, -1))

    def action_to_below(self) -> None:
        """To the nearest node of this depth below."""
        if self.view is not None:
            self.select(self.drawing().vertical(self._at, +1))

    def action_to_root(self) -> None:
        """To the root."""
        self.select(0)

    def action_to_path_end(self) -> None:
        """To the last accepted node."""
        if self.view is not None and self.view.path:
            self.select(self.view.path[-1])

    def action_screen_up(self) -> None:
        """A screenful up."""
        self.jump_to(y=self.scroll_offset.y - max(self.scrollable_size.height - self.HEADING_LINES - 1, 1))

    def action_screen_down(self) -> None:
        """A screenful down."""
        self.jump_to(y=self.scroll_offset.y + max(self.scrollable_size.height - self.HEADING_LINES - 1, 1))

    def action_toggle_fold(self) -> None:
        """Open the fold under the cursor or at the cursor's node; without one, fold the node's children away."""
        view = self.view
        if view is None:
            return
        index = self._at if self._at >= 0 else ~self._at
        if index in self.drawing().shown.hidden:
            self._opened |= {index}
            self._shut -= {index}
        elif view.nodes[index].children:
            self._opened -= frozenset(view.ancestors(index))
            self._shut |= {index}
        self._at = index
        self._relayout()
        self._show_cursor()

    def action_toggle_all(self) -> None:
        """Show every node, or fold again."""
        self._all_open = not self._all_open
        if self._all_open:
            self._shut = frozenset()
        else:
            self._opened = frozenset()
        self._relayout()
        self._show_cursor()

    # mouse ----------------------------------------------------------------------------------------------------

    def _key_at(self, event: events.MouseEvent) -> int | None:
        offset = event.get_content_offset(self)
        row = None if offset is None else self.line_at(offset.y)
        if (
            self.view is None
            or offset is None
            or row is None
            or offset.y >= self.scrollable_size.height - len(self._foot)
        ):
            return None
        spot = self.drawing().spot_at(row, offset.x + self.scroll_offset.x)
        if spot is None:
            return None
        return spot.parent if spot.key == BONUS else spot.key

    def on_click(self, event: events.Click) -> None:
        """Select a node; open a fold."""
        key = self._key_at(event)
        self.select(key)
        if key is not None and key < 0:
            self.action_toggle_fold()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Highlight what the mouse is over."""
        self._hover_over(self._key_at(event))

    def on_leave(self) -> None:
        """The mouse left."""
        self._hover_over(None)

    def _hover_over(self, key: int | None) -> None:
        if key != self._hover:
            self._hover = key
            self.post_message(self.NodeHovered(None if key is None else key if key >= 0 else ~key))
            self.refresh()
