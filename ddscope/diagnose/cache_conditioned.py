"""`accept.cache_conditioned`: requests that found a part of their prompt in the cache accept less than half as much.

Then the drafter's own cache has nothing valid for those tokens. Trap: cached prompts are longer, too, and long prompts
alone lower acceptance; so only requests of like length are compared. A log tells it where one request ran at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import WANTS, Journal, JournalRule
from ddscope.diagnose.log_events import Decode, Prefill
from ddscope.diagnose.requests import MAX_OPEN, emitted_by
from ddscope.diagnose.words import plural
from ddscope.model import Finish, Log, Record, Request, Step

EACH = 3  # requests of either sort, of like length
STEPS = 20  # of either sort; from a log, reports count as REPORT steps each
REPORT = 10
LEAST = 0.3  # accepted per step that uncached requests must have, or there is nothing to lose
HALF = 0.5
AGREE = 0.8  # share of requests on their side of the middle
MAX_KEPT = 1024


@dataclass(slots=True)
class _Seen:
    """One request: its length, whether a part of it was cached, and what its steps accepted."""

    length: int
    cached: int
    evidence: Evidence
    weight: float = 0.0
    accepted: float = 0.0
    skip: int = 0  # reports that also speak of the request before

    @property
    def mean(self) -> float:
        return self.accepted / self.weight if self.weight else 0.0


class CacheConditioned(JournalRule):
    """Accepted per step of requests, by whether they were cached, within classes of length."""

    id = "accept.cache_conditioned"
    wants = (*WANTS, Step, Request, Finish)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._open: dict[tuple[str, str], _Seen] = {}
        self._done: list[_Seen] = []
        self._alone: dict[str, _Seen] = {}  # log → the request that runs by itself

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if isinstance(record, Log):
            if self.journal.line is not None and self.journal.line.event is not None:
                self._line(record, index)
        elif isinstance(record, Step):
            seen = self._open.get((record.src, record.rid))
            if seen is not None and record.tree is not None and record.tree.tokens:
                seen.weight += 1
                seen.accepted += max(0, emitted_by(record) - 1)
        elif isinstance(record, Request):
            self._close((record.src, record.rid))
            if record.cached_tokens is not None and len(self._open) < MAX_OPEN:
                said = f"request {record.rid}: {record.cached_tokens:,} of {record.prompt_len:,} tokens cached"
                seen = _Seen(record.prompt_len, record.cached_tokens, evidence_of(record, index, said))
                self._open[record.src, record.rid] = seen
        elif isinstance(record, Finish):
            self._close((record.src, record.rid))

    def _line(self, record: Record, index: int | None) -> None:
        event = self.journal.line.event if self.journal.line is not None else None
        if isinstance(event, Prefill):
            self._keep(self._alone.pop(record.src, None))
            if event.new_seqs == 1 and not event.running and event.new_tokens is not None:
                cached = event.cached_tokens or 0
                said = f"a prefill of {event.new_tokens:,} new and {cached:,} cached tokens"
                seen = _Seen(event.new_tokens + cached, cached, evidence_of(record, index, said), skip=1)
                if len(self._alone) < MAX_OPEN:
                    self._alone[record.src] = seen
        elif isinstance(event, Decode) and event.accept_len is not None:
            alone = self._alone.get(record.src)
            if alone is None:
                return
            if event.running != 1:
                self._keep(self._alone.pop(record.src))
            elif alone.skip:
                alone.skip -= 1
            else:
                alone.weight += REPORT
                alone.accepted += REPORT * max(0.0, event.accept_len - 1)

    def _close(self, key: tuple[str, str]) -> None:
        self._keep(self._open.pop(key, None))

    def _keep(self, seen: _Seen | None) -> None:
        if seen is not None and seen.weight and len(self._done) < MAX_KEPT:
            self._done.append(seen)

    def findings(self) -> Iterable[Finding]:
        seen = [*self._done, *(s for s in (*self._open.values(), *self._alone.values()) if s.weight)]
        cached, plain = [s for s in seen if s.cached > 0], [s for s in seen if s.cached == 0]
        lengths = {s.length.bit_length() for s in cached} & {s.length.bit_length() for s in plain}
        like = [[s for s in group if s.length.bit_length() in lengths] for group in (cached, plain)]
        if differ(*like):
            yield self._finding(like[0], like[1], alike=True)
        elif not lengths and differ(cached, plain):
            yield self._finding(cached, plain, alike=False)

    def _finding(self, cached: list[_Seen], plain: list[_Seen], alike: bool) -> Finding:
        one, two = mean(cached), mean(plain)
        shown = sorted(cached, key=lambda s: s.mean)[:3] + sorted(plain, key=lambda s: -s.mean)[:3]
        title = f"Requests with a cached prefix accept {one:.2f} drafted tokens per step, others {two:.2f}"
        finding = Finding(
            id=self.id,
            kind="",
            severity="high",
            confidence=0.85,
            title=title + ".",
            detail=f"{plural(len(cached), 'cached request')} against {plural(len(plain), 'uncached one')}"
            + (" of like length." if alike else "."),
            evidence=tuple(replace(s.evidence, text=f"{s.evidence.text}; {s.mean:.2f} accepted") for s in shown)[
                :MAX_EVIDENCE
            ],
            next=(
                "Flush the prefix cache and send the same prompt twice: only the second may be slow.",
                "The drafter's own cache must hold the restored tokens, or they must be masked for it.",
                "Serve with the prefix cache off, and compare.",
            ),
            ruled_out=(
                RuledOut("longer prompts", "only requests whose lengths lie within a factor of two are compared"),
            )
            if alike
            else (),
        )
        if alike:
            return finding
        return finding.with_(
            severity="info",
            confidence=0.4,
            kind="lengths_differ",
            title=title + ", but their prompts differ in length, which lowers acceptance by itself.",
        )


def mean(seen: list[_Seen]) -> float:
    """Accepted per step over all of them."""
    weight = sum(s.weight for s in seen)
    return sum(s.accepted for s in seen) / weight if weight else 0.0


def differ(cached: list[_Seen], plain: list[_Seen]) -> bool:
    """Whether cached requests accept less than half, nearly all of them, and there are enough of both."""
    if min(len(cached), len(plain)) < EACH or min(sum(s.weight for s in g) for g in (cached, plain)) < STEPS:
        return False
    low, high = mean(cached), mean(plain)
    if high < LEAST or low >= HALF * high:
        return False
    middle = (low + high) / 2
    below = sum(s.mean < middle for s in cached) / len(cached)
    above = sum(s.mean > middle for s in plain) / len(plain)
    return min(below, above) >= AGREE
