"""An algorithm that ddscope has no code for, registered with SGLang by another plug-in: the universal pair shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.cases import Lossless, Records
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


class TestRecords(Records, Lossless):
    padded = True
