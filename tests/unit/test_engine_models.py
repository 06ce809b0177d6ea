"""Target and drafter against a second, plain implementation, for every shape of model the engine takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ddscope.engine.drafter import Drafter
from ddscope.engine.errors import DraftShapeError
from ddscope.engine.target import Target
from ddscope_kernels import ancestor_rows, visibility
from tests.engine_models import (
    drafter_config,
    drafter_tensors,
    reference_drafter,
    reference_target,
    target_config,
    target_tensors,
    write_folder,
)

CPU = torch.device("cpu")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5]

SHAPES: dict[str, dict[str, Any]] = {
    "llama": target_config(),
    "llama, head of its own": target_config(tie_word_embeddings=False),
    "llama with biases": target_config(attention_bias=True, mlp_bias=True),
    "llama, one KV head a head": target_config(num_key_value_heads=4),
    "qwen3": target_config("qwen3"),
    "qwen3, wide heads": target_config("qwen3", head_dim=12, tie_word_embeddings=False, attention_bias=True),
}


def load(folder: Path, config: dict[str, Any]) -> tuple[Target, dict[str, torch.Tensor]]:
    tensors = target_tensors(config)
    return Target.load(write_folder(folder / "t", config, tensors), torch.float32, CPU), tensors


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
@torch.inference_mode()
def test_the_target_computes_what_its_definition_says(tmp_path: Path, config: dict[str, Any]) -> None:
    target, tensors = load(tmp_path, config)
    got = target.read(IDS, target.new_cache(4), capture=[0, 2, 3], keep=len(IDS))  # the cache grows on its own
    logits, hidden = reference_target(tensors, config, IDS)
    torch.testing.assert_close(got.logits, logits, atol=2e-5, rtol=1e-4)
    for ours, layer in zip(got.hidden, (0, 2, 3), strict=True):
        torch.testing.assert_close(ours, hidden[layer], atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_prompt_read_in_pieces_is_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = load(tmp_path, target_config())
    whole = target.read(IDS, target.new_cache(16), capture=[1], keep=5)
    monkeypatch.setattr("ddscope.engine.target.PREFILL_ROWS", 4)
    cache = target.new_cache(16)
    pieces = target.read(IDS, cache, capture=[1], keep=5)
    assert cache.length == len(IDS)
    torch.testing.assert_close(pieces.logits, whole.logits)
    torch.testing.assert_close(pieces.hidden[0], whole.hidden[0])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.inference_mode()
def test_every_path_of_a_tree_is_a_plain_text_to_the_target(tmp_path: Path, family: str) -> None:
    config = target_config(family)
    target, tensors = load(tmp_path, config)
    cache = target.new_cache(32)
    target.read(IDS, cache)
    tokens, parents = [7, 8, 9, 5, 7], [0, 0, 1, 1, 3]
    rows = ancestor_rows(parents)
    depths = [bin(row).count("1") - 1 for row in rows]
    root = 12
    bias = target.bias(visibility(rows))
    out = target.forward([root, *tokens], [len(IDS) + depth for depth in depths], cache, bias)
    assert cache.length == len(IDS)  # nothing is committed
    for node, row in enumerate(rows):
        path = [root] + [tokens[i - 1] for i in range(1, node + 1) if row >> i & 1]
        logits, _ = reference_target(tensors, config, [*IDS, *path])
        torch.testing.assert_close(out.logits[node], logits[-1], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
@torch.inference_mode()
def test_the_drafter_computes_what_its_definition_says_however_its_context_arrives(
    tmp_path: Path, biased: bool
) -> None:
    target, base = load(tmp_path, target_config())
    config = drafter_config(attention_bias=biased)
    tensors = drafter_tensors(config)
    drafter = Drafter.load(write_folder(tmp_path / "d", config, tensors), target)
    torch.manual_seed(7)
    features = torch.randn(9, 48)
    want = reference_drafter(tensors, config, features, 5, 4, base)
    cache = drafter.new_cache(2)
    for piece in features.split((4, 1, 3, 1)):
        drafter.read(piece, cache)
        drafter.draft(11, 6, cache)  # the scratch rows of an earlier block leave no trace
    assert cache.length == 9
    torch.testing.assert_close(drafter.logits(drafter.draft(5, 4, cache)), want, atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_features_of_the_wrong_width_name_what_arrived_and_what_fits(tmp_path: Path) -> None:
    target, _ = load(tmp_path, target_config())
    config = drafter_config()
    drafter = Drafter.load(write_folder(tmp_path / "d", config, drafter_tensors(config)), target)
    cache = drafter.new_cache(8)
    with pytest.raises(DraftShapeError, match=r"\[5, 24\] where \[any, 48\] is expected") as caught:
        drafter.read(torch.zeros(5, 24), cache)
    assert (caught.value.got, caught.value.expected) == ([5, 24], [None, 48])
    assert isinstance(caught.value.__cause__ or caught.value.__context__, RuntimeError)  # the product itself failed
    assert cache.length == 0
