"""Giving every pane its part of a moment: from store, cursor and findings to the values that panes draw."""

from __future__ import annotations

from ddscope.session import FirstPaint
from ddscope.tui import reasons
from ddscope.tui.diagnosing import Diagnosing
from ddscope.tui.screens.arranging import ArrangingActions
from ddscope.tui.screens.labels import severities
from ddscope.tui.screens.moments import Moments
from ddscope.tui.screens.steering import SteeringActions
from ddscope.tui.titling import header_of, title_view
from ddscope.tui.widgets.curve import DepthCurve
from ddscope.tui.widgets.findings import Findings
from ddscope.tui.widgets.node import NodeInspector
from ddscope.tui.widgets.requests import RequestList
from ddscope.tui.widgets.stacks import Stacks
from ddscope.tui.widgets.steps import StepList
from ddscope.tui.widgets.tensors import Tensors
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.timing import StageTimes
from ddscope.tui.widgets.title import TitleBar
from ddscope.tui.widgets.tree import DraftTree


class Showing(SteeringActions, ArrangingActions, Moments):
    """Panes are written here and nowhere else."""

    diagnosing: Diagnosing
    first: FirstPaint | None
    """The step shown before the index is there; None from then on."""
    _step_key: object = None

    def show_moment(self, *, seek: bool = False) -> None:
        """Give every pane its part of the moment under the time cursor."""
        if self.first is not None:
            self._show_first()
        else:
            self._show_lists(seek)
            self._show_step()
        self._show_deck(seek)
        self._show_title()
        self.relabel()

    def _show_first(self) -> None:
        assert self.first is not None
        state = self.store.state()
        for pane, what in ((RequestList, "requests"), (StepList, "steps"), (GeneratedText, "text")):
            self.query_one(pane).empty_reason = reasons.brief_reason(what, self.session, state)
        tree, node = self.query_one(DraftTree), self.query_one(NodeInspector)
        if tree.view is None:
            tree.view = self.first.tree
            node.view = tree.view
            node.node = tree.view.nodes[tree.cursor]

    def _show_lists(self, seek: bool) -> None:
        store, cursor = self.store, self.cursor
        state = store.state()
        requests, steps = self.query_one(RequestList), self.query_one(StepList)
        requests.empty_reason = reasons.brief_reason("requests", self.session, state)
        steps.empty_reason = reasons.brief_reason("steps", self.session, state)
        requests.severities = severities(self.diagnosing.findings)
        requests.rows = self.request_rows()
        requests.cursor = cursor.rid
        requests.styles.height = min(max(len(requests.rows) + 3, 4), 10 if self.has_class("-tall") else 7)
        steps.marked = frozenset(mark.target for mark in store.marks() if mark.target is not None)
        steps.rows = store.steps(cursor.rid, self.horizon) if cursor.rid is not None else ()
        steps.cursor = cursor.step_record

    def _show_step(self) -> None:
        store, cursor = self.store, self.cursor
        rid, record, at = cursor.rid, cursor.step_record, cursor.at
        tree, node = self.query_one(DraftTree), self.query_one(NodeInspector)
        text, curve = self.query_one(GeneratedText), self.query_one(DepthCurve)
        state = store.state(at)
        tree.empty_reason = reasons.tree_reason(self.session, state)
        view = store.tree(record) if record is not None else None
        tree.stopped = self.stopped(state, view.rid, view.step) if view is not None else ""
        fresh = self.session.version if cursor.is_live or not store.settled else 0
        key = (rid, record, at, store.tokens.version, fresh, tree.stopped)
        if key == self._step_key:
            return
        self._step_key = key
        tree.bare_reason = reasons.bare_reason(self.session, store.step(record)) if record is not None else ""
        tree.view = view
        self._show_node(tree.cursor)
        # A step that is held before its commit is not in the text yet.
        text.runs = store.text(rid, record - 1 if record and tree.stopped else record) if rid is not None else ()
        text.cursor = record
        if not len(text.runs):
            steps = len(store.steps(rid, at)) if rid is not None else 0
            text.empty_reason = reasons.text_reason(self.session, state, steps)
        curve.curve = node.curve = store.curve(rid, at)
        curve.run = store.curve(None, at)
        if not curve.curve.n:
            curve.empty_reason = reasons.curve_reason(self.session, state)

    def _show_node(self, index: int) -> None:
        tree, node = self.query_one(DraftTree), self.query_one(NodeInspector)
        node.view = tree.view
        if tree.view is None or not 0 <= index < len(tree.view.nodes):
            node.node = None
            node.empty_reason = reasons.node_reason(self.session, self.store.state(self.cursor.at))
            return
        node.node = tree.view.nodes[index]
        step = self.store.step(tree.view.record)
        depth = node.node.depth
        entropy = step.draft.entropy if step is not None and step.draft is not None else None
        node.entropy = entropy[depth - 1] if entropy is not None and 0 < depth <= len(entropy) else None

    def _show_deck(self, seek: bool) -> None:
        store, cursor = self.store, self.cursor
        findings, tensors = self.query_one(Findings), self.query_one(Tensors)
        timing, stacks = self.query_one(StageTimes), self.query_one(Stacks)
        journal = self.journal
        journal.empty_reason = reasons.journal_reason(self.session)
        journal.show(store.logs(self.horizon), self.moment(), seek=seek and not cursor.is_live)
        findings.empty_reason = reasons.findings_reason(self.diagnosing.seen, store.n)
        if seek or self.horizon is None:  # a live view that is held holds its findings too; the tab counts the new ones
            findings.show(self.diagnosing.findings, cursor.at)
        tensors.show(store.tensors(cursor.at))
        if not tensors.rows:
            tensors.empty_reason = reasons.tensors_reason(self.session)
        timing.empty_reason = reasons.timing_reason(self.session, store.state())
        timing.show(store.timing(cursor.rid, cursor.at))
        stacks.show(store.stacks(self.horizon if cursor.is_live else cursor.at))
        if not stacks.views:
            stacks.empty_reason = reasons.stacks_reason(self.session, self.keys.short("dump_stacks"))

    def _show_title(self) -> None:
        store, cursor = self.store, self.cursor
        view = self.query_one(DraftTree).view
        self.query_one(TitleBar).view = title_view(
            store,
            live=self.session.is_live,
            motion=self.motion(),
            pending=cursor.pending,
            speed=self.playback.speed if self.playback.playing else None,
            state=store.state() if self.session.is_live else store.state(cursor.at),
            rid=cursor.rid,
            step_record=cursor.step_record if self.first is None else None,
            at=cursor.at,
            budget=view.budget if view is not None and view.budget is not None else None,
            auto=view is not None and view.auto is not None,
            algorithm=(view.algorithm if view is not None else None) or self._algorithm(),
            connection=self.connection(),
            attached=self.session.attached,
            hosts=store.hosts(None if cursor.is_live else cursor.at),
            host_names=[host.name for host in self.session.hosts],
        )

    def _algorithm(self) -> str:
        """What runs where no step says it: what was asked for of our own engine, what the header of another says."""
        header = header_of(self.store)
        hosts = self.store.hosts()
        if hosts and (header is None or header.engine is None):
            return hosts[0].algorithm if len(hosts) == 1 else ""
        if self.session.can_control or header is None or header.engine is None:
            return self.params().algorithm
        return header.engine.algorithm
