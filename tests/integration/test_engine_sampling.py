"""At temperature > 0 the text is distributed as plain sampling from the target, and the test would notice if not.

A tiny target over five tokens: the probability of every continuation of three tokens is computed exactly from plain
forward passes, and a chi-square test compares hundreds of seeded runs with it. Everything is seeded: nothing flakes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ddscope.engine import generate
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import Pair
from tests.engine_models import drafter_config, target_config, tiny_pair

VOCAB, LENGTH, RUNS, TEMPERATURE = 5, 3, 700, 1.8
PROMPT = [1, 3, 0, 2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    target = target_config(vocab_size=VOCAB, num_hidden_layers=1)
    drafter = drafter_config(
        vocab_size=VOCAB,
        num_target_layers=1,
        num_hidden_layers=1,
        block_size=4,
        dflash_config={"mask_token_id": 0, "target_layer_ids": [0]},
    )
    return tiny_pair(tmp_path_factory.mktemp("five"), target, drafter)


@pytest.fixture(scope="module")
@torch.inference_mode()
def exact(pair: Pair) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of LENGTH tokens."""
    table: dict[tuple[int, ...], float] = {}
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        ids = [*PROMPT, *text]
        logits = pair.target.read(ids[:-1], pair.target.new_cache(len(ids)), keep=LENGTH).logits
        logprobs = (logits / TEMPERATURE).log_softmax(-1)
        table[text] = sum(logprobs[i, token].item() for i, token in enumerate(text))
    return {text: float(torch.tensor(value).exp()) for text, value in table.items()}


def sample(pair: Pair, algorithm: str) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(RUNS):
        params = Params(
            algorithm=algorithm,
            budget=6,
            temperature=TEMPERATURE,
            seed=seed,
            max_new_tokens=LENGTH,  # type: ignore[arg-type]
        )
        generator = Generator(pair, PROMPT, params)
        generator.start()
        while not generator.done:
            generator.commit(generator.draft_and_verify())
        counts[tuple(generator.output)] += 1
    return counts


def chi_square_excess(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """Standard deviations by which the chi-square statistic exceeds what chance gives (Wilson-Hilferty).

    Cells expecting fewer than five runs are pooled.
    """
    cells: list[tuple[float, int]] = []
    pool = (0.0, 0)
    for text, probability in exact.items():
        cell = (probability * RUNS, counts[text])
        if cell[0] < 5:
            pool = (pool[0] + cell[0], pool[1] + cell[1])
        else:
            cells.append(cell)
    cells.append(pool)
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5


def test_the_exact_table_is_a_distribution_that_differs_from_text_to_text(exact: dict[tuple[int, ...], float]) -> None:
    assert sum(exact.values()) == pytest.approx(1, abs=1e-5)
    assert sum(value * RUNS >= 5 for value in exact.values()) > 20
    assert max(exact.values()) > 4 * sorted(exact.values())[len(exact) // 2]


@pytest.mark.parametrize("algorithm", ["autoregressive", "dflash", "ddtree"])
def test_texts_are_distributed_as_plain_sampling(
    pair: Pair, exact: dict[tuple[int, ...], float], algorithm: str
) -> None:
    assert chi_square_excess(sample(pair, algorithm), exact) < 3


Walk = Callable[[list[int], list[int], list[int]], tuple[list[int], int]]


def eager(tokens: list[int], parents: list[int], choices: list[int]) -> tuple[list[int], int]:
    """Takes the likeliest draft where no child carries the target's choice: accepts what was not drawn."""
    path = [0]
    while children := [node for node in range(1, len(tokens) + 1) if parents[node - 1] == path[-1]]:
        match = [node for node in children if tokens[node - 1] == choices[path[-1]]]
        path.append((match or children)[0])
        if not match:
            break
    return path, choices[path[-1]]


def shifted(tokens: list[int], parents: list[int], choices: list[int]) -> tuple[list[int], int]:
    """The bonus comes from the root in place of the last accepted node."""
    path, _ = generate_walk(tokens, parents, choices)
    return path, choices[0]


generate_walk = generate.walk


@pytest.mark.parametrize("wrong", [eager, shifted])
def test_a_wrong_walk_is_noticed(
    pair: Pair, exact: dict[tuple[int, ...], float], wrong: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "walk", wrong)
    assert chi_square_excess(sample(pair, "ddtree"), exact) > 6


def test_noise_shared_between_positions_is_noticed(
    pair: Pair, exact: dict[tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddscope.engine import judge

    sound = judge.gumbel
    monkeypatch.setattr(judge, "gumbel", lambda seed, position, size: sound(seed, 0, size))
    assert chi_square_excess(sample(pair, "ddtree"), exact) > 6


def test_a_seed_writes_one_text_whatever_the_algorithm(pair: Pair, tmp_path: Path) -> None:
    for seed in range(40):
        texts = set()
        for algorithm in ("autoregressive", "dflash", "ddtree"):
            params = Params(algorithm=algorithm, budget=9, temperature=1.2, seed=seed, max_new_tokens=12)  # type: ignore[arg-type]
            generator = Generator(pair, PROMPT, params)
            generator.start()
            while not generator.done:
                generator.commit(generator.draft_and_verify())
            texts.add(tuple(generator.output))
        assert len(texts) == 1
