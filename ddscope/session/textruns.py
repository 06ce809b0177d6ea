"""A request's text as runs, made when looked at: each run decodes its own tokens and looks back at most three bytes.

So a text of any length costs what the screen shows of it. Every byte of every known token is in some run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, overload

from ddscope.session.ledger import RequestLedger
from ddscope.session.tokens import TokenTable, hex_mark
from ddscope.session.views import TextRun

Kind = Literal["prompt", "root", "accepted", "bonus", "emitted", "gap", "tail"]


class _Piece(NamedTuple):
    kind: Kind
    start: int  # in the ledger's ids
    stop: int
    place: int  # of the step in the ledger


class TextRuns(Sequence[TextRun]):
    """Runs of one request up to a moment: the prompt when given, the output, then a character that has only begun.

    steps: how many of the ledger's steps are seen (those that are digested). step_numbers: record number → step number.
    """

    def __init__(
        self,
        ledger: RequestLedger | None,
        steps: int,
        tokens: TokenTable,
        step_numbers: Sequence[int],
        prompt: Sequence[int] = (),
        prompt_record: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._tokens = tokens
        self._numbers = step_numbers
        self._prompt = prompt
        self._prompt_record = prompt_record
        self._head = 1 if prompt else 0
        self._body = ledger.runs[steps] if ledger is not None else 0
        self._stop = ledger.ends[steps - 1] if ledger is not None and steps else 0
        self._steps = steps
        self._rest = self._carry(self._stop)

    def __len__(self) -> int:
        return self._head + self._body + bool(self._rest)

    @overload
    def __getitem__(self, place: int) -> TextRun: ...
    @overload
    def __getitem__(self, place: slice) -> list[TextRun]: ...
    def __getitem__(self, place: int | slice) -> TextRun | list[TextRun]:
        if isinstance(place, slice):
            return [self._run(i) for i in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._run(place)

    def __iter__(self) -> Iterator[TextRun]:
        for i in range(len(self)):
            yield self._run(i)

    @property
    def plain(self) -> str:
        """All of it as one string, as it is shown."""
        return "".join(run.text for run in self)

    @property
    def written(self) -> str:
        """All of it as the model wrote it: nothing made visible, bytes that are no character as U+FFFD."""
        parts = (run.text.encode() if run.kind == "gap" else self._tokens.join_bytes(run.tokens) for run in self)
        return b"".join(parts).decode("utf-8", "replace")

    def _run(self, place: int) -> TextRun:
        if place < self._head:
            text, _ = self._tokens.decode(self._prompt)
            return TextRun(text, "prompt", None, self._prompt_record, tuple(self._prompt))
        place -= self._head
        if place >= self._body:
            return TextRun(hex_mark(self._rest), "tail", None, None)
        ledger = self._ledger
        assert ledger is not None
        step = bisect_right(ledger.runs, place, 0, self._steps + 1) - 1
        piece = self._pieces(ledger, step)[place - ledger.runs[step]]
        record = ledger.records[step]
        if piece.kind == "gap":
            return TextRun(self._gap_text(ledger, step), "gap", self._numbers[record], record)
        ids = tuple(ledger.ids[piece.start : piece.stop])
        text, _ = self._tokens.decode(ids, self._carry(piece.start))
        return TextRun(text, piece.kind, self._numbers[record], record, ids)

    def _pieces(self, ledger: RequestLedger, step: int) -> list[_Piece]:
        start, stop = (ledger.ends[step - 1] if step else 0), ledger.ends[step]
        pieces = []
        if ledger.missing[step]:
            pieces.append(_Piece("gap", start, start, step))
        if ledger.rooted[step]:
            pieces.append(_Piece("root", start, start + 1, step))
            start += 1
        split = ledger.split[step]
        accepted = max(split, 0)
        if accepted:
            pieces.append(_Piece("accepted", start, start + accepted, step))
            start += accepted
        if start < stop:
            pieces.append(_Piece("emitted" if split < 0 else "bonus", start, stop, step))
        return pieces

    def _gap_text(self, ledger: RequestLedger, step: int) -> str:
        begun = self._carry(ledger.ends[step - 1] if step else 0, at_gap=True)
        count = ledger.missing[step]
        if count < 0:
            return hex_mark(begun) + "⟨earlier text not seen⟩"
        return hex_mark(begun) + f"⟨{count:,} {'token' if count == 1 else 'tokens'} missing⟩"

    def _carry(self, stop: int, at_gap: bool = False) -> bytes:
        """Bytes of a character that has only begun before place `stop` of the ids."""
        ledger = self._ledger
        if ledger is None:
            return self._tokens.carry(reversed(self._prompt))
        barriers = ledger.barriers
        wall = bisect_right(barriers, stop) - 1
        if wall >= 0 and barriers[wall] == stop and at_gap:
            wall -= 1
        start = barriers[wall] if wall >= 0 else 0
        ids = ledger.ids
        own = (ids[i] for i in range(stop - 1, start - 1, -1))
        return self._tokens.carry(own if wall >= 0 else chain(own, reversed(self._prompt)))
