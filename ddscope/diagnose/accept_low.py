"""`accept.low_from_start`: next to nothing that is drafted is accepted, from the first step on.

Reads steps, and the engine's own reports of the accept length where a log is all there is. Traps: acceptance that is
simulated for a benchmark; plain decoding and a budget of 0, where nothing is drafted; five unlucky steps on hard
text; the logged accept *rate*, whose formula has changed: only the length is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import WANTS, Journal
from ddscope.diagnose.log_events import Decode, Event, Prefill, Ready
from ddscope.diagnose.requests import MAX_OPEN, Requests, emitted_by
from ddscope.diagnose.stats import binomial_at_most
from ddscope.diagnose.words import plural
from ddscope.model import Finish, Log, Record, Request, Step

LOW_TAU = 1.1  # emitted per step
REPORTS = 5  # steps, or log reports, before anything is said
CHANCE_FLOOR = 0.3  # P(depth 1 accepted), at least, of greedy healthy steps; hard text measured 0.59
SAMPLED_FLOOR = 0.1  # the same where steps may be sampled; hard text at temperature 1 measured 0.27
SIGNIFICANT = 1e-3
HEAD = 16  # first steps counted; a run that only later turns bad is another finding

NEXT = (
    "Pairing: the drafter must be trained for exactly this target, and share its tokenizer.",
    "Layer ids: compare `target_layer_ids` of the drafter's configuration with the layers that are captured.",
    "Head and vocabulary: the drafter's head must be loaded, or shared with the target's.",
    "Mask token: the block is filled with the drafter's own `mask_token_id`, and slot 0 holds the last "
    "committed token.",
    "Weights: look for tensors of the drafter that the loader skipped, or quantised as the target is.",
)


class AcceptLow(Detector):
    """Steps of uncached requests that were seen from their start, and accept lengths from log lines."""

    id = "accept.low_from_start"
    wants = (*WANTS, Step, Request, Finish)

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
        self._cached: dict[tuple[str, int | None], bool] = {}  # whether the last prefill found a part in the cache
        self._requests = Requests()
        self._started: dict[tuple[str, str], int] = {}  # step expected next of requests seen from the start
        self._steps = 0
        self._emitted = 0
        self._hits = 0
        self._head_hits = 0
        self._sampled = False
        self._rids: dict[str, None] = {}
        self._evidence: list[Evidence] = []
        self._reports: dict[tuple[str, int | None], tuple[int, float, float]] = {}  # count, sum, highest
        self._report_evidence: list[Evidence] = []

    def observe(self, record: Record, index: int | None = None) -> None:
        self._journal.observe(record, index)
        if isinstance(record, Log):
            if self._journal.line is not None and self._journal.line.event is not None:
                self._observe_event(self._journal.line.event, record, index)
        elif isinstance(record, Step):
            self._observe_step(record, index)
        elif isinstance(record, Request | Finish):
            self._requests.observe(record)
            self._started.pop((record.src, record.rid), None)

    def _observe_step(self, step: Step, index: int | None) -> None:
        """Counts a step that had something drafted, of an uncached request seen without a hole from its start."""
        if step.path is None or step.tree is None or not step.tree.tokens:
            return
        key = (step.src, step.rid)
        info = self._requests.get(step)
        if info is not None and info.cached:
            return
        at_start = step.step == 0 if info is None or step.base is None else step.base == info.prompt_len
        if not at_start and self._started.get(key) != step.step:
            self._started.pop(key, None)
            return
        if len(self._started) < MAX_OPEN or key in self._started:
            self._started[key] = step.step + 1
        accepted = max(0, len(step.path) - 1)
        self._steps += 1
        self._emitted += emitted_by(step)
        self._hits += accepted > 0
        self._sampled = self._sampled or self._requests.greedy(step) is False
        if self._steps <= HEAD:
            self._head_hits += accepted > 0
        if len(self._rids) < 2:
            self._rids[step.rid] = None
        if accepted == 0 and len(self._evidence) < MAX_EVIDENCE:
            text = f"step {step.step}: none of {plural(len(step.tree.tokens), 'drafted node')} accepted"
            self._evidence.append(evidence_of(step, index, text))

    def _observe_event(self, event: Event, record: Log, index: int | None) -> None:
        key = (record.src, record.pid)
        if isinstance(event, Ready):
            self._reports.pop(key, None)
            self._cached.pop(key, None)
        elif isinstance(event, Prefill):
            if len(self._cached) < MAX_OPEN or key in self._cached:
                self._cached[key] = bool(event.cached_tokens)
        elif isinstance(event, Decode) and event.accept_len is not None and not self._cached.get(key):
            self._report(key, event.accept_len, record, index)

    def _report(self, key: tuple[str, int | None], length: float, record: Log, index: int | None) -> None:
        if len(self._reports) >= MAX_OPEN and key not in self._reports:
            return
        count, total, highest = self._reports.get(key, (0, 0.0, 0.0))
        self._reports[key] = (count + 1, total + length, max(highest, length))
        if count < MAX_EVIDENCE and length <= LOW_TAU and len(self._report_evidence) < MAX_EVIDENCE:
            self._report_evidence.append(evidence_of(record, index, f"accept len {length:g} reported"))

    def findings(self) -> Iterable[Finding]:
        finding = self._from_steps() or self._from_reports()
        if finding is not None:
            yield finding

    def _from_steps(self) -> Finding | None:
        steps, hits = self._steps, self._hits
        if steps < REPORTS or self._emitted > LOW_TAU * steps or self._head_hits > 1:
            return None
        chance = binomial_at_most(hits, steps, SAMPLED_FLOOR if self._sampled else CHANCE_FLOOR)
        sure = chance < SIGNIFICANT
        if not sure and hits:
            return None
        tau = self._emitted / steps
        detail = f"{tau:.2f} tokens per step over {plural(steps, 'step')}; "
        detail += f"something was accepted in {hits:,} of them."
        if not sure:
            detail += " So few steps can be bad luck on hard text."
        return Finding(
            id=self.id,
            kind="steps",
            severity="high" if sure else "info",
            confidence=0.9 if sure else 0.4,
            title="From the first step on, next to nothing that is drafted gets accepted.",
            detail=detail,
            evidence=tuple(self._evidence),
            next=NEXT,
            ruled_out=(
                RuledOut("plain decoding", "only steps that had drafted nodes are counted"),
                RuledOut("the prefix cache", "requests with cached tokens are left out"),
                RuledOut("a fault that comes with time or load", "it is there from the first step of the requests"),
            ),
            rid=next(iter(self._rids)) if len(self._rids) == 1 else None,
        )

    def _from_reports(self) -> Finding | None:
        low = [entry for entry in self._reports.values() if entry[0] >= REPORTS and entry[2] <= LOW_TAU]
        if not low:
            return None
        count = sum(entry[0] for entry in low)
        mean = sum(entry[1] for entry in low) / count
        return Finding(
            id=self.id,
            kind="log",
            severity="high",
            confidence=0.85,
            title="From its first report on, the server accepts next to nothing that is drafted.",
            detail=f"Accept length {mean:.2f} on average over {plural(count, 'report')}, never above {LOW_TAU}. "
            "It counts the target's own token, so 1.0 means that nothing was accepted.",
            evidence=tuple(self._report_evidence),
            next=NEXT,
            ruled_out=(
                RuledOut("the prefix cache", "reports after a prefill that found cached tokens are left out"),
                RuledOut("a redefined metric", "the accept length is read, not the accept rate, whose formula changed"),
                RuledOut("a fault that comes with time or load", "it is there from the first report of the process"),
            ),
        )
