"""EAGLE3 with branching trees on a real SGLang: what the hooks record is what the server did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import models
from tests.integration.sglang.support.cases import Lossless, Records, Sampled
from tests.integration.sglang.support.running import Run, recorded

TOPK = 3


@pytest.fixture(scope="module")
def run(tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """After the baseline, so that its engine and this one do not run at once."""
    with recorded(tiny.tree("EAGLE3", tiny.eagle3), tmp_path_factory.mktemp("eagle3"), DDSCOPE_TOPK=str(TOPK)) as run:
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    return run.generate(tiny.prompts, tiny.tokens)


class TestRecords(Records, Lossless):
    pass


class TestSampled(Sampled):
    topk = TOPK


def test_the_targets_likeliest_tokens_are_told_on_the_path(run: Run, rids: list[str]) -> None:
    for step in (step for rid in rids for step in run.trace.steps(rid)):
        assert step.target is not None and step.target.topk is not None and step.path is not None
        assert step.target.logprobs is not None and step.target.gap is not None
        for node, ids, logprobs in zip(step.path, step.target.topk.ids, step.target.topk.logprobs, strict=True):
            assert len(ids) == len(set(ids)) == TOPK
            assert ids[0] == step.target.ids[node]
            values = [value for value in logprobs if value is not None]
            assert values == sorted(values, reverse=True) and len(values) == TOPK and values[0] < 0
            assert values[0] == step.target.logprobs[node]
            gap = step.target.gap[node]
            assert gap is not None and abs(values[0] - values[1] - gap) < 1e-4


def test_what_enters_the_drafter_is_what_its_weights_expect(run: Run, rids: list[str]) -> None:
    (features,) = (tensor for tensor in run.trace.tensors() if tensor.name == "drafter.target_hidden")
    assert features.ok is not False and features.expect is not None
    assert features.shape[-1] == features.expect[-1] == 3 * models.HIDDEN
    assert run.trace.facts("drafter.in_force")[-1]["target_layer_ids"] == models.EAGLE3_LAYERS
