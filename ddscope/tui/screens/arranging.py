"""Actions that arrange panes: which one has the keys, which tab shows, one at a time or all; the journal's filter."""

from __future__ import annotations

from dataclasses import replace

from textual.widget import Widget

from ddscope.tui.logfold import Filter
from ddscope.tui.screens import layout
from ddscope.tui.screens.ask import Ask
from ddscope.tui.screens.bench import Bench
from ddscope.tui.theme import THEME_NAMES
from ddscope.tui.widgets.journal import Journal
from ddscope.tui.widgets.tree import DraftTree


class ArrangingActions(Bench):
    """Panes are told apart by their ids only; what they show is the workbench's affair."""

    deck_tab = "journal"
    current = "tree"
    zoomed = False

    @property
    def single(self) -> bool:
        """Whether one pane is shown at a time."""
        return layout.is_single(self.size.width, self.size.height, self.zoomed)

    def lay_out(self) -> None:
        """Bring the screen in line with size, zoom, current pane and tab."""
        width, height = self.size
        single = self.single
        self.set_class(single, "-single")
        for name, holds in layout.size_classes(width, height).items():
            self.set_class(holds, name)
        for name in (*layout.UPPER, *layout.DECK):
            pane = self.query_one(f"#{name}")
            if single:
                pane.set_class(name == self.current, "-shown")
                pane.display = name == self.current
            else:
                pane.display = name not in layout.DECK or name == self.deck_tab
        shown = self.query_one(f"#{self.current}")
        holders = {holder.id for holder in shown.ancestors if holder.id}
        for holder in ("left", "centre", "right", "body", "bottom"):
            self.query_one(f"#{holder}").set_class(holder in holders, "-shown")
        self.relabel()

    def relabel(self) -> None:
        """Tabs and hints must be written anew."""
        raise NotImplementedError

    def show_pane(self, name: str, *, focus: bool = True) -> None:
        """Make a pane visible and give it the keys."""
        if name in layout.DECK:
            self.deck_tab = name
        self.current = name
        self.lay_out()
        if focus:
            self.query_one(f"#{name}", Widget).focus(scroll_visible=False)

    def _cycle(self, by: int) -> None:
        if self.single:
            order: tuple[str, ...] = (*layout.UPPER, *layout.DECK)
        else:
            order = ("requests", "steps", "tree", "text", "node", self.deck_tab)
        place = order.index(self.current) if self.current in order else 0
        self.show_pane(order[(place + by) % len(order)])

    def action_next_pane(self) -> None:
        """The next pane has the keys."""
        self._cycle(+1)

    def action_previous_pane(self) -> None:
        """The pane before has the keys."""
        self._cycle(-1)

    def action_zoom(self) -> None:
        """One pane over the whole screen, or all again."""
        self.zoomed = not self.zoomed
        self.show_pane(self.current)

    def action_show_journal(self) -> None:
        """Tab 1."""
        self.show_pane("journal")

    def action_show_findings(self) -> None:
        """Tab 2."""
        self.show_pane("findings")

    def action_show_tensors(self) -> None:
        """Tab 3."""
        self.show_pane("tensors")

    def action_show_timing(self) -> None:
        """Tab 4."""
        self.show_pane("timing")

    def action_show_stacks(self) -> None:
        """Tab 5."""
        self.show_pane("stacks")

    def action_show_curve(self) -> None:
        """Tab 6."""
        self.show_pane("curve")

    def action_outline(self) -> None:
        """Sentence or outline."""
        tree = self.query_one("#tree", DraftTree)
        tree.outline = not tree.outline

    def action_probabilities(self) -> None:
        """Probabilities beside the nodes, or not."""
        tree = self.query_one("#tree", DraftTree)
        tree.show_probabilities = not tree.show_probabilities

    def action_theme(self) -> None:
        """Dark, light, high contrast, and round."""
        names = list(dict.fromkeys(THEME_NAMES.values()))
        place = names.index(self.app.theme) + 1 if self.app.theme in names else 0
        self.app.theme = names[place % len(names)]

    # the journal's filter ---------------------------------------------------------------------------------------

    @property
    def journal(self) -> Journal:
        """The journal pane."""
        return self.query_one("#journal", Journal)

    def action_filter_journal(self) -> None:
        """Ask for a text that lines must have."""
        journal = self.journal

        def filtered(text: str | None) -> None:
            if text is not None:
                self.show_pane("journal")
                journal.set_filter(replace(journal.entries.filter, text=text))

        said = "Lines that have this text stay, in either case. An empty text shows all."
        self.app.push_screen(Ask("Filter the journal", value=journal.entries.filter.text, said=said), filtered)

    def action_filter_priority(self) -> None:
        """The next priority."""
        journal = self.journal
        self.show_pane("journal")
        journal.set_filter(journal.entries.filter.with_priority_after())

    def action_filter_unit(self) -> None:
        """The next source, after the last all again."""
        journal = self.journal
        self.show_pane("journal")
        rounds: list[str | None] = [None, *journal.entries.sources]
        held = journal.entries.filter.source
        place = rounds.index(held) if held in rounds else 0
        journal.set_filter(replace(journal.entries.filter, source=rounds[(place + 1) % len(rounds)]))

    def action_back(self) -> None:
        """Undo the innermost: the maximised pane, then the journal's filter."""
        if self.zoomed:
            self.action_zoom()
        elif self.journal.entries.filter.active:
            self.journal.set_filter(Filter())
        self.drop_search()

    def drop_search(self) -> None:
        """Forget what `n` goes to."""
        raise NotImplementedError
