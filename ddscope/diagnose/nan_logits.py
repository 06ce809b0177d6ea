"""`nan.logits`: logits that are NaN or infinite, or flat because such logits were replaced by a constant.

A row of NaN has an argmax all the same, most often id 0, which prints as `!` or as nothing; the server answers 200,
finishes with `length`, and no log says "nan". Traps: −inf is right where tokens are forbidden (grammars, draft heads
with a reduced vocabulary), and then the log-probability of the chosen token stays finite; a NaN warning during warm-
up with made-up ids is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.messages import READY, message_of
from ddscope.diagnose.requests import MAX_OPEN
from ddscope.diagnose.words import excerpt, plural
from ddscope.model import Draft, Fact, Header, Log, Record, Step

FLAT_STEPS = 8  # steps before a flat distribution is called one
FLAT_NATS = 1e-3  # distance to log V, in nats; heads measured 3 to 11 away, wrongly fed ones too
WIDESPREAD = 0.5  # share of steps from which on the NaN explains the run, not a moment of it

SAMPLER_SIGNS = ("probability tensor contains either `inf`, `nan`", "detected errors during sampling! nan")
TREE_SIGN = "check if the logprob has nan"
LOG_SIGNS = (*SAMPLER_SIGNS, TREE_SIGN)
FLOOD = 8  # emitted tokens of one id in a row that agree with what a log says

_NEXT_TARGET = (
    "Run the target alone (`--algorithm autoregressive`) on the same prompt: NaN there too means the "
    "target's weights or "
    "numerics, and speculation is not the cause.",
    "Check the dtype: float16 overflows in models trained in bfloat16; use bfloat16 or float32.",
    "Check the weights of the final norm and the head, and the scales of a quantised checkpoint, for NaN and "
    "for zeros.",
    "On a server: flush the prefix cache once. If that helps, the cache holds the NaN, not the weights.",
)
_SANITISED = "Look for a setting that sanitises NaN logits, and turn it off: it hides the fault and emits random ids."
_NEXT_FLAT_DRAFT = (
    "Check that the drafter's head is loaded, or shared with the target's.",
    "Compare the drafter's first logits with those of the reference implementation.",
)


class _Place:
    """What was seen at one place (target or draft)."""

    __slots__ = ("confirmed", "evidence", "first", "flagged", "rids")

    def __init__(self) -> None:
        self.flagged = 0  # steps with a count of non-finite logits, or a null log-probability
        self.confirmed = 0  # of these, steps in which a chosen token's log-probability is null itself
        self.first = 0  # step number of the first
        self.rids: dict[str, None] = {}
        self.evidence: list[Evidence] = []

    def add(self, step: Step, index: int | None, count: int, confirmed: bool, text: str) -> None:
        if not self.flagged:
            self.first = step.step
        self.flagged += 1
        self.confirmed += confirmed
        if len(self.rids) < 2:
            self.rids[step.rid] = None
        if len(self.evidence) < MAX_EVIDENCE:
            counted = f"{plural(count, 'logit')} not finite" if count else "the log-probability is not finite"
            self.evidence.append(evidence_of(step, index, f"step {step.step}: {counted}{text}"))


class _Flat:
    """Steps whose distribution is uniform over the vocabulary."""

    __slots__ = ("evidence", "seen", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.seen = 0
        self.evidence: list[Evidence] = []

    def add(self, step: Step, index: int | None, nats: float | None, log_vocab: float) -> None:
        """nats: entropy, or minus a log-probability that equals it when all tokens are equally likely."""
        self.seen += 1
        if nats is not None and abs(nats - log_vocab) < FLAT_NATS:
            self.steps += 1
            if len(self.evidence) < 3:
                text = f"step {step.step}: {nats:.3f} nats, log V is {log_vocab:.3f}"
                self.evidence.append(evidence_of(step, index, text))

    @property
    def holds(self) -> bool:
        return self.steps >= FLAT_STEPS and self.steps >= 0.9 * self.seen


class NanLogits(Detector):
    """Counts steps with non-finite or flat logits, by place."""

    id = "nan.logits"
    wants = (Step, Header, Log, Fact)

    def __init__(self) -> None:
        self._vocab: int | None = None
        self._log_vocab = 0.0
        self._steps = 0
        self._plain = 0  # flagged steps of plain decoding
        self._target, self._draft = _Place(), _Place()
        self._flat_target, self._flat_draft = _Flat(), _Flat()
        self._log: list[Evidence] = []
        self._ready: set[str] = set()  # log sources that said so
        self._served = False  # a line about NaN came after that
        self._at: dict[str, int] = {}  # sign → lines
        self._same: dict[tuple[str, str], tuple[int, int]] = {}  # request → the id of its last tokens, how many
        self._flood: tuple[int, Evidence] | None = None  # an id that filled an output, and where

    def observe(self, record: Record, index: int | None = None) -> None:
        if isinstance(record, Step):
            self._observe_step(record, index)
        elif isinstance(record, Header):
            vocab = record.model.vocab_size if record.model is not None else None
            if vocab is not None and vocab > 1:
                self._vocab, self._log_vocab = vocab, log(vocab)
        else:
            self._observe_message(record, index)

    def _observe_message(self, record: Record, index: int | None) -> None:
        message = message_of(record)
        if not message:
            return
        if any(mark in message for mark in READY):
            self._ready.add(record.src)
        if "nan" not in message and "NaN" not in message and "NAN" not in message:
            return
        lowered = message.lower()
        sign = next((sign for sign in LOG_SIGNS if sign in lowered), None)
        if sign is not None:
            self._at[sign] = self._at.get(sign, 0) + 1
            self._served = self._served or record.src in self._ready
            if len(self._log) < MAX_EVIDENCE and self._at[sign] <= MAX_EVIDENCE // 2:
                self._log.append(evidence_of(record, index, excerpt(message)))

    def _run_of_one(self, step: Step, emitted: list[int], index: int | None) -> None:
        """Whether the target commits one id over and over, for a log that speaks of NaN."""
        key = (step.src, step.rid)
        token, count = self._same.get(key, (-1, 0))
        if emitted.count(emitted[0]) != len(emitted):
            self._same.pop(key, None)
            return
        count = count + len(emitted) if token == emitted[0] else len(emitted)
        if len(self._same) < MAX_OPEN or key in self._same:
            self._same[key] = (emitted[0], count)
        if count >= FLOOD and self._flood is None:
            text = f"step {step.step}: {plural(count, 'token')} in a row are id {emitted[0]}"
            self._flood = (emitted[0], evidence_of(step, index, text))

    def _observe_step(self, step: Step, index: int | None) -> None:
        self._steps += 1
        if step.emitted and self._flood is None:
            self._run_of_one(step, step.emitted, index)
        flags, target, draft = step.flags, step.target, step.draft
        counts = flags.nonfinite if flags is not None else None
        in_target = counts.get("target", 0) if counts else 0
        in_draft = counts.get("draft", 0) if counts else 0
        logprobs = target.logprobs if target is not None else None
        null = logprobs is not None and None in logprobs
        if in_target > 0 or null:
            # Without recorded log-probabilities the count is all there is, and it is believed.
            self._target.add(step, index, in_target, null or logprobs is None, self._rows(in_target))
            self._plain += step.tree is not None and not step.tree.tokens
        if draft is not None and _draft_is_nan(draft):  # a count alone is no sign: a reduced head is −inf elsewhere
            self._draft.add(step, index, in_draft, True, " at the drafter")
        if self._vocab is not None:
            if logprobs and target is not None:
                # All equal means that the chosen one is not ahead of the next, whatever was sampled.
                tied = target.gap is not None and target.gap[:1] == [0]
                nats = -logprobs[0] if tied and logprobs[0] is not None else None
                self._flat_target.add(step, index, nats, self._log_vocab)
            if draft is not None and draft.entropy:
                self._flat_draft.add(step, index, draft.entropy[0], self._log_vocab)

    def _rows(self, count: int) -> str:
        if self._vocab is None or count <= 0 or count % self._vocab:
            return ""
        return f" (every logit of {plural(count // self._vocab, 'row')})"

    def findings(self) -> Iterable[Finding]:
        if self._target.flagged:
            yield self._target_finding() if self._target.confirmed else self._masked_finding()
        elif self._log:
            yield self._log_finding()
        if self._draft.flagged:
            yield self._draft_finding()
        if self._flat_target.holds:
            yield self._flat_finding("target", self._flat_target)
        if self._flat_draft.holds:
            yield self._flat_finding("draft", self._flat_draft)

    def _target_finding(self) -> Finding:
        place, steps = self._target, self._steps
        widespread = place.flagged >= WIDESPREAD * steps
        ruled_out = [
            RuledOut("the drafter", "the logits that are not finite are the target's own; a draft cannot change them"),
        ]
        if self._plain:
            why = f"{plural(self._plain, 'step')} of plain decoding, without a tree, show the same"
            ruled_out.append(RuledOut("speculation", why))
        return Finding(
            id=self.id,
            kind="target" if widespread else "target.sporadic",
            severity="critical",
            confidence=0.98 if place.confirmed >= 0.9 * place.flagged else 0.9,
            title=f"The target's logits are not finite {_since(place, steps)}: what it emits is no choice of its own.",
            detail=f"Not finite in {place.flagged:,} of {plural(steps, 'step')}. The argmax of such a row is accident, "
            "usually id 0, and a server reports no error.",
            evidence=(*place.evidence, *self._log)[:MAX_EVIDENCE],
            next=_NEXT_TARGET,
            ruled_out=tuple(ruled_out),
            rid=_only(place.rids),
        )

    def _masked_finding(self) -> Finding:
        place = self._target
        return Finding(
            id=self.id,
            kind="target.masked",
            severity="info",
            confidence=0.5,
            title="Some of the target's logits are infinite, but never those of the tokens it chose.",
            detail=f"In {place.flagged:,} of {plural(self._steps, 'step')}. Forbidden tokens (a grammar, bans) are "
            "−inf on purpose and look like this.",
            evidence=tuple(place.evidence),
            next=("Check whether a grammar or a token ban was in force; if none was, look for an overflow.",),
            rid=_only(place.rids),
        )

    def _draft_finding(self) -> Finding:
        place = self._draft
        why = "its own logits were finite in every step: the text is the target's, only speed is lost"
        target = (RuledOut("the target", why),)
        return Finding(
            id=self.id,
            kind="draft" if place.flagged >= WIDESPREAD * self._steps else "draft.sporadic",
            severity="high",
            confidence=0.95,
            title=f"The drafter's logits are not finite {_since(place, self._steps)}: it drafts nothing of use there.",
            detail=f"Some depth has no finite likeliest token in {place.flagged:,} of {plural(self._steps, 'step')}.",
            evidence=tuple(place.evidence),
            next=(
                "Check the drafter's weights for tensors that were never loaded.",
                "Check the dtype the drafter computes in, and that its inputs (hidden states of the target) "
                "are finite.",
            ),
            ruled_out=() if self._target.flagged else target,
            rid=_only(place.rids),
        )

    def _flat_finding(self, place: str, flat: _Flat) -> Finding:
        target = place == "target"
        cause = (
            "NaN logits were replaced by a constant" if target else "its head is not loaded, or its logits are constant"
        )
        return Finding(
            id=self.id,
            kind=f"{place}.flat",
            severity="critical" if target else "high",
            confidence=0.9,
            title=f"The {'target' if target else 'drafter'} finds all tokens equally likely: {cause}.",
            detail=f"In {flat.steps:,} of {plural(flat.seen, 'step')} it equals log V = {self._log_vocab:.3f} nats.",
            evidence=tuple(flat.evidence),
            next=(_SANITISED, *_NEXT_TARGET) if target else _NEXT_FLAT_DRAFT,
            ruled_out=(
                RuledOut(
                    "hard text", "on any text a head that works stays nats away from it; 3 was the least measured"
                ),
            ),
        )

    def _log_finding(self) -> Finding:
        served, flood = self._served, self._flood
        sampler = any(sign in self._at for sign in SAMPLER_SIGNS)
        both = sampler and TREE_SIGN in self._at
        lines = plural(sum(self._at.values()), "line")
        if served and (flood is not None or both):
            return self._sure(lines, sampler)
        return Finding(
            id=self.id,
            kind="log",
            severity="high" if served else "warning",
            confidence=0.75 if served else 0.5,
            title="The log speaks of NaN logits" + (" while the server answers requests." if served else "."),
            detail="No step record shows it. During warm-up with made-up token ids such lines are harmless.",
            evidence=tuple(self._log),
            next=(
                "Check when it was written: before the server was ready, or during a benchmark with made-up ids?",
                "Attach a hook and look at `flags.nonfinite` of the steps under real traffic.",
                *_NEXT_TARGET[1:],
            ),
            ruled_out=(RuledOut("warm-up", "the server had said that it is ready"),) if served else (),
        )

    def _sure(self, lines: str, sampler: bool) -> Finding:
        """Two signs that agree, of a server at work."""
        flood = self._flood
        why = f"id {flood[0]} is committed by the target, and a draft cannot put it there" if flood is not None else (
            "the sampler that finds NaN works on the target's own logits")  # fmt: skip
        also = f" and the target commits id {flood[0]} over and over" if flood is not None else ""
        where = "the sampler" if sampler else "the drafter's tree"
        if sampler and TREE_SIGN in self._at:
            where = "the drafter's tree and the target's sampler"
        return Finding(
            id=self.id,
            kind="log.flood" if flood is not None else "log.both",
            severity="critical",
            confidence=0.9 if flood is not None else 0.8,
            title=f"Logits are NaN while the server answers requests: its log says so of {where}{also}.",
            detail=f"{lines} of the log. An answer with status 200 is no sign of right text here.",
            evidence=(*self._log[: MAX_EVIDENCE - 1], *((flood[1],) if flood is not None else ())),
            next=_NEXT_TARGET,
            ruled_out=(
                RuledOut("the drafter alone", why),
                RuledOut("warm-up", "the server had said that it is ready"),
            ),
        )


def _draft_is_nan(draft: Draft) -> bool:
    """Whether some depth has no finite likeliest token."""
    if draft.logz is not None:
        return None in draft.logz
    return any(row[:1] == [None] for row in draft.logprobs)


def _since(place: _Place, steps: int) -> str:
    return "in every step" if place.flagged == steps else f"from step {place.first} on" if place.flagged > 1 else "once"


def _only(rids: dict[str, None]) -> str | None:
    return next(iter(rids)) if len(rids) == 1 else None
