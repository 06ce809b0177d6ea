"""NGRAM on a real SGLang: what the hooks record is what the server did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.cases import Lossless, Records
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


class TestRecords(Records, Lossless):
    pass
