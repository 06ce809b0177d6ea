"""Wrapping a growing text of runs into lines, so that every cell still knows its run. Pure: no widget, no style."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddscope.session.tokens import NEWLINE
from ddscope.session.views import TextRun
from ddscope.tui import foreign

# Scripts written without spaces may be broken after any character.
_BREAKABLE = "\u2e80-\u2fdf\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60"
_ATOM = re.compile(rf"\n|[^\S\n]+|[{_BREAKABLE}]|[^\s{_BREAKABLE}]+")


LOOK_BACK = 8  # runs: the end of a text may change, as when bytes of a split character are completed


@dataclass(frozen=True, slots=True)
class Bit:
    """Part of run number `run`, from character `start` of its safe text, drawn at cell x."""

    run: int
    start: int
    x: int
    text: str


class Flow:
    """Lines of at most `width` cells; the mark of a newline may hang over. A text that grows costs what is new."""

    def __init__(self, width: int) -> None:
        self.width = max(width, 4)
        self._runs: list[TextRun] = []
        self._done: list[list[Bit]] = []
        self._line: list[Bit] = []
        self._used = 0
        self._word: list[tuple[int, int, str]] = []
        self._lines: list[list[Bit]] | None = None

    @property
    def lines(self) -> Sequence[Sequence[Bit]]:
        """All lines; the last one may still grow."""
        if self._lines is None:
            saved = list(self._line), self._used, list(self._word), len(self._done)
            self._flush()
            rest = self._done[saved[3] :] + ([self._line] if self._line else [])
            del self._done[saved[3] :]
            self._line, self._used, self._word = saved[0], saved[1], saved[2]
            self._lines = self._done + rest
        return self._lines

    def update(self, runs: Sequence[TextRun]) -> None:
        """Make this the flow of `runs`.

        Two texts with the same first run and the same last shared ones are taken to be one text that grew or was cut
        back: runs name their record, so texts of two requests differ there. Runs may be lazy, and few are looked at.
        """
        shared = min(len(self._runs), len(runs))
        if shared and self._runs[0] != runs[0]:
            shared = 0
        same = next((n for n in range(shared, max(shared - LOOK_BACK, 0), -1) if self._runs[n - 1] == runs[n - 1]), 0)
        if same < len(self._runs):
            self._take_back(same)
        for number in range(len(self._runs), len(runs)):
            run = runs[number]
            self._feed(number, foreign.safe(run.text), 0)
            self._runs.append(run)
        self._lines = None

    def run(self, number: int) -> TextRun:
        """A run by its number."""
        return self._runs[number]

    def lines_of(self, record: int) -> tuple[int, int] | None:
        """First and last line with text of a record; None when there is none. Looks from the end."""
        lines, first, last = self.lines, -1, -1
        for number in range(len(lines) - 1, -1, -1):
            if any(self._runs[bit.run].record == record for bit in lines[number]):
                first = number
                last = number if last < 0 else last
            elif last >= 0:
                break
        return (first, last) if last >= 0 else None

    def run_at(self, line: int, x: int) -> int | None:
        """The run drawn at a cell."""
        lines = self.lines
        if not 0 <= line < len(lines):
            return None
        return next((bit.run for bit in lines[line] if bit.x <= x < bit.x + foreign.cells(bit.text)), None)

    # inside ---------------------------------------------------------------------------------------------------

    def _take_back(self, runs: int) -> None:
        """Forget everything from run number `runs` on: back to the last newline before it, and on from there."""
        self._line, self._used, self._word = [], 0, []
        while self._done and not self._ends_before(self._done[-1][-1], runs):
            self._done.pop()
        first, offset = (0, 0) if not self._done else (self._done[-1][-1].run, self._done[-1][-1].start + 1)
        del self._runs[runs:]
        for number in range(first, runs):
            text = foreign.safe(self._runs[number].text)
            start = offset if number == first else 0
            self._feed(number, text[start:], start)

    @staticmethod
    def _ends_before(bit: Bit, runs: int) -> bool:
        return bit.run < runs and bit.text == NEWLINE

    def _feed(self, run: int, text: str, start: int) -> None:
        for match in _ATOM.finditer(text):
            atom, at = match.group(), start + match.start()
            if atom == "\n":
                self._flush()
                self._put(run, at, NEWLINE)
                self._break()
            elif atom.isspace():
                self._flush()
                self._spaces(run, at, atom)
            else:
                if foreign.cells(atom) > 1 and re.match(f"[{_BREAKABLE}]", atom):
                    self._flush()
                self._word.append((run, at, atom))

    def _spaces(self, run: int, at: int, spaces: str) -> None:
        room = self.width - self._used
        if room:
            self._put(run, at, spaces[:room])
        rest = spaces[room:]
        if len(rest) > 1 or (rest and not room and len(spaces) > 1):
            self._break()
            self._spaces(run, at + room, rest)

    def _flush(self) -> None:
        """Place the word that was collected: a word is drawn whole where a line can hold it."""
        size = sum(foreign.cells(text) for _, _, text in self._word)
        if self._used + size > self.width and self._used:
            self._break()
        for run, at, text in self._word:
            for place, part in enumerate(foreign.split(text, self.width - self._used, self.width)):
                if place:
                    self._break()
                if part:
                    self._put(run, at, part)
                    at += len(part)
        self._word = []

    def _put(self, run: int, at: int, text: str) -> None:
        self._line.append(Bit(run, at, self._used, text))
        self._used += foreign.cells(text)

    def _break(self) -> None:
        self._done.append(self._line)
        self._line, self._used = [], 0
