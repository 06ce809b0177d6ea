"""The workbench: the only place where panes meet. It pulls one moment from the store and hands each pane its part.

Nothing else moves panes: a pane tells what a person did, the workbench moves the time cursor, all panes follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.dom import DOMNode

from ddscope.diagnose import Diagnosis
from ddscope.session import Session
from ddscope.tui.actions import BY_ID, Action, Keys, Need
from ddscope.tui.diagnosing import Diagnosing
from ddscope.tui.playback import Playback
from ddscope.tui.screens import layout
from ddscope.tui.screens.bench import plain, rebind
from ddscope.tui.screens.help import Help
from ddscope.tui.screens.labels import hints, tabs
from ddscope.tui.screens.moving import MovingActions
from ddscope.tui.screens.serving import ServingActions
from ddscope.tui.screens.showing import Showing
from ddscope.tui.screens.taking import Copy, TakingActions
from ddscope.tui.screens.telling import Telling
from ddscope.tui.widgets.curve import DepthCurve
from ddscope.tui.widgets.findings import Findings
from ddscope.tui.widgets.journal import Journal
from ddscope.tui.widgets.keys import KeyHint, KeyHints
from ddscope.tui.widgets.lines import LineView
from ddscope.tui.widgets.node import NodeInspector
from ddscope.tui.widgets.pane import LinePane
from ddscope.tui.widgets.requests import RequestList
from ddscope.tui.widgets.stacks import Stacks
from ddscope.tui.widgets.steps import StepList
from ddscope.tui.widgets.tabs import TabStrip
from ddscope.tui.widgets.tensors import Tensors
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.timing import StageTimes
from ddscope.tui.widgets.title import TitleBar
from ddscope.tui.widgets.tree import DraftTree

FRAME_S = 1 / 30
"""The store is looked at this often; panes are given something new at most this often."""

SHARE = 3
"""A frame that took long is followed by this many times its length without one, so that keys are always answered."""


class Workbench(MovingActions, ServingActions, TakingActions, Showing, Telling):
    """All panes of one session at one moment."""

    CSS = layout.CSS
    ALLOW_SELECT = False
    AUTO_FOCUS = ""  # `show_pane` says who has the keys
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        session: Session,
        keys: Keys,
        clock: Callable[[], float],
        *,
        diagnosis: Diagnosis | None = None,
        speed: float | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        super().__init__(session, keys, clock)
        rebind(self, keys, "", self.offers)
        self.playback = Playback(speed or 1.0)
        self.diagnosing = Diagnosing(session, diagnosis)
        self._play_at_start = speed is not None
        self._notices = notices
        self.seen_version = -1
        """Version of the session that the screen shows."""
        self.first = session.first
        self._resume_at = 0.0
        self._deck_status = ""

    # making -----------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Title, columns, tabs, keys."""
        yield TitleBar(id="title")
        yield TabStrip(id="panes")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield RequestList(id="requests")
                yield StepList(id="steps")
            with Vertical(id="centre"):
                yield DraftTree(id="tree")
                yield GeneratedText(id="text")
            with Vertical(id="right"):
                yield NodeInspector(id="node")
        with Vertical(id="bottom"):
            yield TabStrip(id="strip")
            with Vertical(id="deck"):
                yield Journal(id="journal")
                yield Findings(id="findings")
                yield Tensors(id="tensors")
                yield StageTimes(id="timing")
                yield Stacks(id="stacks")
                yield DepthCurve(id="curve")
        yield KeyHints(id="keys")

    def on_mount(self) -> None:
        """Draw what is known at once, then look at the store thirty times a second."""
        self.query_one("#panes", TabStrip).framed = False
        for pane in self.query(LinePane):
            rebind(pane, self.keys, pane.KEYS)
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self._repaint())
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """The size is known now. A small screen begins with the tree, a large one with arrows that move steps."""
        logs = [status for status in self.session.sources if status.name.startswith(("journal/", "log/"))]
        if self.session.attached and not logs:  # an empty journal is not what one should begin with
            self.deck_tab = "findings"
        self.show_pane("tree" if self.single else "steps")
        for notice in self._notices:
            self.say(notice, "warning")
        self._frame()
        self.session.start()  # after the first paint, where the caller has not started it
        self.set_interval(FRAME_S, self._frame)

    def _repaint(self) -> None:
        for widget in self.query("LinePane, TitleBar, TabStrip, KeyHints"):
            widget.refresh()

    def on_resize(self) -> None:
        """Another size may be another layout."""
        self.lay_out()

    # a frame ----------------------------------------------------------------------------------------------------

    def _frame(self) -> None:
        """Look for news; draw when there are any."""
        begun = time.perf_counter()
        if begun < self._resume_at:
            return
        news = self.session.version != self.seen_version
        if news:
            self.seen_version = self.session.version
            self._place_first()
            if self.first is None:
                self.diagnosing.begin()  # not earlier: the index comes first
                self.cursor.on_new()
        moved = self.first is None and self.advance()
        found = self.diagnosing.work()
        if found and self.session.is_live:
            self.tell_findings()
        if news:
            self.tell_engine()
        if news or moved or found:
            self.show_moment(seek=moved)
        elif self.journal.work():
            self.relabel()
        if self.search is not None:
            self.search.work(0.004)
        self._resume_at = begun + SHARE * (time.perf_counter() - begun)

    def _place_first(self) -> None:
        """While a trace is indexed its first paint stays; then the cursor stands at it."""
        if self.first is None:
            return
        indexed, size = self.store.progress
        if indexed < size:
            return
        record = self.session.first_record()
        self.first = None
        self.cursor.live()
        if not len(self.store.logs()):  # an empty journal is not what a recording should open with
            self.deck_tab = "findings"
            self.lay_out()
        if record is not None and record != self.cursor.step_record:
            self.cursor.to(record)
        if self._play_at_start:
            self._play_at_start = False
            if self.cursor.is_live:
                self.play_all()
            else:
                self.play()

    def moved(self) -> None:
        """A person moved the time cursor: what is known now is what is shown."""
        self.first = None
        self.horizon = None if self.cursor.is_live or not self.session.is_live else self.store.n - 1
        self.playback.jumped(self.clock())
        self.show_moment(seek=True)

    # frames, tabs, hints ------------------------------------------------------------------------------------------

    def relabel(self) -> None:
        """Names on tabs, words on frames, key hints."""
        findings, tensors = self.diagnosing.findings, self.query_one(Tensors)
        strip, panes = self.query_one("#strip", TabStrip), self.query_one("#panes", TabStrip)
        lines, mismatches = len(self.journal.entries.rows), tensors.mismatches
        strip.tabs = tabs(layout.DECK, log_lines=lines, findings=findings, mismatches=mismatches)
        every = (*layout.UPPER, *layout.DECK)
        panes.tabs = tabs(every, log_lines=lines, findings=findings, mismatches=mismatches)
        strip.active, panes.active = self.deck_tab, self.current
        strip.lit = self.current in layout.DECK
        status = self.journal.status() if self.deck_tab == "journal" else ""
        if status != self._deck_status:
            self._deck_status = status
            self.query_one("#deck").border_subtitle = plain(status) if status else None
        self.query_one(KeyHints).hints = self.hints

    @property
    def hints(self) -> tuple[KeyHint, ...]:
        """Keys that help here and now."""
        return hints(
            self.keys,
            self.offers,
            focus=self.current,
            engine=self.store.state().state if self.session.is_live else "",
            live=self.session.is_live,
            playing=self.playback.playing,
        )

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The pane a person clicked has the keys."""
        name = event.widget.id
        if name in (*layout.UPPER, *layout.DECK) and name != self.current:
            self.current = name
            self.lay_out()

    # what panes tell ------------------------------------------------------------------------------------------------

    @on(DraftTree.NodeSelected)
    def _node_selected(self, event: DraftTree.NodeSelected) -> None:
        self._show_node(event.index)

    @on(DraftTree.NodeHovered)
    def _node_hovered(self, event: DraftTree.NodeHovered) -> None:
        self._show_node(self.query_one(DraftTree).cursor if event.index is None else event.index)

    @on(StepList.StepSelected)
    def _step_selected(self, event: StepList.StepSelected) -> None:
        self._go(event.record)

    @on(GeneratedText.TokenSelected)
    def _token_selected(self, event: GeneratedText.TokenSelected) -> None:
        self._go(event.record)

    @on(LineView.Jump)
    def _line_jumped(self, event: LineView.Jump) -> None:
        self._go(event.record)

    @on(RequestList.RequestSelected)
    def _request_selected(self, event: RequestList.RequestSelected) -> None:
        self.halt()
        self.cursor.pick(event.rid)
        self.moved()

    def _go(self, record: int) -> None:
        self.halt()
        self.cursor.to(record)
        self.moved()

    @on(Journal.Changed)
    def _journal_changed(self) -> None:
        self.relabel()

    def action_show_findings(self) -> None:
        """Tab 2, with what is known now."""
        self.query_one(Findings).show(self.diagnosing.findings, self.cursor.at)
        super().action_show_findings()

    @on(TabStrip.Chosen)
    def _tab_chosen(self, event: TabStrip.Chosen) -> None:
        if event.pane == "findings":
            self.action_show_findings()
        else:
            self.show_pane(event.pane)

    @on(TitleBar.Pressed)
    @on(KeyHints.Pressed)
    async def _pressed(self, event: TitleBar.Pressed | KeyHints.Pressed) -> None:
        await self.app.run_action(event.action, self.target_of(BY_ID[event.action]))

    # what actions ask -------------------------------------------------------------------------------------------------

    def follow_journal(self) -> None:
        """The journal follows its end again."""
        self.journal.follow()

    def drop_search(self) -> None:
        """Forget what `n` goes to."""
        self.search = None

    def target_of(self, action: Action) -> DOMNode | None:
        """Who does an action now: the app, the tree, the list that has the keys, or the workbench; None: nobody."""
        if action.scope == "app":
            return self.app
        if action.scope == "tree":
            return self.query_one(DraftTree)
        if action.scope == "list":
            pane = self.query_one(f"#{self.current}")
            return pane if isinstance(pane, LineView) else None
        return self

    def action_help(self) -> None:
        """All keys."""
        note = "" if Need.CONTROL in self.offers else "Engine keys come with ddscope run · "
        note = "A server is never paused from here: Space holds the view · " if Need.SERVER in self.offers else note
        self.app.push_screen(Help(self.keys, self.offers, f"{note}↑↓ scroll · Esc closes"))

    def copies(self) -> list[Copy]:
        """What is under the cursors, the focused pane's line first."""
        tree = self.query_one(DraftTree)
        pane = self.query_one(f"#{self.current}")
        line = pane.content_at(pane.selected) if isinstance(pane, LineView) and pane.line_count() else None
        return self.copies_of(line, tree.view, tree.cursor)
