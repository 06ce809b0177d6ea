"""An algorithm that ddscope has no code for, registered with SGLang by another plug-in: the universal pair shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks
from tests.integration.sglang.support.running import Run, recorded


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    arguments = tiny.arguments(
        speculative_algorithm="TREE_OF_A_PLUGIN", speculative_num_draft_tokens=6, speculative_ngram_max_bfs_breadth=4
    )
    with recorded(arguments, tmp_path_factory.mktemp("plugin")) as run:
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    return run.generate(tiny.prompts, 2 * tiny.tokens)


def test_no_tap_of_a_family_is_live(run: Run, rids: list[str]) -> None:
    """The accept function that the eagle tap reads is SGLang's common one, so it may serve here, too."""
    live = {name for name, tap in run.trace.taps().items() if tap["live"]}
    assert {"requests", "universal"} <= live <= {"requests", "universal", "eagle"}
    assert {step.algorithm for step in run.trace.steps(rids[0])} == {"tree_of_a_plugin"}


def test_recorded_tokens_are_the_answers(run: Run, rids: list[str]) -> None:
    checks.tokens_are_the_answers(run, rids)


def test_steps_and_accepted_drafts_are_counted_as_the_server_does(run: Run, rids: list[str]) -> None:
    checks.counts_are_the_servers(run, rids)


def test_trees_branch_and_are_sound(run: Run, rids: list[str]) -> None:
    checks.trees_are_sound(run, rids, branching=True, padded=True)


def test_no_hook_failed_and_nothing_was_dropped(run: Run, rids: list[str]) -> None:
    checks.no_hook_failed(run)
    checks.books_balance(run)
