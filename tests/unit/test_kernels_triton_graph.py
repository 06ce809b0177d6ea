"""A step's kernels in a row, without the host in between: on a device one CUDA graph, replayed on new inputs."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from ddscope_kernels.batched import build_tree, choose, compact_kv, topk_logprobs, tree_attention, walk
from tests.unit.triton_support import CUDA, DEVICES, SWITCH

REQUESTS, DEPTHS, SIZE, BUDGET, ROWS, WIDTH = 2, 4, 300, 12, 64, 16
Step = dict[str, Tensor]


def inputs(seed: int) -> Step:
    """Draft logits, the target's logits at every node, caches, and where each request stands."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    draft = normal(REQUESTS, DEPTHS, SIZE) * 3
    # A target that agrees with the drafter more often than not: every node's logits are its depth's, and some noise.
    target = draft.mean(1, keepdim=True) * 2 + normal(REQUESTS, BUDGET + 1, SIZE)
    return {
        "draft": draft,
        "target": target,
        "q": normal(REQUESTS, BUDGET + 1, 2, WIDTH),
        "cache": normal(2, REQUESTS, 1, ROWS, WIDTH),
        "base": torch.randint(0, ROWS - BUDGET - 1, (REQUESTS,), generator=random, dtype=torch.int32),
        "room": torch.tensor([3, 99], dtype=torch.int32),
        "temperatures": torch.tensor([0.0, 0.8]),
        "seeds": torch.tensor([1, 2]),
        "eos": torch.tensor([5]),
    }


def step(given: Step) -> Step:
    """All of it; the cache is changed in place."""
    found = topk_logprobs(given["draft"], 8)
    trees = build_tree(found.logprobs, found.ids, BUDGET, base=given["base"])
    keys, values = given["cache"].unbind(0)
    read = tree_attention(given["q"], keys, values, trees.bits, given["base"], counts=trees.counts)
    choices = choose(
        given["target"], temperatures=given["temperatures"], seeds=given["seeds"], positions=trees.positions + 1
    )
    walks = walk(
        trees.tokens, trees.parents, trees.counts, choices, DEPTHS, eos=given["eos"], room=given["room"]
    )  # fmt: skip
    compact_kv(given["cache"], walks.path, walks.lengths, base=given["base"])
    return {
        "read": read,
        "tokens": trees.tokens,
        "parents": trees.parents,
        "bits": trees.bits,
        "path": walks.path,
        "emitted": walks.emitted,
        "counts": walks.counts,
        "reasons": walks.reasons,
        "cache": given["cache"],
    }


def copied(given: Step, device: str) -> Step:
    return {name: tensor.clone().to(device) for name, tensor in given.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_step_gives_what_the_references_give(device) -> None:
    seeds = range(1, 6) if CUDA else range(1, 3)
    static = copied(inputs(0), device)
    with patch.dict(os.environ, {SWITCH: "1" if device == "cpu" else "0"}):
        if CUDA:
            step(copied(static, device))  # compiles
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = step(static)
        for seed in seeds:
            for name, tensor in inputs(seed).items():
                static[name].copy_(tensor)
            if CUDA:
                graph.replay()
            else:
                kept = step(static)
            with patch.dict(os.environ, {SWITCH: "0"}):
                expected = step(copied(inputs(seed), "cpu"))
            for name, tensor in expected.items():
                torch.testing.assert_close(kept[name].cpu(), tensor, rtol=0.0, atol=1e-4 if name == "read" else 0.0)
