"""One request of a `Decoder`, as the callers of `ddscope.engine.generate.Generator` know one: step by step.

The device is a step ahead: a caller that stops before a commit stops the text, not the step behind it. What a changed
parameter changes begins behind the steps that were launched before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from math import nan

from ddscope.engine.budget import AUTO, Choice
from ddscope.engine.device.decoder import Decoder
from ddscope.engine.device.ladder import LadderBudget
from ddscope.engine.device.plan import Plan
from ddscope.engine.device.reading import Told
from ddscope.engine.errors import EngineError
from ddscope.engine.replay import ReplayCheck, replay_check
from ddscope.engine.step import DraftStep, Params, StepResult
from ddscope_kernels import DraftTree, build_tree

AHEAD = 2
"""Steps that are launched before the oldest is read: one is read while one is computed."""


class DeviceGenerator:
    """Decodes one prompt in place `place` of a decoder; attributes and methods are those of Generator."""

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        params: Params,
        auto: LadderBudget | None = None,
        place: int = 0,
    ) -> None:
        """Raises EngineError when the prompt is empty, too long, or has ids outside the vocabulary."""
        decoder.check_prompt(prompt_ids)
        self.pair = decoder.pair
        self.prompt = list(prompt_ids)
        self.params = params
        self.output: list[int] = []
        self.done: str | None = None
        self.pending: StepResult | None = None
        self.auto = auto
        self._decoder, self._place = decoder, place
        self._in_force = params
        self._choices: deque[Choice | None] = deque()
        self._read: deque[Told] = deque()  # steps that were collected before they were asked for
        self._next: Choice | None = None

    def start(self) -> int:
        """Read the prompt; return the first token of the output."""
        if self.output:
            raise EngineError("The request has already been started.")
        self._in_force = self.params
        token, self.done = self._decoder.load(
            self._place,
            self.prompt,
            max_new_tokens=self.params.max_new_tokens,
            temperature=self.params.temperature,
            seed=self.params.seed,
        )
        self.output.append(token)
        return token

    def feature_layers(self) -> tuple[int, int]:
        """How many captured layers enter the drafter, and how many differ over the prompt."""
        return self._decoder.feature_layers

    def draft_and_verify(self) -> StepResult:
        """The next step, which the device has also committed by now. Raises EngineError before start, after the end."""
        if not self.output or self.done:
            raise EngineError("The request has ended." if self.done else "The request has not been started.")
        if self.pending is not None:
            return self.pending
        decoder = self._decoder
        if self.params != self._in_force and not self._choices:
            self._change()
        settled = self.params == self._in_force
        while not self._choices or (settled and decoder.waiting < AHEAD):
            choice = self._choose()
            budget = choice.budget if choice is not None else None
            decoder.launch(Plan.of(self._in_force, self.pair.drafter.config, budget=budget))
            self._choices.append(choice)
        told = self._read.popleft() if self._read else decoder.collect()
        choice = self._choices.popleft()
        result = told.result(self._place, told.plan.budget)
        result.choice = choice
        self._learn(told, result)
        self.pending = result
        return result

    def commit(self, result: StepResult) -> list[int]:
        """Append what the step emitted, and return it. Raises EngineError for any but the pending step."""
        if result is not self.pending:
            raise EngineError("Only the step that was verified last can be committed.")
        self.pending = None
        self.output += result.emitted
        self.done = result.reason
        return result.emitted

    def replay_check(self, result: StepResult) -> ReplayCheck:
        """The deepest path of a step once more as a plain causal pass, before or after its commit."""
        self.settle()
        return replay_check(self.pair.target, [*self.prompt, *self.output][: result.base + 1], result)

    def settle(self) -> None:
        """Wait for the steps on their way, so that the device may do something else; they are told when asked for."""
        while self._decoder.waiting:
            self._read.append(self._decoder.collect().copied())
        self._decoder.forget_time()

    def close(self) -> None:
        """The request needs no more steps: those on their way are waited for, and its place is free again."""
        self._decoder.end(self._place)
        while self._decoder.waiting:
            self._decoder.collect()
        self._choices.clear()
        self._read.clear()

    def _change(self) -> None:
        """Other parameters are in force from the next launch on."""
        old, new = self._in_force, self.params
        self._in_force = new
        if (old.max_new_tokens, old.temperature, old.seed) != (new.max_new_tokens, new.temperature, new.seed):
            limit = min(new.max_new_tokens, self.pair.target.config.stack.max_positions - len(self.prompt))
            self._decoder.change(
                self._place,
                room=max(1, limit - len(self.output)),
                base=len(self.prompt) + len(self.output) - 1,
                temperature=new.temperature,
                seed=new.seed,
            )

    def _choose(self) -> Choice | None:
        if self._in_force.budget != AUTO or self.auto is None:
            return None
        return self._next or self.auto.start()

    def _learn(self, told: Told, result: StepResult) -> None:
        """Where the budget is auto: the size of the step that is launched next."""
        if self.auto is None or self._in_force.budget != AUTO or result.draft is None:
            return
        if result.algorithm == "ddtree":
            self.auto.observe_step(result.depths, result.scores, result.accepted, told.us)
        room = self._in_force.max_new_tokens - len(self.output) - len(result.emitted)
        self._next = self.auto.choose_grown(partial(_tree, result.draft), max(1, room))


def _tree(draft: DraftStep, nodes: int) -> DraftTree:
    """The tree of so many nodes that these marginals make."""
    probs = [[nan if value is None else value for value in row] for row in draft.logprobs]
    return build_tree(probs, draft.ids, nodes)


def fits(decoder: Decoder, prompt_ids: Sequence[int], params: Params) -> bool:
    """Whether a request with these parameters has room in a decoder."""
    budget = params.budget if isinstance(params.budget, int) else 0
    return budget <= decoder.most and decoder.rows_needed(len(prompt_ids), params.max_new_tokens) <= decoder.rows
