"""The target's choice where tokens tie, as they do in bfloat16: what the server takes, with and without top-k."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from ddscope_hooks.config import Config
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.pack import unpack
from ddscope_hooks.taps.place import Place


@pytest.mark.parametrize("topk", [0, 1, 2])
def test_of_tokens_that_tie_the_choice_is_the_servers_own(topk: int) -> None:
    """torch's top-k puts any of them first, its argmax the lowest id; SGLang commits the argmax."""
    emitter: Any = types.SimpleNamespace(watched=True, fault=None)
    core = Core(Config(topk=topk), emitter, Place(), "DFLASH")
    logits = torch.zeros(2, 512, dtype=torch.bfloat16)
    logits[:, [7, 100, 400]] = 5.0
    core.begin(lambda: ["r"], prefill=False)
    core.about(n=2, size=1, chain=True)
    core.logits(logits)
    result = types.SimpleNamespace()
    core.attach(result)
    assert core.cargo is not None and core.cargo.packed is not None
    packed = core.cargo.packed
    packed.ship()
    parts = unpack(packed.layout, packed.take())
    assert parts["target"] == logits.argmax(-1).tolist() == [7, 7]
