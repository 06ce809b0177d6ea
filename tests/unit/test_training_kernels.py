"""What training computes with Triton kernels on a GPU is what it computes without them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddscope.engine.config import read_drafter_config
from ddscope.engine.tokenizer import Tokenizer
from ddscope.engine.training.block_attention import block_attention
from ddscope.engine.training.freerun import FreeRun
from ddscope.engine.training.loss import softmax_
from ddscope.engine.training.model import DrafterModule
from ddscope.engine.training.writing import Writer, chat_frame
from tests.engine_models import drafter_config, target_config, write_pair
from tests.unit.training_support import EOS, chat_target, load
from tests.unit.triton_support import CUDA, DEVICES, SWITCH


@pytest.mark.skipif(CUDA, reason="this process compiles for CUDA")
def test_kernels_write_what_is_written_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that draw, rows that do not, rows that end early: the same texts, the same lengths."""
    target = chat_target(tmp_path / "target", head_dim=16, num_hidden_layers=2)
    texts = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        writer = Writer(load(target), chat_frame(Tokenizer(target), frozenset({EOS})), 4, 4, 8, graphs=False)
        texts.append(writer.write(torch.Generator().manual_seed(3), 1.5, torch.tensor([0.0, 0.9] * 2)))
    assert texts[0] == texts[1]
    assert len({len(text.ids) for text in texts[0]}) > 1


@pytest.mark.parametrize(
    ("texts", "blocks", "block", "columns", "heads", "kv_heads", "size"),
    [(2, 3, 5, 70, 6, 2, 16), (2, 4, 16, 130, 9, 3, 64), (1, 2, 3, 20, 2, 2, 24)],
)
@pytest.mark.parametrize("device", DEVICES)
def test_attention_of_blocks_and_its_gradients_are_those_of_a_dense_mask(
    texts: int, blocks: int, block: int, columns: int, heads: int, kv_heads: int, size: int, device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Blocks with all of the context and with none, in float32 and bfloat16, against float64."""
    torch.manual_seed(0)
    rows = blocks * block
    shapes = [(rows, heads), (columns, kv_heads), (columns, kv_heads), (rows, kv_heads), (rows, kv_heads)]
    anchors = torch.randint(0, columns + 1, (texts, blocks))
    anchors[0, 0], anchors[-1, -1] = columns, 0
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        given = [torch.randn(texts, *shape, size).to(dtype) for shape in shapes]
        push = torch.randn(texts, rows, heads, size).to(dtype)
        results = []
        for wide, switch in ((torch.float64, "0"), (dtype, "1" if device == "cpu" else "0")):
            monkeypatch.setenv(SWITCH, switch)
            place = "cpu" if wide == torch.float64 else device
            leaves = [x.to(place, wide).requires_grad_() for x in given]
            out = block_attention(*leaves, anchors.to(place))
            results.append([out, *torch.autograd.grad(out, leaves, push.to(place, wide))])
        for exact, mine in zip(*results, strict=True):
            error = (mine.detach().cpu().double() - exact).norm() / exact.norm()
            assert error < most


@pytest.mark.parametrize("size", [30, 8192, 20_000])
@pytest.mark.parametrize("device", DEVICES)
def test_a_softmax_in_place_is_what_torch_makes(size: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with ties for the likeliest, across the slices of the kernel."""
    torch.manual_seed(1)
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        logits = torch.randn(3, size).to(dtype) * 4
        logits[1, [5, size - 1]] = logits[1].max() + 1
        monkeypatch.setenv(SWITCH, "1" if device == "cpu" else "0")
        mine = logits.to(device, copy=True)
        best, logz = softmax_(mine)
        exact = logits.double().softmax(-1)
        assert best.tolist()[1] == 5 and best.tolist() == logits.float().argmax(-1).tolist()
        torch.testing.assert_close(logz.cpu().double(), logits.double().logsumexp(-1), rtol=1e-5, atol=1e-5)
        assert (mine.cpu().double() - exact).norm() / exact.norm() < most


@pytest.mark.skipif(CUDA, reason="this process compiles for CUDA")
@pytest.mark.parametrize("budget", [None, 5])
def test_kernels_decode_what_is_decoded_without_them(
    budget: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that knows nothing, whose trees are verified all the same, and texts of different lengths."""
    config = drafter_config(head_dim=16, num_hidden_layers=1, block_size=3)
    target, draft = write_pair(tmp_path, target_config(head_dim=16, num_hidden_layers=4, eos_token_id=EOS), config)
    texts = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        module = DrafterModule(read_drafter_config(draft), 64, torch.device("cpu"))
        module.load(draft)
        texts.append(FreeRun(load(target), module, [[0, 1, 5, 2, 3], [0, 1, 2, 3]], 5, budget).run())
    assert texts[0] == texts[1]
    assert [len(text.output) for text in texts[0]] == [5, 5]
