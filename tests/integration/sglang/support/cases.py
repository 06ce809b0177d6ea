"""Tests that hold for every algorithm, to be inherited by a module that has the fixtures `run` and `rids`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks
from tests.integration.sglang.support.running import Run


class Records:
    """What the hooks record is what the server did. branching: of some tree; padded, masked: see `trees_are_sound`."""

    branching = True
    padded = False
    masked = True

    def test_recorded_tokens_are_the_answers(self, run: Run, rids: list[str]) -> None:
        checks.tokens_are_the_answers(run, rids)

    def test_steps_and_accepted_drafts_are_counted_as_the_server_does(self, run: Run, rids: list[str]) -> None:
        checks.counts_are_the_servers(run, rids)

    def test_trees_are_sound(self, run: Run, rids: list[str]) -> None:
        checks.trees_are_sound(run, rids, branching=self.branching, padded=self.padded, masked=self.masked)

    def test_some_drafts_are_accepted_below_the_first_depth(self, run: Run, rids: list[str]) -> None:
        """Else the tests above would say little."""
        deepest = max(checks.accepted(step) for rid in rids for step in run.trace.steps(rid))
        assert deepest >= 2, deepest

    def test_no_hook_failed_and_nothing_was_dropped(self, run: Run, rids: list[str]) -> None:
        checks.no_hook_failed(run)
        checks.books_balance(run)


class Lossless:
    """The text is that of plain decoding: hooks and speculation change no token."""

    def test_the_text_is_that_of_plain_decoding(
        self, run: Run, rids: list[str], tiny_baseline: list[dict[str, Any]]
    ) -> None:
        for rid, plain in zip(rids, tiny_baseline, strict=True):
            ours = run.outputs[rid]
            assert ours["output_ids"][: len(plain["output_ids"])] == plain["output_ids"], rid
            if len(ours["output_ids"]) == len(plain["output_ids"]):
                assert ours["text"] == plain["text"], rid


ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "sampling_seed": 7},
)
"""Of the three requests of one batch: one greedy among two that are sampled."""


class Sampled:
    """Requests with a temperature: what is drawn is recorded, and nothing is told that nobody chose."""

    topk = 0
    """DDSCOPE_TOPK of the run."""
    exact = True
    """The greedy one gets the tokens that it gets in a greedy batch. Near-ties of bfloat16 may fall otherwise."""

    @pytest.fixture(scope="class")
    def sampled(self, run: Run, rids: list[str], tiny: Tiny) -> list[str]:
        return run.generate(tiny.prompts, tiny.tokens, "sampled", each=ASKED)

    def test_tokens_that_were_drawn_are_the_answers(self, run: Run, sampled: list[str]) -> None:
        checks.tokens_are_the_answers(run, sampled)
        checks.counts_are_the_servers(run, sampled)
        assert run.trace.problems() == []

    def test_the_greedy_one_is_as_ever_and_the_others_are_not(
        self, run: Run, rids: list[str], sampled: list[str]
    ) -> None:
        """Else nothing would have been drawn."""
        same = [
            run.outputs[a]["output_ids"] == run.outputs[b]["output_ids"] for a, b in zip(rids, sampled, strict=True)
        ]
        assert same[1:] == [False, False] and (same[0] or not self.exact), same

    def test_each_request_tells_how_it_is_sampled(self, run: Run, sampled: list[str]) -> None:
        for rid, asked in zip(sampled, ASKED, strict=True):
            told = run.trace.request(rid).sampling
            assert told is not None, rid
            wanted = {"seed" if name == "sampling_seed" else name: value for name, value in asked.items()}
            assert {name: told.get(name) for name in wanted} == wanted, told
            assert told["max_new_tokens"] == run.outputs[rid]["meta_info"]["completion_tokens"], told
            assert {step.flags and step.flags.sampled for step in run.trace.steps(rid)} == {asked["temperature"] > 0}

    def test_the_path_holds_the_tokens_that_were_drawn(self, run: Run, sampled: list[str]) -> None:
        for step in (step for rid in sampled for step in run.trace.steps(rid)):
            tree = checks.tree_of(step)
            assert step.path is not None and step.emitted is not None, step
            along = [tree.tokens[node - 1] for node in step.path[1:]]
            assert [*along, step.bonus][: len(step.emitted)] == step.emitted, step
            assert all(tree.parents[b - 1] == a for a, b in zip(step.path, step.path[1:], strict=False)), step

    def test_no_choice_is_told_that_the_target_did_not_make(self, run: Run, sampled: list[str]) -> None:
        """Without top-k the choices of a sampled step are unknown; with it the likeliest tokens are told as such."""
        greedy, *drawn = ([*run.trace.steps(rid)] for rid in sampled)
        for step in greedy:
            assert step.target is not None and step.path is not None, step
            last = step.path[-1]
            if step.bonus != step.target.ids[last]:  # drawn from the one likeliest: of two that tie it may be the other
                assert not self.exact and step.target.gap is not None and step.target.gap[last] == 0, step
        steps = [step for part in drawn for step in part]
        if not self.topk:
            assert all(step.target is None for step in steps)
            return
        for step in steps:
            assert step.target is not None and step.target.topk is not None and step.path is not None, step
            for node, ids in zip(step.path, step.target.topk.ids, strict=True):
                assert step.target.gap is not None, step
                assert ids[0] == step.target.ids[node] or step.target.gap[node] == 0, step
        assert any(step.bonus != step.target.ids[step.path[-1]] for step in steps if step.target and step.path)

    def test_no_hook_failed_on_the_way(self, run: Run, sampled: list[str]) -> None:
        checks.no_hook_failed(run)
        checks.books_balance(run)
