"""Search in generated text, drafted tokens and journal: a slice at a time on the screen's thread, in the trace's order.

Text is searched as it reads, over token borders; drafted tokens one by one, each id tested once; the journal line by
line. Letters match in either case unless the query has a capital.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ddscope.model import Step
from ddscope.session import LogRow, RequestRow, TextRun, TokenTable

CONTEXT = 30  # characters of text around a match
MOST = 10_000  # matches kept; more are counted and said

Kind = Literal["text", "token", "journal"]


class Searchable(Protocol):
    """What a search asks of a store."""

    @property
    def tokens(self) -> TokenTable:
        """Texts of token ids."""

    def requests(self, at: int | None = None) -> Sequence[RequestRow]:
        """All requests."""

    def text(self, rid: str, at: int | None = None) -> Sequence[TextRun]:
        """Text of a request."""

    def step_records(self, rid: str) -> Sequence[int]:
        """Steps of a request."""

    def step(self, record: int) -> Step | None:
        """One step."""

    def logs(self, at: int | None = None) -> Sequence[LogRow]:
        """The journal."""


@dataclass(frozen=True, order=True)
class Match:
    """Something found. The order is the trace's."""

    record: int
    kind: Kind = field(compare=False)
    rid: str | None = field(compare=False)
    step: int | None = field(compare=False)
    before: str = field(compare=False)
    found: str = field(compare=False)
    after: str = field(compare=False)


class Search:
    """One query over one store. `work` until `done`; `matches` stay sorted by record while they come."""

    def __init__(self, store: Searchable, query: str) -> None:
        self.query = query
        self.matches: list[Match] = []
        self.more = 0  # found beyond MOST
        self.looked_at = 0
        self.done = not query
        self._fold: Callable[[str], str] = str if any(c.isupper() for c in query) else str.lower
        self._needle = self._fold(query)
        self._steps = self._run(store)

    def work(self, budget_s: float = 0.01) -> bool:
        """Search on for about `budget_s`. True when there is more to do."""
        deadline = time.perf_counter() + budget_s
        while not self.done:
            try:
                next(self._steps)
            except StopIteration:
                self.done = True
                break
            if time.perf_counter() >= deadline:
                break
        return not self.done

    def after(self, record: int) -> Match | None:
        """The first match behind a record, round to the first."""
        place = bisect_right(self.matches, record, key=lambda m: m.record)
        return self.matches[place % len(self.matches)] if self.matches else None

    def before(self, record: int) -> Match | None:
        """The last match before a record, round to the last."""
        return self.matches[bisect_left(self.matches, record, key=lambda m: m.record) - 1] if self.matches else None

    def _add(self, match: Match) -> None:
        if len(self.matches) >= MOST:
            self.more += 1
        else:
            insort(self.matches, match)

    def _run(self, store: Searchable) -> Iterator[None]:
        rows = store.requests()
        for row in rows:
            yield from self._text(store.text(row.rid), row.rid)
        logs = store.logs()
        for number in range(len(logs)):
            self._line(logs[number])
            yield
        matches = self._token_test(store.tokens)
        for row in rows:
            for record in store.step_records(row.rid):
                self._tree(store, record, matches)
                yield

    def _text(self, runs: Sequence[TextRun], rid: str) -> Iterator[None]:
        whole = "".join(run.text for run in runs)
        folded = self._fold(whole)
        if len(folded) != len(whole):  # a letter that folds to two; places would not agree
            folded = whole
        ends: list[int] = []
        size = 0
        for run in runs:
            size += len(run.text)
            ends.append(size)
        place = folded.find(self._needle)
        while place >= 0:
            run = runs[min(bisect_right(ends, place), len(runs) - 1)]
            end = place + len(self._needle)
            record = run.record
            if record is None:  # the prompt and the prefill's token stand before the first step
                record = next((r.record for r in runs if r.record is not None), None)
            if record is not None:
                around = whole[max(place - CONTEXT, 0) : place], whole[place:end], whole[end : end + CONTEXT]
                self._add(Match(record, "text", rid, run.step, *around))
            place = folded.find(self._needle, end)
            yield
        self.looked_at += 1

    def _line(self, row: LogRow) -> None:
        self.looked_at += 1
        place = self._fold(row.text).find(self._needle)
        if place >= 0:
            end = place + len(self._needle)
            start = max(place - CONTEXT, row.text.rfind("\n", 0, place) + 1)
            after = row.text[end : end + 2 * CONTEXT].split("\n", 1)[0]
            self._add(Match(row.record, "journal", None, None, row.text[start:place], row.text[place:end], after))

    def _token_test(self, table: TokenTable) -> Callable[[int], bool]:
        """Whether a token is meant: its text has the query, or the query is its id ("#198")."""
        number = self.query.removeprefix("#")
        wanted = int(number) if number.isdecimal() and len(number) < 12 else None
        known: dict[int, bool] = {}

        def test(token: int) -> bool:
            hit = known.get(token)
            if hit is None:
                text = (table.text(token) or b"").decode("utf-8", "replace")
                hit = known[token] = token == wanted or self._needle in self._fold(text)
            return hit

        return test

    def _tree(self, store: Searchable, record: int, matches: Callable[[int], bool]) -> None:
        self.looked_at += 1
        step = store.step(record)
        if step is None or step.tree is None:
            return
        hits = [(node, token) for node, token in enumerate(step.tree.tokens, 1) if matches(token)]
        if hits:
            node, token = hits[0]
            others = f" and {len(hits) - 1} more nodes" if len(hits) > 1 else ""
            self._add(Match(record, "token", step.rid, step.step, f"node {node} ", store.tokens.display(token), others))
