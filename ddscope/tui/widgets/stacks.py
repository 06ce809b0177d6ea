"""Stacks: where each thread of a server's processes stands; the frame that says most first, idle threads folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddscope.session import StackView, ThreadRow
from ddscope.tui.clock import clock
from ddscope.tui.foreign import cells, safe, wrap
from ddscope.tui.widgets.lines import Line, LineView
from ddscope.tui.widgets.pane import Piece

NAME = 18  # cells
_LONG = re.compile(r"\((?:/\S*/(?:site|dist)-packages/|/\S*/lib/python3[\d.]*/)(?P<path>)")


@dataclass(frozen=True)
class _Entry:
    """A process (no threads), a thread, or idle threads together."""

    view: StackView
    threads: tuple[ThreadRow, ...] = ()
    folded: bool = False

    @property
    def key(self) -> tuple[str, int, str, bool]:
        name = self.threads[0].name if self.threads and not self.folded else ""
        return self.view.src, self.view.pid, name, self.folded


def entries_of(views: Sequence[StackView]) -> tuple[_Entry, ...]:
    """A line a process, its threads, and one line for all that are idle."""
    made: list[_Entry] = []
    for view in views:
        made.append(_Entry(view))
        made += [_Entry(view, (thread,)) for thread in view.threads if not thread.idle]
        idle = tuple(thread for thread in view.threads if thread.idle)
        if idle:
            made.append(_Entry(view, idle, folded=True))
    return tuple(made)


class Stacks(LineView):
    """The newest dump of every process."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.views: tuple[StackView, ...] = ()
        self._entries: tuple[_Entry, ...] = ()

    def show(self, views: Sequence[StackView]) -> None:
        """Dumps, the newest first."""
        new = tuple(views)
        if new == self.views:
            return
        held = {self._entries[entry].key for entry in self.opened}
        self.views, self._entries = new, entries_of(new)
        self.content_changed([place for place, entry in enumerate(self._entries) if entry.key in held])

    def entry_count(self) -> int:
        """Processes, threads and folds."""
        return len(self._entries)

    def entry_line(self, entry: int, width: int) -> Line:
        """A process with when and how; a thread with where it stands; how many are idle."""
        one = self._entries[entry]
        if not one.threads:
            return self._process(one.view)
        mark = "▾ " if self.is_open(entry) else "▸ "
        if one.folded:
            names = ", ".join(dict.fromkeys(safe(thread.name) for thread in one.threads))
            many = f"{len(one.threads)} idle thread{'s' if len(one.threads) != 1 else ''}"
            return Line(
                (("  " + mark, self.palette.muted), (f"{many}: ", self.palette.muted), (names, self.palette.faint))
            )
        return self._thread(one.threads[0], "  " + mark, one.view)

    def _process(self, view: StackView) -> Line:
        palette = self.palette
        since = f", compared with {_span(view.t - view.before_t)} before" if view.before_t is not None else ""
        spans: list[Piece] = [
            (f"pid {view.pid} ", palette.strong),
            (safe(view.process), palette.root),
            (f"  {len(view.threads)} threads at {clock(view.t)}{since}", palette.muted),
        ]
        host = view.src.partition("/")[2]
        if host:
            spans.insert(0, (f"{safe(host)} ", palette.muted))
        return Line(tuple(spans), target=view.record)

    def _thread(self, thread: ThreadRow, mark: str, view: StackView) -> Line:
        palette = self.palette
        name = safe(thread.name)
        word = "GIL " if thread.gil else "run " if thread.active else "    "
        spans: list[Piece] = [
            (mark, palette.muted),
            (name + " " * max(NAME - cells(name), 1), palette.text),
            (word, palette.warn if thread.gil else palette.good),
            (short(thread.at), palette.strong),
        ]
        if thread.frames and thread.frames[0] != thread.at:
            spans.append((f"  in {short(thread.frames[0])}", palette.muted))
        if thread.still and view.before_t is not None:
            spans.append((f"  as {_span(view.t - view.before_t)} before", palette.warn))
        return Line(tuple(spans), copy="\n".join(thread.frames))

    def entry_detail(self, entry: int, width: int) -> list[Line]:
        """All frames of a thread; of a fold, its threads in one line each."""
        one = self._entries[entry]
        if one.folded:
            return [self._thread(thread, "      ", one.view) for thread in one.threads]
        lines = []
        for thread in one.threads:
            for frame in thread.frames:
                ink = self.palette.strong if frame == thread.at else self.palette.muted
                lines += [
                    Line((("        " + piece, ink),), copy=frame) for piece in wrap(safe(frame), max(width - 9, 20))
                ]
        return lines


def short(frame: str) -> str:
    """A frame in one line: a file of an installed package by its path in there, the standard library by its name."""
    return safe(_LONG.sub(r"(\g<path>", frame))


def _span(microseconds: int) -> str:
    """A time between two dumps."""
    seconds = microseconds / 1e6
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
