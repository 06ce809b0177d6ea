"""What installed but unused or failing hooks do to a real SGLang: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.running import recorded
from tests.integration.sglang.support.server import Engine


@pytest.fixture(scope="module")
def plain_modules(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Modules and hooked targets of a scheduler that does not even load ddscope's plugin, and of one with it off."""
    seen = {}
    for name, env in (("without", {"SGLANG_PLUGINS": "ddscope_standins"}), ("off", {})):
        engine = Engine(tiny.tree("STANDALONE", tiny.standalone), tmp_path_factory.mktemp(name), env)
        try:
            outputs = engine.generate(tiny.prompts, tiny.tokens, [f"{name}{i}" for i in range(len(tiny.prompts))])
            seen[name] = {
                "modules": set(engine.scheduler("modules")),
                "hooks": engine.scheduler("hooks"),
                "output_ids": [output["output_ids"] for output in outputs],
                "log": engine.log,
            }
        finally:
            engine.stop()
    return seen


def test_with_the_hooks_off_the_output_is_the_same(
    plain_modules: dict[str, Any], tiny_baseline: list[dict[str, Any]]
) -> None:
    expected = [output["output_ids"] for output in tiny_baseline]
    assert plain_modules["without"]["output_ids"] == plain_modules["off"]["output_ids"] == expected


def test_with_the_hooks_off_nothing_but_the_entry_point_is_imported(plain_modules: dict[str, Any]) -> None:
    more = plain_modules["off"]["modules"] ^ plain_modules["without"]["modules"]
    assert more <= {"ddscope_hooks", "ddscope_hooks.config", "ddscope_hooks.plugin"}


def test_with_the_hooks_off_no_function_is_hooked(plain_modules: dict[str, Any]) -> None:
    assert plain_modules["off"]["hooks"] == plain_modules["without"]["hooks"] == {}


def test_a_hook_that_raises_changes_no_answer_and_is_told_once(
    tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path: Path
) -> None:
    with recorded(tiny.tree("STANDALONE", tiny.standalone), tmp_path) as run:
        assert run.engine.scheduler("break_hooks") == 1
        rids = run.generate(tiny.prompts, tiny.tokens)
        for rid, plain in zip(rids, tiny_baseline, strict=True):
            assert run.outputs[rid]["output_ids"] == plain["output_ids"]
        faults = run.trace.facts("hook.fault")
        assert faults and all("broken by a test" in fault["error"] for fault in faults)
        assert len({fault["tap"] for fault in faults}) == len(faults), "a tap told its fault twice"
        assert len(run.trace.gaps("hook_fault")) == len(faults)
