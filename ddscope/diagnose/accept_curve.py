"""`accept.curve`: where acceptance ends tells what is wrong with the drafter.

P(accepted ≥ depth) of a healthy pair falls smoothly (.88 .66 .45 .24 .10). Wrong inputs of the block leave depth 1,
which sees the committed token, and nothing below it (.34 .04 .01); a wrong head, vocabulary or weights leave nothing
at all. Which input is wrong the curve cannot say: layers reversed, one layer tiled and another mask token measured
alike. That is read from facts. Traps: hard text and weak drafters, whose curve is low and smooth; sampled steps, whose
curve at temperature 1 on hard text measured like a fault (.30 .02 0); "9 % of 15 drafts" is 2.4 tokens a step; a tree
that has no node below the accepted one rejects nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddscope.diagnose.accept_low import CHANCE_FLOOR, NEXT, SIGNIFICANT
from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.drafter_inputs import Cause, DrafterInputs
from ddscope.diagnose.requests import Requests, emitted_by
from ddscope.diagnose.stats import binomial_at_most
from ddscope.diagnose.words import curve_text, plural
from ddscope.model import Control, Fact, Finish, Record, Request, Step

DEPTHS = 8  # depths shown and tested
FLOOR_NEXT = 0.2  # P(depth 2 accepted | depth 1 accepted, nodes below); hard greedy text measured 0.5
NAMED_STEPS = 8  # with a named cause the curve has only to agree
NAMED_TAU = 2.0
ENDS = 0.25  # depth 2 per depth 1, at most, to say that acceptance ends there; wrong inputs measured 0 to 0.14
NOTHING = 0.1  # P(depth 1 accepted) below which the curve is called nothing
POOR_TAU, POOR_STEPS = 1.5, 30


class _Curve:
    """How often the path got to each depth, and how often it could have got further."""

    def __init__(self) -> None:
        self.steps = 0
        self._emitted = 0
        self._ended = [0] * (DEPTHS + 1)  # steps by accepted depth, the last one also for all beyond
        self._refused = [0] * (DEPTHS + 1)  # of these, steps with nodes below the accepted one: all refused

    def add(self, accepted: int, emitted: int, refused: bool) -> None:
        """One step. refused: the tree had nodes below the accepted one."""
        self.steps += 1
        self._emitted += emitted
        depth = min(accepted, DEPTHS)
        self._ended[depth] += 1
        self._refused[depth] += refused

    @property
    def tau(self) -> float:
        """Mean emitted per step; there must be one."""
        return self._emitted / self.steps

    def hits(self, depth: int) -> int:
        """Steps that accepted a node at this depth."""
        return sum(self._ended[depth:])

    def could(self, depth: int) -> int:
        """Steps that had a node to accept at this depth, below what was accepted."""
        return self.hits(depth) + self._refused[depth - 1]

    def kept(self, depth: int) -> float:
        """Share accepted at this depth of those that could; 0 where none could."""
        could = self.could(depth)
        return self.hits(depth) / could if could else 0.0

    def shape(self) -> str:
        """`nothing`, `depth_1_only`, or "" when the curve is no evidence of a fault."""
        if binomial_at_most(self.hits(1), self.could(1), CHANCE_FLOOR) < SIGNIFICANT and self.kept(1) < NOTHING:
            return "nothing"
        if binomial_at_most(self.hits(2), self.could(2), FLOOR_NEXT) < SIGNIFICANT:
            return "depth_1_only"
        return ""

    def resembles(self) -> str:
        """The shape without the proof: enough beside a cause that is known. Broad trees have few nodes at depth 2."""
        if self.hits(1) < NOTHING * self.steps:
            return "nothing"
        return "depth_1_only" if self.hits(2) <= ENDS * self.hits(1) else ""

    def text(self) -> str:
        depths = [self.hits(depth) / self.steps for depth in range(1, 6)]
        return f"τ {self.tau:.2f} over {plural(self.steps, 'step')}; P(accepted ≥ 1..5) {curve_text(depths)}."


class AcceptCurve(Detector):
    """Reads the depth curve of all steps, and that of steps that are not known to be sampled."""

    id = "accept.curve"
    wants = (Step, Fact, Request, Finish, Control)

    def __init__(self) -> None:
        self._inputs = DrafterInputs()
        self._requests = Requests()
        self._all = _Curve()
        self._unsampled = _Curve()  # sampling refuses good drafts too: only this curve is evidence by itself
        self._greedy = 0  # greedy steps whose commit could be compared with the target's choices
        self._own = 0  # of these, steps that emitted exactly those
        self._replays = [0, 0]  # replay checks seen, passed
        self._evidence: dict[int, list[Evidence]] = {0: [], 1: []}  # by accepted depth

    def observe(self, record: Record, index: int | None = None) -> None:
        if isinstance(record, Step):
            self._observe_step(record, index)
        elif isinstance(record, Fact):
            self._inputs.observe(record, index)
            if record.name == "replay_check" and isinstance(record.value, dict):
                self._replays[0] += 1
                self._replays[1] += record.value.get("ok") is True
        else:
            self._requests.observe(record)

    def _observe_step(self, step: Step, index: int | None) -> None:
        path, tree = step.path, step.tree
        if not path or tree is None or not tree.tokens:
            return
        accepted = len(path) - 1
        refused = path[-1] in tree.parents
        greedy = self._requests.greedy(step)
        emitted = emitted_by(step)
        self._all.add(accepted, emitted, refused)
        if greedy is not False:
            self._unsampled.add(accepted, emitted, refused)
        if accepted < 2:
            shown = self._evidence[accepted]
            if len(shown) < MAX_EVIDENCE:
                text = f"step {step.step}: {accepted} of {plural(len(tree.tokens), 'drafted node')} accepted"
                shown.append(evidence_of(step, index, text))
        target = step.target
        if greedy and target is not None and step.emitted is not None:
            choices = target.ids
            if max(path) < len(choices) and path[0] == 0:
                self._greedy += 1
                self._own += [choices[node] for node in path][: len(step.emitted)] == step.emitted

    def findings(self) -> Iterable[Finding]:
        if not self._all.steps:
            return
        causes = self._inputs.causes()
        shape = self._unsampled.shape()
        if causes and self._all.steps >= NAMED_STEPS and self._all.tau < NAMED_TAU:
            yield self._named(self._all, shape or self._all.resembles(), causes)
        elif shape == "nothing":
            yield self._nothing(self._unsampled)
        elif shape == "depth_1_only":
            yield self._block_inputs(self._unsampled)
        elif self._all.steps >= POOR_STEPS and self._all.tau < POOR_TAU:
            yield self._poor(self._all)

    def _named(self, curve: _Curve, shape: str, causes: list[Cause]) -> Finding:
        told = [e for cause in causes for e in cause.evidence]
        evidence = tuple(dict.fromkeys([*told, *self._steps_that_show(shape)]))
        return Finding(
            id=self.id,
            kind="+".join(cause.kind for cause in causes),
            severity="high",
            confidence=0.95 if shape else 0.75,
            title=f"{_WORDS.get(shape, 'Acceptance is low')}: {'; '.join(cause.words for cause in causes)}.",
            detail=curve.text(),
            symptom=_symptom(curve),
            evidence=evidence[:MAX_EVIDENCE],
            next=(*(todo for cause in causes for todo in cause.next), "Run again: the curve must fall smoothly then."),
            ruled_out=self._ruled_out(curve, shape),
        )

    def _nothing(self, curve: _Curve) -> Finding:
        return Finding(
            id=self.id,
            kind="nothing",
            severity="high",
            confidence=0.85,
            title="Nothing that is drafted gets accepted: the drafter's head, vocabulary, weights or layers are wrong.",
            detail=curve.text(),
            symptom=_symptom(curve),
            evidence=tuple(self._steps_that_show("nothing")),
            next=NEXT,
            ruled_out=self._ruled_out(curve, "nothing"),
        )

    def _block_inputs(self, curve: _Curve) -> Finding:
        return Finding(
            id=self.id,
            kind="block_inputs",
            severity="high",
            confidence=0.75,
            title="Acceptance ends after depth 1: the inputs of the drafter's block are wrong.",
            detail=curve.text(),
            symptom=_symptom(curve),
            evidence=tuple(self._steps_that_show("depth_1_only")),
            next=_NEXT_INPUTS,
            ruled_out=self._ruled_out(curve, "depth_1_only"),
        )

    def _poor(self, curve: _Curve) -> Finding:
        ends = curve.resembles() == "depth_1_only"
        return Finding(
            id=self.id,
            kind="weak",
            severity="info",
            confidence=0.5,
            title="Acceptance is low and ends near depth 1: hard or sampled text does that, and so do wrong inputs."
            if ends
            else "Acceptance is low but falls smoothly: a weak drafter or hard text, no sign of a fault.",
            detail=curve.text(),
            symptom=_symptom(curve),
            evidence=tuple(self._steps_that_show("nothing")),
            next=(
                "Compare the same prompts with the drafter's published numbers: template and thinking mode matter.",
                *(_NEXT_INPUTS if ends else ()),
            ),
            ruled_out=self._ruled_out(curve, ""),
        )

    def _steps_that_show(self, shape: str) -> list[Evidence]:
        return self._evidence[0 if shape == "nothing" else 1] or self._evidence[0]

    def _ruled_out(self, curve: _Curve, shape: str) -> tuple[RuledOut, ...]:
        out = []
        if self._greedy and self._own == self._greedy:
            why = f"what was emitted is the target's own choice in all {plural(self._greedy, 'greedy step')}"
            out.append(RuledOut("wrong text", why))
        if self._replays[0] and self._replays[0] == self._replays[1]:
            why = f"{plural(self._replays[0], 'replay check')} found the logits of the tree equal to a plain pass"
            out.append(RuledOut("mask, positions and cache of the target", why))
        if shape == "depth_1_only":
            why = f"{plural(curve.could(2), 'step')} had nodes below the accepted one; {curve.hits(2)} took one"
            out.append(RuledOut("a small budget", why))
            why = f"they keep about half from depth to depth; here depth 2 keeps {curve.kept(2):.0%}"
            out.append(RuledOut("hard text or a weak drafter", why))
        if self._inputs.agrees():
            why = "in force as the drafter's checkpoint says"
            out.append(RuledOut("another mask token or other target layers", why))
        return tuple(out)


def _symptom(curve: _Curve) -> str:
    """What the curve says without a cause."""
    words = _WORDS.get(curve.shape() or curve.resembles(), "Acceptance is low")
    return f"{words} ({curve.text().rstrip('.')})."


_WORDS = {"nothing": "Nothing that is drafted gets accepted", "depth_1_only": "Acceptance ends after depth 1"}

_NEXT_INPUTS = (
    "Mask token: compare `mask_token_id` in force with the drafter's own configuration; slot 0 holds the "
    "last committed token.",
    "Target layers: compare `target_layer_ids`, their order included, and check that the captured layers differ.",
    "Positions and the attention mask inside the block: rows of a block see each other and the whole context.",
    "Features: rows of accepted nodes only, the root included, the bonus excluded.",
)
