"""Journal: the log on the same time axis as the steps; follows, filters, folds tracebacks, marks the time cursor.

What an entry is and what a filter keeps is `ddscope.tui.logfold`; this draws it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from textual.message import Message

from ddscope.session.views import LogRow
from ddscope.tui.clock import clock
from ddscope.tui.foreign import cells, cut, safe, wrap
from ddscope.tui.logfold import DEBUG, ERROR, WARNING, Entry, Filter, JournalEntries, innermost, level_of
from ddscope.tui.widgets.lines import Line, LineView

PID_FROM = 100  # cells: narrower panes have no room for the pid at the right
TIME_CELLS = 19  # "14:02:11.418 ERROR "
_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)? ?(?P<rank>[^\]\s]*)\] ?")
_SAID = re.compile(r"(?:INFO|WARN(?:ING)?|ERROR|DEBUG)\b:?\s+(?=\S)")


@dataclass(frozen=True)
class Moment:
    """Where the time cursor stands: the line between what came before and what came after."""

    record: int
    t: int
    words: str


class Journal(LineView):
    """Log lines. `show` gives it rows and the moment; it reads them a few at a time in `work`."""

    class Changed(Message):
        """Entries, filter or following changed: titles that speak of them are stale."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.entries = JournalEntries()
        self.moment: Moment | None = None
        self.following = True

    # what it is given -----------------------------------------------------------------------------------------

    def show(self, rows: Sequence[LogRow], moment: Moment | None, *, seek: bool = False) -> None:
        """Rows so far and where the time cursor stands. seek: bring the cursor's line into view."""
        heads = self._open_heads()
        self.entries.set_rows(rows)
        self.moment = moment
        self._grow(heads, 0.004, older=False)
        if seek and moment is not None:
            self._seek()

    def work(self, budget_s: float = 0.008) -> bool:
        """Read on; True while there is more to read."""
        if self.entries.complete:
            return False
        self._grow(self._open_heads(), budget_s)
        return not self.entries.complete

    def set_filter(self, new: Filter) -> None:
        """Show something else of the same rows, at once and whether or not time stands still."""
        if new == self.entries.filter:
            return
        self.entries.set_filter(new)
        self._grow([], 0.03)
        if self.moment is not None and not self.following:
            self._seek()
        self.post_message(self.Changed())

    def follow(self) -> None:
        """Stay at the newest line again."""
        self.following = True
        self._to_end()
        self.post_message(self.Changed())

    def _grow(self, heads: list[int], budget_s: float, *, older: bool = True) -> None:
        held = self.scroll_offset.y
        grown = self.entries.feed(budget_s, older=older)
        places = [place for head in heads if (place := self.entries.place_of(head)) is not None]
        self.content_changed([self._entry_of_place(place) for place in places])
        if self.following:
            self._to_end()
        elif grown.front:  # older lines came in front: what was on the screen stays there
            self.selected += grown.front
            self.jump_to(y=held + grown.front)
        if grown:
            self.post_message(self.Changed())

    def _to_end(self) -> None:
        self.selected = max(self.line_count() - 1, 0)
        self.show_line(self.selected)
        self.refresh()

    def _seek(self) -> None:
        separator = self.line_of(self.separator)
        self.following = separator >= self.line_count() - 1
        self.selected = separator
        self.show_line(separator, margin=2)
        self.refresh()

    def select(self, line: int) -> None:
        """Moving off the last line stops following, moving onto it follows again."""
        super().select(line)
        follows = self.selected >= self.line_count() - 1
        if follows != self.following:
            self.following = follows
            self.post_message(self.Changed())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling up with the wheel stops following; scrolling down to the end follows again."""
        super().watch_scroll_y(old_value, new_value)
        follows = new_value >= self.max_scroll_y if new_value > old_value else new_value >= old_value and self.following
        if follows != self.following and self.max_scroll_y > 0:
            self.following = follows
            self.post_message(self.Changed())

    # entries: the log's, and one line for the time cursor -------------------------------------------------------

    @property
    def separator(self) -> int:
        """The entry that stands for the time cursor."""
        return self.entries.place_after(self.moment.record) if self.moment is not None else len(self.entries)

    def _entry_of_place(self, place: int) -> int:
        return place + (1 if self.moment is not None and place >= self.separator else 0)

    def _place_of_entry(self, entry: int) -> int | None:
        """Place among the log's entries; None for the separator."""
        if self.moment is None or entry < self.separator:
            return entry
        return None if entry == self.separator else entry - 1

    def _open_heads(self) -> list[int]:
        places = [self._place_of_entry(entry) for entry in self.opened]
        return [self.entries.entry(place).rows[0] for place in places if place is not None]

    def entry_count(self) -> int:
        """Log entries and the separator; none without a log, so that the pane can say why."""
        count = len(self.entries)
        return count + 1 if self.moment is not None and (count or self.entries.filter.active) else count

    def entry_line(self, entry: int, width: int) -> Line:
        """A log line, a fold, a gap, or the time cursor."""
        place = self._place_of_entry(entry)
        if place is None:
            return self._separator_line(width)
        found = self.entries.entry(place)
        row = self.entries.row(found.rows[0])
        return self._gap_line(row, width) if row.kind == "gap" else self._log_line(row, found, width)

    def entry_detail(self, entry: int, width: int) -> list[Line]:
        """All lines of a fold, or the rest of a line that is longer than the pane."""
        place = self._place_of_entry(entry)
        if place is None:
            return []
        found = self.entries.entry(place)
        rows = [self.entries.row(number) for number in found.rows]
        if rows[0].kind == "gap":
            return []
        indent = " " * TIME_CELLS
        text = "\n".join(row.text for row in rows)
        if not found.folded and "\n" not in text and cells(safe(text)) <= self._room(width):
            return []
        return [
            Line(((indent, Style()), (piece, self.palette.muted)), target=None, copy=text)
            for piece in wrap(safe(text), max(width - TIME_CELLS - 1, 20))
        ]

    # drawing --------------------------------------------------------------------------------------------------

    def _room(self, width: int) -> int:
        return width - TIME_CELLS - (12 if width >= PID_FROM else 0)

    def _separator_line(self, width: int) -> Line:
        assert self.moment is not None
        palette = self.palette
        label, end = f"── {self.moment.words} ", " time cursor ─"
        rest = max(width - 13 - cells(label) - cells(end), 0)
        return Line(
            (
                (clock(self.moment.t) + " ", palette.info),
                (label, palette.root),
                ("─" * rest + end, palette.info),
            ),
            target=self.moment.record,
        )

    def _level(self, row: LogRow) -> tuple[str, Style]:
        palette = self.palette
        level = level_of(row)
        if level <= ERROR:
            return "ERROR ", palette.bad
        if level <= WARNING:
            return "WARN  ", palette.warn
        if level >= DEBUG:
            return "DEBUG ", palette.faint
        return "INFO  ", palette.info

    def _log_line(self, row: LogRow, entry: Entry, width: int) -> Line:
        palette = self.palette
        word, ink = self._level(row)
        texts = [self.entries.row(number).text for number in entry.rows]
        whole = "\n".join(texts)
        lines = whole.count("\n") + 1
        shown, fold = texts[0].split("\n", 1)[0], ""
        if row.null:
            shown = "(the journal gave no message for this entry)"
        elif "Traceback (most recent call last)" in whole and lines > 1:
            shown, fold = innermost(texts), f"  ▸ traceback, {lines:,} lines"
        elif lines > 1:
            fold = f"  ▸ {lines:,} lines"
        elif row.partial:
            fold = "  (cut by the source)"
        shown = _without_columns(shown, word.strip())
        if len(self.entries.sources) > 1:
            shown = f"{row.unit or row.src}: {shown}"
        shown = safe(shown)
        spans = [(clock(row.t) + " ", palette.faint), (word, ink)]
        body = palette.text if level_of(row) <= WARNING or word.startswith("INFO") else palette.muted
        tail = f"  pid {row.pid}" if row.pid is not None and width >= PID_FROM else ""
        room = width - TIME_CELLS - cells(tail) - cells(fold)
        if cells(shown) > room:
            shown = cut(shown, max(room, 8))
        spans += [(shown, body), (fold, palette.info)]
        used = TIME_CELLS + cells(shown) + cells(fold)
        if tail:
            spans.append((" " * max(width - used - cells(tail), 0) + tail, palette.faint))
        return Line(tuple(spans), target=row.record, copy=whole)

    def _gap_line(self, row: LogRow, width: int) -> Line:
        palette = self.palette
        label = f"┄┄ {safe(row.text)} "
        rest = max(width - TIME_CELLS - cells(label), 0)
        return Line(
            (
                (clock(row.t) + " ", palette.faint),
                ("GAP   ", palette.warn),
                (label, palette.warn),
                ("┄" * rest, palette.warn),
            ),
            target=row.record,
            copy=row.text,
        )

    def status(self) -> str:
        """What the frame says of the journal: sources, following or not, the filter and what it leaves."""
        total = len(self.entries.rows)
        if not total:
            return ""
        parts = [", ".join(self.entries.sources[:3])] if self.entries.sources else []
        if self.entries.filter.active:
            parts.append(f"filter {self.entries.filter.words()}: {len(self.entries):,} of {total:,} · Esc drops it")
        if not self.entries.complete:
            parts.append(f"read {self.entries.looked_at:,} of {total:,}")
        parts.append("following" if self.following else "not following · End follows")
        return " · ".join(safe(part) for part in parts)


def _without_columns(text: str, level: str) -> str:
    """A line without the time and level at its head that the pane's own columns say; the rank (TP0) stays."""
    stamp = _STAMP.match(text)
    rest = text[stamp.end() :] if stamp else text
    if rest.startswith(level) and (said := _SAID.match(rest)):
        rest = rest[said.end() :]
    rank = stamp["rank"] if stamp else ""
    return f"{rank} {rest}" if rank else rest
