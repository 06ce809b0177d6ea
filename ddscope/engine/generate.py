"""One request, decoded step by step: draft, build, mask, verify, walk; then commit. A caller may stop in between.

Plain decoding, DFlash's chain and DDTree are one loop here: a chain is a tree with one branch, plain decoding a tree of
no nodes. Sources: DFlash (arXiv 2602.06036), DDTree (arXiv 2604.12989, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from time import perf_counter_ns

import torch

from ddscope.engine.budget import AUTO, AutoBudget, Choice
from ddscope.engine.calibrate import calibrate
from ddscope.engine.drafting import Drafting, finite
from ddscope.engine.errors import EngineError
from ddscope.engine.judge import Judge
from ddscope.engine.pair import Pair, check_prompt
from ddscope.engine.replay import ReplayCheck, replay_check
from ddscope.engine.step import DraftStep, Params, StepResult, tensor_fields
from ddscope_kernels import DraftTree, ancestor_mask, build_tree, causal_rows, chain_tree, compact_kv, visibility, walk

__all__ = ["Generator", "Params", "StepResult"]


FIRST_ROWS = 1024
"""Output tokens that the caches have room for at first; they grow when a text gets longer."""


class Generator:
    """Decodes one prompt. start(), then draft_and_verify() and commit() in turn until `done`.

    output:  emitted token ids, the prefill's included.
    done:    stop or length once the text has ended, else None.
    pending: the step that was verified and waits for its commit, else None.
    params:  may be replaced between steps.
    auto:    the policy behind a budget of auto; made by measuring, a second or two, where it is needed and not given.
    """

    def __init__(
        self,
        pair: Pair,
        prompt_ids: Sequence[int],
        params: Params | None = None,
        auto: AutoBudget | None = None,
    ) -> None:
        """Raises EngineError when the prompt is empty, too long, or has ids outside the vocabulary."""
        check_prompt(pair, prompt_ids)
        self.pair = pair
        self.prompt = list(prompt_ids)
        self.params = params if params is not None else pair.default_params()
        self.output: list[int] = []
        self.done: str | None = None
        self.pending: StepResult | None = None
        self.auto = auto
        rows = len(self.prompt) + min(self.params.max_new_tokens, FIRST_ROWS) + self._most() + 1
        self._cache = pair.target.new_cache(rows)
        self._drafting = Drafting(pair, rows)
        self._judge = Judge()

    @torch.inference_mode()
    def start(self) -> int:
        """Read the prompt; return the first token of the output."""
        if self.output:
            raise EngineError("The request has already been started.")
        out = self.pair.target.read(self.prompt, self._cache, self._drafting.capture)
        self._drafting.add(out.hidden)
        token = int(self._judge.choose(out.logits, [len(self.prompt)], self.params)[0])
        self.output, self.done = self._cut([token])
        return token

    def feature_layers(self) -> tuple[int, int]:
        """How many captured layers enter the drafter, and how many differ over the prompt; (0, 0) before start."""
        return self._drafting.layers, self._drafting.distinct

    @torch.inference_mode()
    def draft_and_verify(self) -> StepResult:
        """Everything of a step but the commit. Again before the commit, it does the same step again.

        Raises DraftShapeError when the features do not fit the drafter, EngineError before start or after the end.
        """
        if not self.output or self.done:
            raise EngineError("The request has ended." if self.done else "The request has not been started.")
        base, root, params = self._cache.length, self.output[-1], self.params
        most = self._most()
        clock = _Clock()
        drafted = self._drafting.draft(root, params, most)
        clock.lap("draft")
        tree, budget, choice = self._tree(drafted.marginals, most)
        clock.lap("build")
        positions, rows = self._positions(tree, base), self._rows(tree)
        bias = None
        if len(tree):
            sees = ancestor_mask(tree.parents) if rows is tree.rows else visibility(rows)
            bias = self.pair.target.bias(sees)
        clock.lap("mask")
        out = self.pair.target.forward([root, *tree.tokens], positions, self._cache, bias, self._drafting.capture)
        target, logz, nonfinite = self._judge.judge(out.logits, [base + depth + 1 for depth in tree.depths], params)
        path, bonus = walk(tree.tokens, tree.parents, target.ids)
        self._judge.add_topk(target, out.logits, logz, path)
        clock.lap("verify")
        emitted, reason = self._cut([*(tree.tokens[node - 1] for node in path[1:]), bonus])
        tensors = drafted.tensors
        if bias is not None:
            tensors.append(tensor_fields("target.block_mask", bias, [None, None], "target"))
        self.pending = StepResult(
            algorithm=params.algorithm,
            base=base,
            root=root,
            budget=budget,
            draft=drafted.marginals,
            tokens=tree.tokens,
            parents=tree.parents,
            depths=tree.depths,
            logprobs=finite(tree.logprobs),
            scores=tree.scores,
            positions=positions,
            mask=rows,
            target=target,
            path=path,
            bonus=bonus,
            emitted=emitted,
            reason=reason,
            truncated=len(emitted) < len(path),
            times=clock.laps,
            nonfinite={"draft": drafted.nonfinite, "target": nonfinite},
            tensors=tensors,
            logits=out.logits,
            hidden=out.hidden,
            choice=choice,
        )
        return self.pending

    @torch.inference_mode()
    def commit(self, result: StepResult) -> list[int]:
        """Keep the accepted path; return the emitted tokens. Raises EngineError for any but the pending step."""
        if result is not self.pending:
            raise EngineError("Only the step that was verified last can be committed.")
        began = perf_counter_ns()
        self.pending = None
        if "no-compaction" not in self.pair.faults:
            compact_kv(self._cache.data, result.base, result.path)
        self._cache.length = result.base + len(result.path)
        self._drafting.add(result.hidden, result.path)
        self._judge.forget(before=self._cache.length + 1)
        self.output += result.emitted
        self.done = result.reason
        result.times["commit"] = (perf_counter_ns() - began) // 1000
        if result.choice is not None and self.auto is not None:
            self.auto.observe(result.depths, result.scores, result.accepted, result.times)
        return result.emitted

    @torch.inference_mode()
    def replay_check(self, result: StepResult) -> ReplayCheck:
        """The deepest path of a step once more as a plain causal pass, before or after its commit."""
        return replay_check(self.pair.target, [*self.prompt, *self.output][: result.base + 1], result)

    def settle(self) -> None:
        """Nothing is on its way: every step is done when it is told."""

    def close(self) -> None:
        """The request needs no more steps."""

    def _most(self) -> int:
        """Nodes that a tree of the next step may have."""
        if self.params.budget != AUTO:
            return self.params.budget
        if self.params.algorithm != "ddtree":
            return 0
        if self.auto is None:
            self.auto = calibrate(self.pair, self.params)
        return self.auto.most

    def _tree(self, marginals: DraftStep | None, most: int) -> tuple[DraftTree, int, Choice | None]:
        """The tree of this step, how many nodes it was allowed, and why where that was chosen here."""
        if marginals is None:
            return DraftTree(), 0, None
        nan = float("nan")
        probs = [[nan if value is None else value for value in row] for row in marginals.logprobs]
        if self.params.algorithm == "dflash":
            return chain_tree(probs, marginals.ids, len(probs)), len(probs), None
        cut = self.params.cut
        tree = build_tree(probs, marginals.ids, most, log(cut) if cut else -inf)
        if self.params.budget != AUTO or self.auto is None:
            return tree, most, None
        choice = self.auto.choose(tree, self._room())
        return tree.first(choice.budget), choice.budget, choice

    def _positions(self, tree: DraftTree, base: int) -> list[int]:
        """[n + 1] what the target is given; sound: base + depth."""
        faults = self.pair.faults
        if "verify-position" in faults:
            return [base + depth + 1 for depth in tree.depths]
        if "flat-positions" in faults:
            return [base + node for node in range(len(tree) + 1)]
        return [base + depth for depth in tree.depths]

    def _rows(self, tree: DraftTree) -> list[int]:
        """[n + 1] rows of the mask the target is given; sound: the ancestor closure."""
        if "causal-mask" in self.pair.faults:
            return causal_rows(len(tree) + 1)
        if "sibling-leak" in self.pair.faults:
            return _with_siblings(tree)
        return tree.rows

    def _room(self) -> int:
        """Tokens that the limits leave."""
        limit = min(self.params.max_new_tokens, self.pair.target.config.stack.max_positions - len(self.prompt))
        return limit - len(self.output)

    def _cut(self, tokens: list[int]) -> tuple[list[int], str | None]:
        """Tokens that may be emitted next: up to an end of text, and no more than the limits leave. And why it ends."""
        room = self._room()
        for place, token in enumerate(tokens[:room]):
            if token in self.pair.eos_ids:
                return tokens[: place + 1], "stop"
        return tokens[:room], "length" if len(tokens) >= room else None


class _Clock:
    """Wall time between laps, in µs by stage."""

    def __init__(self) -> None:
        self.laps: dict[str, int] = {}
        self._last = perf_counter_ns()

    def lap(self, stage: str) -> None:
        now = perf_counter_ns()
        self.laps[stage] = (now - self._last) // 1000
        self._last = now


def _with_siblings(tree: DraftTree) -> list[int]:
    """The ancestor closure plus, for every node, its siblings."""
    groups: dict[int, int] = {}
    for node, parent in enumerate(tree.parents, start=1):
        groups[parent] = groups.get(parent, 0) | 1 << node
    return [tree.rows[0], *(row | groups[parent] for row, parent in zip(tree.rows[1:], tree.parents, strict=True))]
