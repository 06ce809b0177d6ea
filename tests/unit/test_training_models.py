"""Batched target and trainable drafter compute what the engine's own ones compute, a sequence at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ddscope.engine.config import read_drafter_config
from ddscope.engine.pair import load_pair
from ddscope.engine.training.anchors import (
    accepted_lengths,
    after_rejection,
    cut_blocks,
    random_anchors,
)
from ddscope.engine.training.forward import BatchCache
from ddscope.engine.training.loss import Judging, Soft, depth_weights, head_loss, target_soft
from ddscope.engine.training.model import DrafterModule, over_blocks
from tests.engine_models import drafter_config, target_config, tiny_pair, write_pair
from tests.unit.training_support import chat_target, load

CPU = torch.device("cpu")
CAPTURE = (0, 2, 3)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_batched_reading_is_the_engines_reading(tmp_path: Path, family: str) -> None:
    changes = {"tie_word_embeddings": False, "attention_bias": True} if family == "qwen3" else {}
    target, drafter = write_pair(tmp_path, target_config(family, **changes))
    pair, batched = load_pair(target, drafter), load(target)
    texts = [[3, 1, 4, 1, 5, 9, 2, 6], [8, 2, 7]]
    ids = torch.tensor([texts[0], texts[1] + [0] * 5])
    out = batched.read(ids, CAPTURE)
    for row, text in enumerate(texts):
        alone = pair.target.read(text, pair.target.new_cache(16), CAPTURE, keep=len(text))
        torch.testing.assert_close(out.captured[row, : len(text)], torch.cat(alone.hidden, -1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(batched.logits(out.last[row, : len(text)]), alone.logits, rtol=1e-4, atol=1e-4)


def test_steps_over_a_cache_are_one_reading(tmp_path: Path) -> None:
    """Rows of different lengths go on at their own places, several tokens and one at a time."""
    batched = load(chat_target(tmp_path / "target"))
    torch.manual_seed(3)
    ids = torch.randint(0, 16, (3, 12))
    whole = batched.read(ids, CAPTURE)
    cache = BatchCache(batched.config.stack, 3, 16, batched.embedding)
    starts = torch.tensor([0, 0, 0])
    for sizes in ([4, 2, 5], [1, 1, 1], [1, 1, 1], [3, 5, 2]):
        width = max(sizes)
        at = starts[:, None] + torch.arange(width)
        tokens = ids.gather(1, at.clamp(max=11))
        sees = torch.arange(16) <= at[:, :, None]
        bias = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
        out = batched.step(tokens, at, at, cache, bias, CAPTURE)
        for row, size in enumerate(sizes):
            here = slice(int(starts[row]), int(starts[row]) + size)
            torch.testing.assert_close(out.last[row, :size], whole.last[row, here], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(out.captured[row, :size], whole.captured[row, here], rtol=1e-4, atol=1e-4)
        starts += torch.tensor(sizes)


def test_a_block_in_training_is_the_engines_draft(tmp_path: Path) -> None:
    """Each of several blocks of a text gives what the engine drafts after that much context."""
    pair = tiny_pair(tmp_path)
    config = read_drafter_config(tmp_path / "drafter")
    batched = load(tmp_path / "target")
    module = DrafterModule(config, 64, CPU)
    module.load(tmp_path / "drafter")
    torch.manual_seed(4)
    ids = torch.randint(1, 16, (2, 20))
    lengths, anchors = torch.tensor([20, 14]), torch.tensor([[1, 7, 12], [4, 9, 5]])
    features = batched.read(ids, config.target_layer_ids).captured
    blocks = cut_blocks(ids, lengths, anchors, config.block_size, config.mask_token_id)
    context = module.context(features, torch.arange(20)[None])
    hidden = module(F.embedding(blocks.rows, batched.embedding), blocks.positions, context, over_blocks(anchors))
    hidden = hidden.view(2, 3, config.block_size, -1)
    for text in range(2):
        for place in range(3):
            anchor = int(anchors[text, place])
            cache = pair.drafter.new_cache(64)
            pair.drafter.read(features[text, :anchor], cache)
            alone = pair.drafter.draft(int(ids[text, anchor]), config.block_size, cache)
            torch.testing.assert_close(hidden[text, place, 1:], alone, rtol=1e-4, atol=1e-4)


def test_blocks_are_cut_at_the_end_of_a_text() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 0]])
    blocks = cut_blocks(ids, torch.tensor([5]), torch.tensor([[1, 3]]), 4, mask_token=2)
    assert blocks.rows.tolist() == [[6, 2, 2, 2, 8, 2, 2, 2]]
    assert blocks.positions.tolist() == [[1, 2, 3, 4, 3, 4, 5, 6]]
    assert blocks.labels[0, 0].tolist() == [7, 8, 9]
    assert blocks.valid.tolist() == [[[True, True, True], [True, False, False]]]


def test_random_anchors_have_context_and_something_to_predict() -> None:
    first, lengths = torch.tensor([3, 10, 2]), torch.tensor([5, 40, 4])
    anchors = random_anchors(first, lengths, 500, torch.Generator().manual_seed(0))
    assert anchors[0].unique().tolist() == [3]
    assert anchors[1].unique().tolist() == list(range(10, 39))
    assert anchors[2].unique().tolist() == [2]


def test_an_on_policy_anchor_is_the_token_behind_the_accepted_ones() -> None:
    chosen = torch.tensor([[[4, 5, 6], [4, 9, 6], [9, 5, 6]]])
    labels = torch.tensor([[[4, 5, 6], [4, 5, 6], [4, 5, 6]]])
    valid = torch.tensor([[[True, True, False], [True, True, True], [True, True, True]]])
    accepted = accepted_lengths(chosen, labels, valid)
    assert accepted.tolist() == [[2, 1, 0]]
    onward = after_rejection(torch.tensor([[5, 5, 8]]), accepted, torch.tensor([9]), fresh=torch.tensor([[1, 2, 3]]))
    # 5 + 2 + 1 = 8 has nothing left to predict in a text of 9, and neither has 9.
    assert onward.tolist() == [[1, 7, 3]]


@pytest.mark.parametrize(("mix", "reach"), [(0.0, 0.0), (0.4, 0.0), (0.4, 0.7), (1.0, 1.0)])
def test_head_loss_and_its_gradient_are_those_of_autograd(
    mix: float, reach: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddscope.engine.training.loss.PIECE", 7)  # two blocks at once; the last piece is a rest
    torch.manual_seed(5)
    hidden, head = torch.randn(5, 3, 8, requires_grad=True), torch.randn(30, 8)
    labels, weights = torch.randint(0, 30, (5, 3)), torch.rand(5, 3)
    weights[3, 2] = 0
    soft = target_soft(torch.randn(5, 3, 30), 6)
    loss, chosen = head_loss(hidden, head, labels, weights, soft, Judging(mix, reach))
    (3 * loss).backward()
    again = hidden.detach().clone().requires_grad_()
    logprobs = (again @ head.T).log_softmax(-1)
    hard = -logprobs.gather(-1, labels[..., None])[..., 0]
    to_target = -(soft.probabilities * logprobs.gather(-1, soft.ids)).sum(-1)
    roots = (-hard.detach()).exp().sqrt()
    reached = torch.stack([torch.ones(5), roots[:, 0], roots[:, 0] * roots[:, 1]], dim=1)
    weights = weights * (1 - reach + reach * reached)
    expected = (weights * ((1 - mix) * hard + mix * to_target)).sum() / weights.sum()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, again.grad)
    assert chosen.tolist() == logprobs.argmax(-1).tolist()


def test_the_deeper_half_is_judged_of_the_blocks_that_are_likeliest_to_get_there() -> None:
    """As if all were judged, and the others' deeper rows weighed nothing."""
    torch.manual_seed(6)
    hidden, head = torch.randn(6, 5, 8, requires_grad=True), torch.randn(30, 8)
    labels, weights, soft = torch.randint(0, 30, (6, 5)), torch.rand(6, 5), target_soft(torch.randn(6, 5, 30), 4)
    weights[2, 3:] = 0  # its text ends there
    loss, chosen = head_loss(hidden, head, labels, weights, soft, Judging(0.3, 0.8, deep=0.5))
    loss.backward()
    logprobs = (hidden.detach() @ head.T).log_softmax(-1)
    likely = logprobs.gather(-1, labels[..., None])[:, :3, 0].sum(-1)
    likely[2] = -torch.inf
    left_out = likely.argsort()[:3]
    weights[left_out, 3:] = 0
    again = hidden.detach().clone().requires_grad_()
    expected, whole = head_loss(again, head, labels, weights, soft, Judging(0.3, 0.8))
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, again.grad)
    whole[left_out, 3:] = -1
    assert torch.equal(chosen, whole) and (hidden.grad[:, 3:].abs().sum((1, 2)) > 0).sum() == 3


def test_soft_targets_are_the_likeliest_tokens_among_themselves() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    soft = target_soft(logits, 2)
    assert soft.ids.tolist() == [[1, 3]]
    torch.testing.assert_close(soft.probabilities, torch.tensor([[3.0, 2.0]]).softmax(-1))
    assert isinstance(soft, Soft)


def test_depths_weigh_less_and_less() -> None:
    weights = depth_weights(4, 2.0, CPU)
    torch.testing.assert_close(weights, torch.tensor([0.0, -0.5, -1.0]).exp())


def test_a_loaded_module_refuses_another_shape(tmp_path: Path) -> None:
    from ddscope.engine.errors import EngineError

    write_pair(tmp_path)
    other = drafter_config(intermediate_size=48)
    from tests.engine_models import drafter_tensors, write_folder

    write_folder(tmp_path / "other", other, drafter_tensors(other))
    module = DrafterModule(read_drafter_config(tmp_path / "drafter"), 32, CPU)
    with pytest.raises(EngineError, match="tensors do not fit"):
        module.load(tmp_path / "other")
