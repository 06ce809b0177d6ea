"""What training computes with Triton kernels on a GPU is what it computes without them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddscope.engine.tokenizer import Tokenizer
from ddscope.engine.training.writing import Writer, chat_frame
from tests.unit.training_support import EOS, chat_target, load
from tests.unit.triton_support import CUDA, SWITCH


@pytest.mark.skipif(CUDA, reason="this process compiles for CUDA")
def test_kernels_write_what_is_written_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that draw, rows that do not, rows that end early: the same texts, the same lengths."""
    target = chat_target(tmp_path / "target", head_dim=16)
    texts = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        writer = Writer(load(target), chat_frame(Tokenizer(target), frozenset({EOS})), 6, 5, 12, graphs=False)
        texts.append(writer.write(torch.Generator().manual_seed(3), 1.5, torch.tensor([0.0, 0.9] * 3)))
    assert texts[0] == texts[1]
    assert len({len(text.ids) for text in texts[0]}) > 1
