"""What checking and repairing a trace have to say: problems with a place, and nothing else."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong. offset: byte of the line it is told at; record: its number, None when there is none."""

    offset: int
    record: int | None
    text: str


class Report(msgspec.Struct):
    """What `verify` found. Problems are in file order and each one is told, however many there are.

    records: whole lines, damaged and unknown ones included.    finished: the last line is a footer.
    notes: what is no problem but worth a sentence (no footer yet, unknown types, texts lost under a gap).
    """

    path: str
    problems: list[Problem] = []
    records: int = 0
    size: int = 0
    unknown: int = 0
    damaged: int = 0
    finished: bool = False
    notes: list[str] = []

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.problems

    def add(self, offset: int, record: int | None, text: str) -> None:
        """Tell one problem."""
        self.problems.append(Problem(offset, record, text))
