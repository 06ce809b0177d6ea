"""The search box: type, see what is found while it is found, pick a match and be there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from ddscope.tui.foreign import safe
from ddscope.tui.screens.dialog import Dialog, entry
from ddscope.tui.search import Match, Search
from ddscope.tui.widgets.lines import Line, LineView

TICK = 1 / 30

Start = Callable[[str], Search]


class Matches(LineView):
    """Matches in the order of the trace."""

    def __init__(self) -> None:
        super().__init__(id="lines")
        self.search: Search | None = None
        self.empty_reason = "Type what to look for."

    def entry_count(self) -> int:
        """One entry a match."""
        return len(self.search.matches) if self.search else 0

    def entry_line(self, entry: int, width: int) -> Line:
        """Where, and the match in its context."""
        assert self.search is not None
        match = self.search.matches[entry]
        palette = self.palette
        where = safe(match.rid or "")
        if match.step is not None:
            where += f" step {match.step}"
        spans = (
            (f"{match.kind:<8}", palette.info),
            (f"{where[:18]:<19}", palette.muted),
            (_flat(match.before), palette.muted),
            (_flat(match.found), palette.match),
            (_flat(match.after), palette.muted),
        )
        return Line(spans)


def _flat(text: str) -> str:
    return safe(text).replace("\n", "⏎")


class SearchBox(Dialog[tuple[Search, Match]]):
    """Answers with the search (for `n` and `N`) and the match that was picked."""

    DEFAULT_CSS = """
    SearchBox #box { width: 100; height: 80%; }
    SearchBox #lines { height: 1fr; background: $surface; }
    SearchBox #query { margin-bottom: 1; }
    SearchBox #wrong { display: none; }
    """
    TITLE_TEXT = "Search text, tokens and journal"
    FOOT = "Enter goes there, n and N go on from it · ↑↓ choose · Esc closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Match above", show=False, priority=True),
        Binding("down", "choose(1)", "Match below", show=False, priority=True),
        Binding("pageup", "choose(-10)", "Ten matches up", show=False, priority=True),
        Binding("pagedown", "choose(10)", "Ten matches down", show=False, priority=True),
    ]

    def __init__(self, start: Start, here: int | None, query: str = "") -> None:
        super().__init__()
        self._start, self._here, self._query = start, here, query
        self._matches = Matches()
        self._timer: Timer | None = None
        self._chosen = False

    def fields(self) -> Iterable[Widget]:
        """The query, what was found, how far the search is."""
        yield entry(self._query, id="query", placeholder="part of the text, a token, #id of a token, or a log line")
        yield self._matches
        yield Static("", id="count", classes="said", markup=False)

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one("#query").focus()
        self._timer = self.set_interval(TICK, self._work)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Another query: search anew."""
        self._chosen = False
        self._matches.search = self._start(event.value) if event.value else None
        self._matches.empty_reason = "Looking …" if event.value else "Type what to look for."
        self._matches.content_changed()
        self._work()

    def _work(self) -> None:
        search = self._matches.search
        count = self.query_one("#count", Static)
        if search is None:
            count.update("")
            return
        before = len(search.matches)
        held = search.matches[self._matches.selected] if search.matches and self._chosen else None
        going = search.work()
        if len(search.matches) != before or (search.done and not search.matches):
            if not search.matches:
                self._matches.empty_reason = f"Nothing in text, tokens or journal has {search.query!r}."
            self._matches.content_changed()
            self._matches.select(search.matches.index(held) if held else self._nearest(search))
        more = f" (and {search.more:,} more that are not listed)" if search.more else ""
        found = f"{len(search.matches):,} found{more}" if search.matches else ""
        count.update(f"{found}{' · looking …' if going else ''}")

    def _nearest(self, search: Search) -> int:
        """The first match at or after the time cursor, so that Enter goes on from here."""
        if self._here is None:
            return 0
        found = search.after(self._here - 1)
        return search.matches.index(found) if found else 0

    def action_choose(self, by: int) -> None:
        """Move in the list while the query keeps the keys."""
        self._chosen = True
        self._matches.select(self._matches.selected + by)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Go to the selected match."""
        self._take()

    def on_line_view_picked(self, event: LineView.Picked) -> None:
        """A double click on a match, or Enter in the list."""
        event.stop()
        self._take()

    def _take(self) -> None:
        search = self._matches.search
        if search is not None and search.matches:
            self.dismiss((search, search.matches[self._matches.selected]))

    def on_unmount(self, _event: events.Unmount) -> None:
        """No ticking behind a closed box."""
        if self._timer is not None:
            self._timer.stop()
