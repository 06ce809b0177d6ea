"""STANDALONE with branching trees on a real SGLang: what the hooks record is what the server did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks
from tests.integration.sglang.support.cases import Lossless, Records, Sampled
from tests.integration.sglang.support.reading import told
from tests.integration.sglang.support.running import Run, recorded


@pytest.fixture(scope="module")
def run(tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """After the baseline, so that its engine and this one do not run at once."""
    with recorded(tiny.tree("STANDALONE", tiny.standalone), tmp_path_factory.mktemp("standalone")) as run:
        yield run


@pytest.fixture(scope="module")
def rids(run: Run, tiny: Tiny) -> list[str]:
    return run.generate(tiny.prompts, tiny.tokens)


class TestRecords(Records, Lossless):
    pass


class TestSampled(Sampled):
    pass


def test_a_text_that_stops_inside_a_block_is_cut_where_the_server_cuts_it(
    run: Run, rids: list[str], tiny: Tiny
) -> None:
    """A stop token among accepted ones: what was accepted behind it is in the path, and not in the text."""
    steps = run.trace.steps(rids[0])
    before = next(i for i, step in enumerate(steps) if i and checks.accepted(step) >= 2)
    stop = told(steps[before])[0]
    stopped = run.generate(tiny.prompts[:1], tiny.tokens, "stop", stop_token_ids=[stop], ignore_eos=False)
    assert run.outputs[stopped[0]]["meta_info"]["finish_reason"]["type"] == "stop"
    checks.tokens_are_the_answers(run, stopped)
    last = run.trace.steps(stopped[0])[-1]
    assert last.flags is not None and last.flags.truncated
    assert len(told(last)) < checks.accepted(last) + 1
    assert run.trace.problems() == []


def test_a_nan_in_the_final_norm_is_named_though_the_server_says_nothing(run: Run, rids: list[str], tiny: Tiny) -> None:
    """The server answers as ever: token 0 again and again, finish reason `length`, and no line in its log."""
    before = len(run.engine.log)
    run.engine.scheduler("break_norm")
    try:
        broken = run.generate(tiny.prompts[:1], 24, "nan")[0]
    finally:
        run.engine.scheduler("mend_norm")
    assert set(run.outputs[broken]["output_ids"]) == {0}
    assert run.outputs[broken]["meta_info"]["finish_reason"]["type"] == "length"
    assert "nan" not in run.engine.log[before:].replace("'nan0'", "").lower()
    for step in run.trace.steps(broken):
        assert step.flags is not None and step.flags.nonfinite is not None and step.flags.nonfinite["target"] > 0
    named = [finding for finding in run.trace.findings() if finding.rid in (broken, None)]
    nan = next(finding for finding in named if finding.id == "nan.logits")
    assert nan.kind.startswith("target") and nan.severity == "critical"
    # One id again and again is explained by it, so it is told there and not as a finding of its own.
    assert any("output.token_flood" in consequence for consequence in nan.consequences), nan.consequences


def test_hooks_that_raise_change_no_answer_and_are_told_once(
    run: Run, rids: list[str], tiny: Tiny, tiny_baseline: list[dict[str, Any]]
) -> None:
    """The last test here: its breakers stay open."""
    assert run.engine.scheduler("break_hooks") == 1
    for name in ("broken", "after"):
        for rid, plain in zip(run.generate(tiny.prompts, tiny.tokens, name), tiny_baseline, strict=True):
            assert run.outputs[rid]["output_ids"] == plain["output_ids"]
            assert run.outputs[rid]["text"] == plain["text"]
            # The tap that counts requests and steps is sound, so they are told all the same.
            assert len(run.trace.steps(rid)) == run.outputs[rid]["meta_info"]["spec_verify_ct"]
    faults = run.trace.facts("hook.fault")
    assert faults and all("broken by a test" in fault["error"] for fault in faults)
    assert len({fault["tap"] for fault in faults}) == len(faults), "a tap told its fault twice"
    assert len(run.trace.gaps("hook_fault")) == len(faults)
