"""Actions that take something along: copies of what is under the cursor, bookmarks, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddscope.session import MarkRow, SessionError, TreeView
from ddscope.trace import TraceError
from ddscope.tui.clock import clock
from ddscope.tui.foreign import cut, safe
from ddscope.tui.screens.ask import Ask
from ddscope.tui.screens.bench import Bench
from ddscope.tui.screens.pick import Pick
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import Line

BOOKMARK = "bookmark"


@dataclass(frozen=True)
class Copy:
    """One thing that can be copied: the letter that picks it, its name, the text."""

    letter: str
    name: str
    text: str


class TakingActions(Bench):
    """The workbench says what is under the cursor; the rest is here."""

    def copies(self) -> list[Copy]:
        """What can be copied now, the focused pane's first."""
        raise NotImplementedError

    def copies_of(self, line: Line | None, view: TreeView | None, index: int) -> list[Copy]:
        """A line of a list, the node `index` of a tree, the step, the output, the request."""
        taken: list[Copy] = []
        if line is not None:
            taken.append(Copy("l", "line", line.copy or line.text.strip()))
        if view is not None and 0 <= index < len(view.nodes):
            node = view.nodes[index]
            path = [view.nodes[place] for place in view.ancestors(index)]
            data = self.store.tokens.text(node.token) if node.token is not None else None
            taken.append(Copy("t", "token", node.text if data is None else data.decode("utf-8", "replace")))
            taken.append(Copy("i", "token id", "" if node.token is None else str(node.token)))
            taken.append(Copy("p", "node path", " > ".join(f"{n.index}:{n.text}" for n in path)))
        record = self.cursor.step_record
        if record is not None:
            taken.append(Copy("s", "step as JSON", self.store.trace.raw(record).decode("utf-8", "replace").strip()))
        if self.cursor.rid is not None:
            runs = self.store.text(self.cursor.rid, record, prompt=False)
            taken.append(Copy("o", "output so far", "".join(run.text for run in runs)))
            taken.append(Copy("r", "request id", self.cursor.rid))
        return taken

    def action_copy(self) -> None:
        """Ask what to copy when there is more than one thing."""
        copies = [copy for copy in self.copies() if copy.text]
        if not copies:
            self.say("There is nothing under the cursor to copy.")
            return

        def picked(number: int | None) -> None:
            if number is not None:
                self._take(copies[number])

        letters = "".join(copy.letter for copy in copies)
        foot = "Letter or Enter: to the clipboard, by OSC 52 · Esc closes"
        self.app.push_screen(
            Pick(
                "Copy",
                lambda palette, width: _copy_lines(copies, palette, width),
                letters=letters,
                foot=foot,
            ),
            picked,
        )

    def _take(self, copy: Copy) -> None:
        self.app.copy_to_clipboard(copy.text)
        self.say(f"Copied the {copy.name}: {cut(safe(copy.text.replace(chr(10), '⏎')), 60)}")

    # marks ------------------------------------------------------------------------------------------------------

    def _mark(self, text: str) -> None:
        number = self.cursor.record
        if number is None:
            self.say("There is no record to mark yet.")
            return
        try:
            self.session.mark(text, number)
        except (TraceError, SessionError) as problem:
            self.say(str(problem), "error")
        else:
            what = "Bookmarked" if text == BOOKMARK else "Noted at"
            self.say(f"{what} {self.moment_words()}; ' lists bookmarks and notes.")
        self.moved()

    def moment_words(self) -> str:
        """The moment under the cursor in a few words."""
        record = self.cursor.step_record
        row = self.store.step_row(record) if record is not None else None
        return f"{safe(row.rid)} step {row.step:,}" if row is not None else "this moment"

    def action_bookmark(self) -> None:
        """A mark without words."""
        self._mark(BOOKMARK)

    def action_note(self) -> None:
        """A mark with words."""

        def noted(text: str | None) -> None:
            if text:
                self._mark(text)

        if self.cursor.record is None:
            self.say("There is no record to write a note at yet.")
        else:
            self.app.push_screen(Ask(f"Note at {self.moment_words()}", hint="what you saw"), noted)

    def action_marks(self) -> None:
        """List them, jump to one."""
        rows = self.store.marks()

        def picked(number: int | None) -> None:
            if number is None:
                return
            target = rows[number].target
            if target is None:
                self.say("The record of this mark is not in the file.")
            else:
                self.cursor.to(target)
                self.moved()

        self.app.push_screen(
            Pick(
                "Bookmarks and notes",
                lambda palette, width: [self._mark_line(row, palette, width) for row in rows],
                reason="None yet: m bookmarks the moment under the cursor, M writes a note at it.",
                foot="Enter goes there · Esc closes",
            ),
            picked,
        )

    def _mark_line(self, row: MarkRow, palette: Palette, width: int) -> Line:
        where = "not in this file"
        if row.target is not None:
            rid = self.store.rid_of(row.target)
            step = self.store.step(row.target)
            where = (
                f"{safe(rid)} step {step.step:,}" if rid is not None and step is not None else f"record {row.target:,}"
            )
        text = "" if row.text == BOOKMARK else safe(row.text.replace("\n", " "))
        return Line(
            (
                ("◈ ", palette.bonus),
                (f"{clock(row.t)}  ", palette.muted),
                (f"{cut(where, 24):<25}", palette.root),
                (cut(text, max(width - 42, 8)), palette.text),
            )
        )


def _copy_lines(copies: Sequence[Copy], palette: Palette, width: int) -> list[Line]:
    lines = []
    for copy in copies:
        text = safe(copy.text.replace("\n", "⏎"))
        lines.append(
            Line(
                (
                    (f"{copy.letter}  ", palette.strong),
                    (f"{copy.name:<16}", palette.text),
                    (cut(text, max(width - 19, 8)), palette.muted),
                )
            )
        )
    return lines
