"""The real pair in float32: the tree, the chain and plain decoding write the same text, greedily and by draws.

Plain decoding is itself compared with one causal pass over its own text, so that all of them cannot be wrong alike.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest

from ddscope.engine.budget import AutoBudget
from ddscope.engine.calibrate import calibrate
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import SHIPPED_DRAFT, Pair, load_pair

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROMPTS, TOKENS = 16, 96
TREES = (0, 7, 15, 31, 63, "auto")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair()


@lru_cache(maxsize=1)
def prompts() -> list[list[int]]:
    lines = (SHIPPED_DRAFT / "heldout-prompts.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["prompt_ids"] for line in lines[:PROMPTS]]


def write(pair: Pair, prompt: list[int], auto: AutoBudget | None = None, **params: Any) -> tuple[list[int], int]:
    """The text and the steps it took."""
    generator = Generator(pair, prompt, Params(**{"max_new_tokens": TOKENS, **params}), auto)
    generator.start()
    steps = 0
    while not generator.done:
        generator.commit(generator.draft_and_verify())
        steps += 1
    return generator.output, steps


@pytest.fixture(scope="module")
def plain(pair: Pair) -> list[list[int]]:
    return [write(pair, prompt, algorithm="autoregressive")[0] for prompt in prompts()]


def test_plain_decoding_writes_what_one_causal_pass_over_its_text_prefers(pair: Pair, plain: list[list[int]]) -> None:
    for prompt, output in zip(prompts(), plain, strict=True):
        whole = [*prompt, *output]
        logits = pair.target.read(whole, pair.target.new_cache(len(whole)), keep=len(output) + 1).logits
        assert logits.argmax(-1).tolist()[:-1] == output


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("budget", TREES)
def test_a_tree_of_any_budget_writes_the_same_text(pair: Pair, plain: list[list[int]], budget: int | str) -> None:
    auto = calibrate(pair, Params()) if budget == "auto" else None
    written = [write(pair, prompt, auto, algorithm="ddtree", budget=budget) for prompt in prompts()]
    assert [output for output, _ in written] == plain
    tau = sum(len(output) - 1 for output, _ in written) / sum(steps for _, steps in written)
    assert tau == 1 if budget == 0 else tau > (1.5 if budget == "auto" else 2)  # dear nodes: auto takes few


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rows", [16, 8])
def test_a_chain_writes_the_same_text(pair: Pair, plain: list[list[int]], rows: int) -> None:
    written = [
        write(pair, prompt, algorithm="dflash", draft_rows=rows) for prompt in prompts()[: PROMPTS if rows == 16 else 4]
    ]
    assert [output for output, _ in written] == plain[: len(written)]


@pytest.mark.timeout(1800)
def test_draws_with_one_seed_write_one_text_whatever_the_algorithm(pair: Pair) -> None:
    for seed, prompt in enumerate(prompts()[:3]):
        warm = {"temperature": 0.8, "seed": seed, "max_new_tokens": 48}
        texts = [
            write(pair, prompt, algorithm="autoregressive", **warm)[0],
            write(pair, prompt, algorithm="dflash", **warm)[0],
            write(pair, prompt, algorithm="ddtree", budget=15, **warm)[0],
        ]
        assert texts[0] == texts[1] == texts[2]
    assert (
        write(pair, prompts()[0], algorithm="ddtree", temperature=0.8, seed=1, max_new_tokens=24)[0]
        != write(pair, prompts()[0], algorithm="ddtree", temperature=0.8, seed=2, max_new_tokens=24)[0]
    )
