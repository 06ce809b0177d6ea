"""What ddscope does to a real SGLang in whose environment it is installed, but not asked for: nothing."""

from __future__ import annotations

import pytest

from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.running import Observed, observe

ENTRY = {"ddscope_hooks", "ddscope_hooks.config", "ddscope_hooks.plugin"}
"""What holds the entry point that SGLang calls; standard library only."""


@pytest.fixture(scope="module")
def off(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """An engine that calls ddscope's entry point, with DDSCOPE not set."""
    return observe(tiny.arguments(), tmp_path_factory.mktemp("off"), {}, tiny.prompts, tiny.tokens)


def test_the_output_is_the_same(off: Observed, without_plugin: Observed) -> None:
    for ours, plain in zip(off.outputs, without_plugin.outputs, strict=True):
        assert ours["output_ids"] == plain["output_ids"]
        assert ours["text"] == plain["text"]


def test_nothing_but_the_entry_point_is_imported(off: Observed, without_plugin: Observed) -> None:
    assert off.modules - without_plugin.modules == ENTRY
    assert without_plugin.modules <= off.modules


def test_no_function_is_hooked(off: Observed, without_plugin: Observed) -> None:
    assert off.hooks == without_plugin.hooks == {}
