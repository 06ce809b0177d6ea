"""TabStrip: names of panes on one line; the top of a frame, or the row of all panes on a narrow screen."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from ddscope.tui.foreign import cells
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import strip_of
from ddscope.tui.widgets.pane import Piece

BAR, SPACE = " │ ", "  "


@dataclass(frozen=True)
class Tab:
    """The pane it shows, its name, a shorter one, and a badge ("412", "2 !") with the worst severity behind it."""

    id: str
    name: str
    short: str
    badge: str = ""
    severity: str = ""
    begins: bool = False  # a group of tabs, set off by a bar


class TabStrip(Widget):
    """Tabs on one line. With `framed` it draws itself as the top of a frame whose sides are somebody else's border."""

    DEFAULT_CSS = "TabStrip { height: 1; }"

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    tabs: reactive[tuple[Tab, ...]] = reactive(())
    active: reactive[str] = reactive("")
    framed: reactive[bool] = reactive(True)
    lit: reactive[bool] = reactive(False)
    """Whether the pane that shows has the focus."""

    def labels(self, width: int) -> list[tuple[Tab, str]]:
        """Tabs with the names that fit: long, short, without badges, at last only the ones around the active."""
        for long, badges in ((True, True), (False, True), (False, False)):
            texts = [(tab, self._label(tab, long, badges)) for tab in self.tabs]
            if self._width(texts) <= width:
                return texts
        texts = [(tab, self._label(tab, False, False)) for tab in self.tabs]
        place = next((n for n, tab in enumerate(self.tabs) if tab.id == self.active), 0)
        low, high = place, place + 1
        while True:
            if high < len(texts) and self._width(texts[low : high + 1]) <= width - 4:
                high += 1
            elif low > 0 and self._width(texts[low - 1 : high]) <= width - 4:
                low -= 1
            else:
                return texts[low:high]

    def _between(self, tab: Tab) -> str:
        """What stands before a tab that is not the first: a row of many tabs has bars between groups only."""
        return BAR if self.framed or tab.begins else SPACE

    def _width(self, texts: list[tuple[Tab, str]]) -> int:
        return sum(cells(text) for _, text in texts) + sum(len(self._between(tab)) for tab, _ in texts[1:]) + 4

    @staticmethod
    def _label(tab: Tab, long: bool, badges: bool) -> str:
        name = tab.name if long else tab.short
        return f"{name} {tab.badge}" if tab.badge and (badges or tab.severity) else name

    def render_line(self, y: int) -> Strip:
        """The tabs."""
        palette = Palette.of(self.app)
        width = self.size.width
        line = palette.info if self.lit else palette.border
        shown = self.labels(width)
        before = bool(shown) and shown[0][0] is not self.tabs[0]
        after = bool(shown) and shown[-1][0] is not self.tabs[-1]
        spans: list[Piece] = [("╭─" if self.framed else " ", line), ("‹" if before else " ", palette.muted)]
        for place, (tab, text) in enumerate(shown):
            if place:
                spans.append((self._between(tab), line))
            spans.append((text, self._ink(tab, palette)))
        spans.append(("›" if after else " ", palette.muted))
        if self.framed:
            used = sum(cells(text) for text, _ in spans)
            spans.append(("─" * max(width - used - 1, 0) + "╮", line))
        return strip_of(spans, width, self.rich_style)

    def _ink(self, tab: Tab, palette: Palette) -> Style:
        if tab.id == self.active:
            return palette.selected + palette.strong
        if tab.severity in ("critical", "high"):
            return palette.bad
        return palette.warn if tab.severity == "warning" else palette.muted

    def on_click(self, event: events.Click) -> None:
        """Show the pane whose name was clicked."""
        x = 3 if self.framed else 2
        for place, (tab, text) in enumerate(self.labels(self.size.width)):
            x += len(self._between(tab)) if place else 0
            if x - 1 <= event.x < x + cells(text) + 1:
                self.post_message(self.Chosen(tab.id))
                return
            x += cells(text)
