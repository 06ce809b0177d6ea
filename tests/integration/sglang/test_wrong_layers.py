"""Drafters that are fed with the wrong layers of the target, on a real SGLang: the records let the rules name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.sglang.conftest import Real, Tiny
from tests.integration.sglang.support import models
from tests.integration.sglang.support.running import recorded
from tests.integration.sglang.support.server import ServerDied


def test_a_layer_that_the_target_does_not_have_is_named_by_the_widths(real: Real, tmp_path: Path) -> None:
    """Layer 29's output would be taken before a 31st layer: four of five arrive, and SGLang's scheduler ends."""
    draft = models.real_draft(tmp_path / "draft", target_layer_ids=[1, 8, 14, 20, 29])
    with recorded(real.dflash(draft), tmp_path / "run") as run:
        with pytest.raises(ServerDied):
            run.generate(real.prompts[:1], 8)
        assert "target_hidden feature dim mismatch" in run.engine.log
        run.trace.refresh()
        misfit = next(tensor for tensor in run.trace.tensors() if tensor.ok is False)
        assert (misfit.shape[-1], misfit.expect and misfit.expect[-1]) == (4 * 576, 5 * 576)
        finding = next(finding for finding in run.trace.findings() if finding.id == "shape.mismatch")
        assert finding.kind == "layers"
        assert "2,880 = 5 × 576 expected, 2,304 = 4 × 576 given" in finding.title


def test_layers_in_another_order_are_named_though_sglang_takes_them(real: Real, tmp_path: Path) -> None:
    """SGLang captures in the target's order, whatever the checkpoint's: silent, right text, few accepted drafts."""
    draft = models.real_draft(tmp_path / "draft", target_layer_ids=[27, 20, 14, 8, 1])
    with recorded(real.dflash(draft), tmp_path / "run") as run:
        run.generate(real.prompts[:2], real.tokens)
        kinds = {(finding.id, finding.kind) for finding in run.trace.findings()}
        assert kinds & {("accept.curve", "layer_order"), ("config.requested_vs_effective", "layer_order")}


def test_eagle3_with_too_few_captured_layers_is_named_though_sglang_skips_its_projection(
    tiny: Tiny, tmp_path: Path
) -> None:
    """Three features expected, one captured: its width is the embedding's, so SGLang leaves `fc` out and goes on."""
    draft = models.tiny_eagle3_draft(tmp_path / "draft", layer_ids=[0, 3, 4])
    with recorded(tiny.tree("EAGLE3", draft), tmp_path / "run") as run:
        rids = run.generate(tiny.prompts[:2], tiny.tokens)
        assert all(len(run.outputs[rid]["output_ids"]) == tiny.tokens for rid in rids)
        misfit = next(tensor for tensor in run.trace.tensors() if tensor.ok is False)
        assert (misfit.shape[-1], misfit.expect and misfit.expect[-1]) == (models.HIDDEN, 3 * models.HIDDEN)
        finding = next(finding for finding in run.trace.findings() if finding.id == "shape.mismatch")
        assert finding.kind == "layers"
        assert "one layer given, three expected" in finding.title
