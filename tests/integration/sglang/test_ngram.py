"""NGRAM on a real SGLang: what the hooks record is what the server did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks
from tests.integration.sglang.support.running import Run, recorded


def ngram(tiny: Tiny) -> dict[str, Any]:
    """Six nodes with the root, from what the requests themselves have said."""
    return tiny.arguments(
        speculative_algorithm="NGRAM", speculative_num_draft_tokens=6, speculative_ngram_max_bfs_breadth=4
    )


@pytest.fixture(scope="module")
def run(tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """After the baseline, so that its engine and this one do not run at once."""
    with recorded(ngram(tiny), tmp_path_factory.mktemp("ngram")) as run:
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    # Twice as many tokens as elsewhere: the loops in the text have to be there before they can be drafted.
    return run.generate(tiny.prompts, 2 * tiny.tokens)


def test_recorded_tokens_are_the_answers(run: Run, rids: list[str]) -> None:
    checks.tokens_are_the_answers(run, rids)


def test_the_text_is_that_of_plain_decoding(run: Run, rids: list[str], tiny_baseline: list[dict[str, Any]]) -> None:
    for rid, plain in zip(rids, tiny_baseline, strict=True):
        assert run.outputs[rid]["output_ids"][: len(plain["output_ids"])] == plain["output_ids"]


def test_steps_and_accepted_drafts_are_counted_as_the_server_does(run: Run, rids: list[str]) -> None:
    checks.counts_are_the_servers(run, rids)


def test_trees_are_sound(run: Run, rids: list[str]) -> None:
    checks.trees_are_sound(run, rids, branching=True)


def test_some_drafts_are_accepted_below_the_first_depth(run: Run, rids: list[str]) -> None:
    """Else the tests above would say little."""
    assert max(checks.accepted(step) for rid in rids for step in run.trace.steps(rid)) >= 2


def test_no_hook_failed_and_nothing_was_dropped(run: Run, rids: list[str]) -> None:
    checks.no_hook_failed(run)
    checks.books_balance(run)
