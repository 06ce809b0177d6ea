"""`output.runaway_loop`: everything that is drafted is accepted, because the output repeats itself.

A repetition is the easiest thing to draft, so perfect acceptance can itself be the symptom. Trap: tables, rules and
code repeat too, and a prompt may ask for it; so both must hold over a long stretch: acceptance at its maximum, and next
to no different four-grams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import WANTS, Journal, JournalRule
from ddscope.diagnose.log_events import Decode
from ddscope.diagnose.requests import MAX_OPEN
from ddscope.diagnose.words import plural
from ddscope.model import Finish, Log, Record, Request, Step

WINDOW = 256  # emitted tokens
GRAM = 4
SHARE = 0.1  # different four-grams among those of the window
PINNED = 0.95  # share of the window's steps that accepted as much as any step did
REPORTS = 5  # of a log, in a row, at a rate of 1.00
MAX_KEPT = 8
_PENALTIES = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}

_Gram = tuple[int, int, int, int]


@dataclass(slots=True)
class _Output:
    """The last tokens of one request."""

    rid: str
    prompt: list[int] | None = None
    penalties: tuple[str, ...] = ()
    next_step: int = -1
    tokens: deque[int] = field(default_factory=lambda: deque(maxlen=GRAM))
    grams: deque[_Gram] = field(default_factory=deque)
    counts: dict[_Gram, int] = field(default_factory=dict)
    pinned: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    most: int = 1  # accepted by any step
    evidence: Evidence | None = None
    share: float = 1.0

    def take(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) < GRAM:
            return
        a, b, c, d = self.tokens
        gram = (a, b, c, d)
        self.grams.append(gram)
        self.counts[gram] = self.counts.get(gram, 0) + 1
        if len(self.grams) > WINDOW - GRAM + 1:
            oldest = self.grams.popleft()
            if self.counts[oldest] == 1:
                del self.counts[oldest]
            else:
                self.counts[oldest] -= 1

    @property
    def full(self) -> bool:
        return len(self.grams) >= WINDOW - GRAM + 1


class RunawayLoop(JournalRule):
    """Four-grams and acceptance over a window of each request."""

    id = "output.runaway_loop"
    wants = (*WANTS, Step, Request, Finish)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._open: dict[tuple[str, str], _Output] = {}
        self._found: list[_Output] = []
        self._more = 0
        self._perfect: dict[str, tuple[int, Evidence]] = {}  # log → reports in a row, the first
        self._longest: tuple[int, Evidence] | None = None

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if isinstance(record, Log):
            event = self.journal.line.event if self.journal.line is not None else None
            if isinstance(event, Decode):
                self._report(event, record, index)
        elif isinstance(record, Step):
            if record.emitted and record.tree is not None:
                self._step(record, record.emitted, index)
        elif isinstance(record, Request):
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            penalties = tuple(f"{name} {record.sampling[name]}" for name in _PENALTIES if _penalised(record, name))
            self._open[record.src, record.rid] = _Output(record.rid, record.prompt_ids, penalties)
        elif isinstance(record, Finish):
            self._open.pop((record.src, record.rid), None)

    def _step(self, step: Step, emitted: list[int], index: int | None) -> None:
        key = (step.src, step.rid)
        output = self._open.get(key)
        if output is None or (output.next_step != step.step and output.next_step >= 0):
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            known = output or _Output(step.rid)
            output = self._open[key] = _Output(step.rid, known.prompt, known.penalties)
        output.next_step = step.step + 1
        path, tree = step.path or [0], step.tree
        accepted = len(path) - 1
        output.most = max(output.most, accepted)
        leaf = tree is not None and bool(tree.tokens) and path[-1] not in tree.parents
        output.pinned.append(leaf and accepted >= output.most)
        for token in emitted:
            output.take(token)
        if output.full and output.evidence is None and len(output.counts) < SHARE * len(output.grams):
            recent = list(output.pinned)[-max(1, WINDOW // (output.most + 1)) :]
            if sum(recent) >= PINNED * len(recent):
                output.share = len(output.counts) / len(output.grams)
                text = f"step {step.step}: {len(output.counts)} different four-grams in {len(output.grams)}"
                output.evidence = evidence_of(step, index, f"{text}, {accepted} of {accepted} drafts accepted")
                if len(self._found) < MAX_KEPT:
                    self._found.append(output)
                else:
                    self._more += 1

    def _report(self, event: Decode, record: Log, index: int | None) -> None:
        if event.accept_rate is None or event.accept_rate < 1 or (event.accept_len or 0) < 2:
            self._perfect.pop(record.src, None)
            return
        count, first = self._perfect.get(record.src, (0, None))
        first = first or evidence_of(
            record, index, f"accept len {event.accept_len:g}, accept rate {event.accept_rate:g}"
        )
        if len(self._perfect) < MAX_OPEN or record.src in self._perfect:
            self._perfect[record.src] = (count + 1, first)
        if count + 1 >= REPORTS and (self._longest is None or count + 1 > self._longest[0]):
            self._longest = (count + 1, first)

    def findings(self) -> Iterable[Finding]:
        if self._found:
            yield self._finding()
        elif self._longest is not None:
            yield self._pinned(*self._longest)

    def _finding(self) -> Finding:
        outputs = self._found
        count = len(outputs) + self._more
        penalties = tuple(dict.fromkeys(p for output in outputs for p in output.penalties))
        asked = all(_in_prompt(output) for output in outputs)
        detail = (
            f"{outputs[0].share:.0%} of the four-grams of {WINDOW} tokens differ; every step accepted all it could. "
        )
        if penalties:
            detail += f"{', '.join(penalties)} was asked for and has no effect on what is accepted."
        if asked:
            detail += "The prompt repeats itself in the same way, so this may have been asked for."
        evidence = [output.evidence for output in outputs if output.evidence is not None]
        if self._longest is not None:
            evidence.append(self._longest[1])
        return Finding(
            id=self.id,
            severity="warning" if asked else "high",
            confidence=0.4 if asked else 0.9 if penalties else 0.75,
            title="The output repeats itself without end: acceptance is at its maximum because of that"
            + (f", in {plural(count, 'request')}." if count > 1 else "."),
            detail=detail.rstrip(),
            evidence=tuple(evidence[:MAX_EVIDENCE]),
            next=(
                "Read the text. Run the same prompt by plain decoding: the same loop there clears speculation.",
                "Check that penalties and other logit processors are applied to every node of the verify.",
                "If only a long context does it, look at positions, the window of attention, and the cache's type.",
            ),
            ruled_out=(RuledOut("good drafts as the reason", "a loop is drafted without error by any drafter"),),
            rid=outputs[0].rid if count == 1 else None,
        )

    def _pinned(self, count: int, first: Evidence) -> Finding:
        return Finding(
            id=self.id,
            kind="pinned",
            severity="info",
            confidence=0.4,
            title=f"All that was drafted has been accepted for {plural(count, 'report')} on end: look at the text.",
            detail="Output that repeats itself does that, and so do long tables. The log does not hold the text.",
            evidence=(first,),
            next=("Attach a hook, or read an answer of that time.",),
        )


def _penalised(request: Request, name: str) -> bool:
    value: Any = request.sampling.get(name)
    return isinstance(value, int | float) and not isinstance(value, bool) and value != _PENALTIES[name]


def _in_prompt(output: _Output) -> bool:
    """Whether most of the loop's four-grams are in the prompt, several times."""
    prompt = output.prompt
    if not prompt:
        return False
    seen: dict[tuple[int, ...], int] = {}
    for at in range(len(prompt) - GRAM + 1):
        gram = tuple(prompt[at : at + GRAM])
        seen[gram] = seen.get(gram, 0) + 1
    return sum(seen.get(gram, 0) >= 3 for gram in output.counts) >= 0.5 * len(output.counts) > 0
