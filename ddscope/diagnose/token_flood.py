"""`output.token_flood`: the output is one token over and over, or ids that print as nothing or do not exist.

The id varies with the tokenizer ("!" is id 0 in some, another's id 0 prints as nothing), so the rule counts ids,
never characters. Traps: a model may rightly repeat a token for a while (rules of a table, "====="), and a prompt may
ask for it. A flood from the very first token on is found when it is eight tokens short; where nothing else speaks for
a fault, it is no more than a warning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, Severity, evidence_of
from ddscope.diagnose.requests import MAX_OPEN, RequestInfo, Requests
from ddscope.diagnose.words import listed, plural
from ddscope.model import Finish, Header, Record, Request, Step, Text, Tokens, text_bytes

WINDOW = 64  # tokens
SHARE = 0.9  # of the window; ruled tables stay below 0.7
FROM_START = 8  # tokens, unbroken from the first one of the request
EMPTY = 16  # tokens in a row whose text is known to be nothing
IN_PROMPT = 4  # times in the prompt: then the repetition was probably asked for
MAX_KEPT = 32  # flooded requests kept to describe a flood


@dataclass(slots=True)
class _Output:
    """The emitted ids of one request."""

    rid: str
    info: RequestInfo | None
    from_start: bool
    next_step: int
    window: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    counts: dict[int, int] = field(default_factory=dict)
    emitted: int = 0
    unbroken: bool = False  # nothing but the first id so far
    silent: int = 0  # tokens in a row that print as nothing
    steps: int = 0
    drafted: int = 0  # steps that had something drafted
    accepted: int = 0
    own: int = 0  # steps whose last token is what the target chose there
    nonfinite: int = 0  # steps with non-finite target logits
    nonfinite_run: int = 0  # the last steps in a row
    of_nan: bool = False  # when the flood was found, they were
    token: int = -1  # of the flood
    windowed: bool = False  # the flood filled a window
    evidence: Evidence | None = None

    @property
    def holds(self) -> bool:
        """A run from the start that something else ended is a rule or a greeting, not a flood."""
        return self.windowed or self.unbroken

    @property
    def explained(self) -> bool:
        """The flood came out of logits that were not finite."""
        return self.of_nan or self.nonfinite * 2 >= self.steps


class TokenFlood(Detector):
    """Counts ids over a window and from the first token on, per request."""

    id = "output.token_flood"
    wants = (Step, Request, Finish, Header, Tokens)

    def __init__(self) -> None:
        self._vocab: int | None = None
        self._silent: set[int] = set()  # ids that print as nothing
        self._texts: dict[int, Text] = {}
        self._requests = Requests()
        self._outputs: dict[tuple[str, str], _Output] = {}
        self._flooded: dict[str, list[_Output]] = {}  # by kind
        self._more: dict[str, int] = {}  # flooded requests beyond those kept

    def observe(self, record: Record, index: int | None = None) -> None:
        if isinstance(record, Step):
            self._observe_step(record, index)
        elif isinstance(record, Tokens):
            for token, text in zip(record.ids, record.text, strict=False):
                self._texts[token] = text
                if text == "" or (not isinstance(text, str) and not text_bytes(text)):
                    self._silent.add(token)
        elif isinstance(record, Header):
            if record.engine is not None or record.model is not None:  # the doctor's header knows of no model
                self._vocab = record.model.vocab_size if record.model is not None else None
        else:
            self._requests.observe(record)
            if isinstance(record, Request | Finish):
                self._outputs.pop((record.src, record.rid), None)

    def _observe_step(self, step: Step, index: int | None) -> None:
        output = self._output(step)
        output.next_step = step.step + 1
        output.steps += 1
        path, target, emitted, flags = step.path, step.target, step.emitted or (), step.flags
        if path:
            if step.tree is not None and step.tree.tokens:
                output.drafted += 1
                output.accepted += len(path) - 1
            if target is not None and emitted and 0 <= path[-1] < len(target.ids):
                output.own += target.ids[path[-1]] == emitted[-1]
        if flags is not None and flags.nonfinite and flags.nonfinite.get("target"):
            output.nonfinite += 1
            output.nonfinite_run += 1
        else:
            output.nonfinite_run = 0
        if output.emitted == 0 and output.from_start and step.root is not None:
            self._take(output, step.root, step, index)
        for token in emitted:
            self._take(output, token, step, index)

    def _output(self, step: Step) -> _Output:
        key = (step.src, step.rid)
        output = self._outputs.get(key)
        if output is None or output.next_step != step.step:
            # A hole in the steps breaks windows and runs: what was in between is not known.
            info = self._requests.get(step)
            at_start = step.step == 0 if info is None or step.base is None else step.base == info.prompt_len
            while len(self._outputs) >= MAX_OPEN:
                del self._outputs[next(iter(self._outputs))]
            output = self._outputs[key] = _Output(step.rid, info, at_start, step.step)
        return output

    def _take(self, output: _Output, token: int, step: Step, index: int | None) -> None:
        """One emitted token: the window, the run from the start, and whether one of the rules holds now."""
        window, counts = output.window, output.counts
        if output.emitted == 0:
            output.unbroken = output.from_start
        elif output.unbroken and token != window[-1]:
            output.unbroken = False
        output.emitted += 1
        full = len(window) == WINDOW
        if full:
            oldest = window[0]
            counts[oldest] -= 1
            if not counts[oldest]:
                del counts[oldest]
        window.append(token)
        count = counts.get(token, 0) + 1
        counts[token] = count
        output.silent = output.silent + 1 if token in self._silent else 0
        if full and count >= SHARE * WINDOW:
            output.windowed = True
            self._flood("one_id", output, token, step, index)
        elif output.unbroken and output.emitted >= FROM_START:
            self._flood("one_id", output, token, step, index)
        elif token < 0 or (self._vocab is not None and token >= self._vocab):
            output.windowed = True
            self._flood("outside_vocabulary", output, token, step, index)
        elif output.silent >= EMPTY:
            output.windowed = True
            self._flood("empty_text", output, token, step, index)

    def _flood(self, kind: str, output: _Output, token: int, step: Step, index: int | None) -> None:
        if output.evidence is not None:
            return  # said already; the counts of the request go on by themselves
        text = f"step {step.step}: after {plural(output.emitted, 'token')} the output is still {self._name(token)}"
        if kind == "outside_vocabulary":
            text = f"step {step.step}: emitted id {token:,}; the vocabulary has {self._vocab or 0:,}"
        elif kind == "empty_text":
            text = f"step {step.step}: {plural(output.silent, 'token')} in a row print as nothing"
        output.token = token
        output.of_nan = output.nonfinite_run >= min(output.steps, FROM_START)
        output.evidence = evidence_of(step, index, text)
        kept = [o for o in self._flooded.get(kind, ()) if o.holds]
        if len(kept) < MAX_KEPT:
            kept.append(output)
        else:
            self._more[kind] = self._more.get(kind, 0) + 1
        self._flooded[kind] = kept

    def _name(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            return f"id {token}"
        shown = text_bytes(text).decode("utf-8", "replace")
        return f"id {token} ({shown!r})" if shown else f"id {token} (prints as nothing)"

    def findings(self) -> Iterable[Finding]:
        for kind, outputs in self._flooded.items():
            holding = [o for o in outputs if o.holds]
            explained = [o for o in holding if o.explained]
            open_ = [o for o in holding if not o.explained]
            if explained:
                yield self._finding(kind, explained, ".nonfinite")
            if open_:
                yield self._finding(kind, open_, "")

    def _finding(self, kind: str, outputs: list[_Output], suffix: str) -> Finding:
        count = len(outputs) + self._more.get(kind, 0)
        severity, confidence, notes = self._weigh(outputs, kind)
        emitted = sum(o.emitted for o in outputs)
        tokens = sorted({o.token for o in outputs})
        what = {
            "one_id": "The output is one token over and over: " + listed((self._name(t) for t in tokens), 3) + ".",
            "outside_vocabulary": f"Ids are emitted that the vocabulary does not have: {listed(tokens, 3)}.",
            "empty_text": "Tokens are emitted that print as nothing.",
        }[kind]
        return Finding(
            id=self.id,
            kind=kind + suffix,
            severity=severity,
            confidence=confidence,
            title=what,
            detail=f"{plural(count, 'request')}, {plural(emitted, 'token')} emitted. {' '.join(notes)}".rstrip(),
            evidence=tuple(o.evidence for o in outputs if o.evidence is not None)[:MAX_EVIDENCE],
            next=_NEXT_OUTSIDE if kind == "outside_vocabulary" else _NEXT,
            ruled_out=_ruled_out(outputs),
            rid=outputs[0].rid if count == 1 else None,
        )

    def _weigh(self, outputs: list[_Output], kind: str) -> tuple[Severity, float, list[str]]:
        """How sure it is that nobody asked for this. Signs for a fault and against one, each said in words."""
        if kind == "outside_vocabulary":
            return "high", 0.95, []
        confidence, notes, signs = 0.6, [], 0
        if any(o.windowed for o in outputs):
            confidence += 0.1
        if any(o.unbroken for o in outputs):
            confidence += 0.1
            notes.append("Unbroken from the first token on.")
        if any(o.nonfinite for o in outputs):
            signs += 1
            notes.append("The target's logits were not finite.")
        drafted, accepted = sum(o.drafted for o in outputs), sum(o.accepted for o in outputs)
        if drafted >= 5 and accepted == 0:
            signs += 1
            notes.append(f"No drafted token was accepted in {plural(drafted, 'step')}; a repetition is easy to draft.")
        if kind == "one_id" and any(self._is_special(o.token) for o in outputs):
            signs += 1
            notes.append("It is no text: a special token, or one that prints as nothing.")
        if len({o.rid for o in outputs}) > 1 and len({o.token for o in outputs}) == 1:
            signs += 1
            notes.append("Several requests show the same id.")
        if all(_in_prompt(o) for o in outputs):
            confidence -= 0.3
            notes.append("The prompt contains it several times, so the repetition may have been asked for.")
        confidence = min(0.97, confidence + 0.1 * signs)
        return ("high" if signs and confidence >= 0.6 else "warning"), confidence, notes

    def _is_special(self, token: int) -> bool:
        text = self._texts.get(token)
        if text is None:
            return False
        shown = text_bytes(text)
        return not shown or (shown.startswith(b"<|") and shown.endswith(b"|>"))


_NEXT = (
    "Look at the target's log-probabilities at these steps: null or all equal means its logits are broken, "
    "sharp ones mean "
    "that it really wants this token.",
    "Run the same prompt by plain decoding: the same flood there clears speculation.",
    "Turn on the check for NaN logits in the server; by default it logs nothing.",
    "Flush the prefix cache once and try again: if that helps, a cached prefix is damaged.",
)
_NEXT_OUTSIDE = (
    "Flush the prefix cache once and try again: if that helps, a cached prefix is damaged, not the weights.",
    "Compare the tokenizer's size with the rows of the head: rows of padding must never be chosen.",
    "Check that the draft and the target share a tokenizer.",
)


def _ruled_out(outputs: list[_Output]) -> tuple[RuledOut, ...]:
    steps, own = sum(o.steps for o in outputs), sum(o.own for o in outputs)
    if steps and own == steps:
        why = f"in all {plural(steps, 'step')} the token is the target's own choice; the drafter only proposes"
        return (RuledOut("the drafter", why),)
    return ()


def _in_prompt(output: _Output) -> bool:
    ids = output.info.prompt_ids if output.info is not None else None
    return ids is not None and ids.count(output.token) >= IN_PROMPT
