"""DSPARK on a real SGLang: a block drafted from the token before by a Markov head, and really sampled on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks, models
from tests.integration.sglang.support.cases import Lossless, Records, Sampled
from tests.integration.sglang.support.running import Run, recorded


@pytest.fixture(scope="module")
def run(tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """After the baseline, so that its engine and this one do not run at once."""
    folder = tmp_path_factory.mktemp("dspark")
    draft = models.tiny_dspark_draft(folder / "draft")
    arguments = tiny.arguments(speculative_algorithm="DSPARK", speculative_draft_model_path=str(draft))
    with recorded(arguments, folder) as run:
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    return run.generate(tiny.prompts, tiny.tokens)


class TestRecords(Records, Lossless):
    branching = False


class TestSampled(Sampled):
    """The accept is SGLang's own: its rejection sampling is in torch where there is no CUDA."""


def test_its_own_tap_is_live_and_no_other_familys(run: Run, rids: list[str]) -> None:
    assert {name for name, tap in run.trace.taps().items() if tap["live"]} == {"requests", "universal", "dspark"}


def test_blocks_are_chains_of_the_drafters_length(run: Run, rids: list[str]) -> None:
    for step in (step for rid in rids for step in run.trace.steps(rid)):
        tree = checks.tree_of(step)
        assert tree.parents == list(range(models.DSPARK_BLOCK)) and tree.budget == models.DSPARK_BLOCK
        assert step.algorithm == "dspark"


def test_what_enters_the_drafter_is_what_its_weights_expect(run: Run, rids: list[str]) -> None:
    (features,) = (tensor for tensor in run.trace.tensors() if tensor.name == "drafter.target_hidden")
    assert features.owner == "DSparkDraftModel.fc" and features.ok is not False and features.expect is not None
    assert features.shape[-1] == features.expect[-1] == len(models.DSPARK_LAYERS) * models.HIDDEN


def test_the_drafters_configuration_and_what_is_in_force_are_told(run: Run, rids: list[str]) -> None:
    said, used = run.trace.facts("drafter.checkpoint")[-1], run.trace.facts("drafter.in_force")[-1]
    for config in (said, used):
        assert config["target_layer_ids"] == models.DSPARK_LAYERS
        assert config["block_size"] == models.DSPARK_BLOCK
        assert config["hidden_size"] == models.HIDDEN
        assert config["num_target_layers"] == models.LAYERS
    told = run.trace.facts("draft.features")[-1]
    assert told["layers"] == told["distinct"] == len(models.DSPARK_LAYERS)
