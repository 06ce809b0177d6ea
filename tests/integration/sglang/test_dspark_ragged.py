"""DSPARK with a ragged verify on a real SGLang: each chain is cut to a length of its own, so no block is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks, models
from tests.integration.sglang.support.cases import Lossless
from tests.integration.sglang.support.running import Run, recorded


@pytest.fixture(scope="module")
def run(tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """After the baseline, so that its engine and this one do not run at once. Half of the drafts are verified."""
    folder = tmp_path_factory.mktemp("ragged")
    draft = models.tiny_dspark_draft(folder / "draft", confidence=True)
    arguments = tiny.arguments(speculative_algorithm="DSPARK", speculative_draft_model_path=str(draft))
    with recorded(arguments, folder, SGLANG_RAGGED_VERIFY_MODE="cap-accept") as run:
        run.engine.scheduler("cap", "0.5")
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    return run.generate(tiny.prompts, tiny.tokens)


class TestText(Lossless):
    pass


def test_recorded_tokens_and_counts_are_the_servers(run: Run, rids: list[str]) -> None:
    checks.tokens_are_the_answers(run, rids)
    checks.counts_are_the_servers(run, rids)


def test_paths_are_told_and_blocks_are_not(run: Run, rids: list[str]) -> None:
    """What lies behind the cut was drafted and not verified, and nobody says where it is."""
    assert run.trace.problems() == []
    steps = [step for rid in rids for step in run.trace.steps(rid)]
    for step in steps:
        assert step.tree is None and step.target is None
        assert step.path == list(range(len(step.path or ()))) and step.bonus is not None
    assert max(checks.accepted(step) for step in steps) == models.DSPARK_BLOCK // 2


def test_no_hook_failed_and_nothing_was_dropped(run: Run, rids: list[str]) -> None:
    checks.no_hook_failed(run)
    checks.books_balance(run)
