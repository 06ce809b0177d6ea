"""FROZEN_KV_MTP on a real SGLang: a drafter that reads the target's cache, in branching trees, with overlap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks, models
from tests.integration.sglang.support.cases import Records, Sampled
from tests.integration.sglang.support.running import Run, recorded


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Overlap is on: without it SGLang 0.5.23 hands this worker an argument that it does not take, on any device.

    One layer type and no window: a cache of two kinds would need an attention of its own.
    """
    folder = tmp_path_factory.mktemp("frozen")
    arguments = tiny.tree("FROZEN_KV_MTP", models.tiny_gemma4_assistant(folder / "draft")) | {
        "model_path": str(models.tiny_gemma4(folder / "target")),
        "attention_backend": "intel_amx",
        "disable_overlap_schedule": False,
        "disable_hybrid_swa_memory": True,
    }
    with recorded(arguments, folder) as run:
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    return run.generate(tiny.prompts, tiny.tokens)


class TestRecords(Records):
    masked = False


class TestSampled(Sampled):
    pass


def test_its_taps_are_live(run: Run, rids: list[str]) -> None:
    live = {name for name, tap in run.trace.taps().items() if tap["live"]}
    assert live == {"requests", "universal", "eagle", "frozen_kv_mtp"}
    assert {step.algorithm for rid in rids for step in run.trace.steps(rid)} == {"frozen_kv_mtp"}


def test_a_mask_over_the_whole_context_is_told_now_and_then_and_cut_out_right(
    run: Run, rids: list[str], tiny: Tiny
) -> None:
    more = run.generate(tiny.prompts, tiny.tokens, "more")
    trees = [checks.tree_of(step) for rid in (*rids, *more) for step in run.trace.steps(rid)]
    masked = [tree for tree in trees if tree.mask is not None]
    assert 0 < len(masked) < len(trees)
    for tree in masked:
        assert [int(row, 16) for row in tree.mask or ()] == checks.closure(tree)


def test_what_enters_the_drafter_is_what_its_weights_expect(run: Run, rids: list[str]) -> None:
    (hidden, *_) = (tensor for tensor in run.trace.tensors() if tensor.name == "drafter.target_hidden")
    assert hidden.owner == "Gemma4AssistantForCausalLM" and hidden.ok is not False
    assert hidden.expect == [None, models.HIDDEN] and hidden.shape[-1] == models.HIDDEN


def test_the_steps_say_that_the_server_overlaps(run: Run, rids: list[str]) -> None:
    assert {step.flags and step.flags.overlap for rid in rids for step in run.trace.steps(rid)} == {True}
