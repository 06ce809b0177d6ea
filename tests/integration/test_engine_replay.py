"""The replay check on the real pair: every fault of mask, position or cache is caught, and a sound engine never is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddscope.engine.faults import Faults
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import SHIPPED_DRAFT, Pair, load_pair
from ddscope.engine.replay import TOLERANCE, ReplayCheck, deepest_path
from tests.engine_models import tiny_pair

LINES = (SHIPPED_DRAFT / "heldout-prompts.jsonl").read_text("utf-8").splitlines()
VERIFY_FAULTS = ["verify-position", "sibling-leak", "causal-mask", "flat-positions", "no-compaction"]
PROMPTS = [json.loads(line)["prompt_ids"] for line in LINES[:16]]


def checks(pair: Pair, prompt: list[int], steps: int, every: int = 1, budget: int = 15) -> list[ReplayCheck]:
    generator = Generator(pair, prompt, Params(algorithm="ddtree", budget=budget, max_new_tokens=512))
    generator.start()
    found = []
    for step in range(steps):
        result = generator.draft_and_verify()
        if step % every == 0:
            found.append(generator.replay_check(result))
        generator.commit(result)
        if generator.done:
            break
    return found


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_sound_engine_stays_far_below_the_tolerance(pair: Pair) -> None:
    worst = 0.0
    for prompt in PROMPTS:
        for check in checks(pair, prompt, steps=9, every=4):
            assert check.ok
            worst = max(worst, check.root_diff, check.tree_diff)
    assert worst < check.tolerance / 20


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_bfloat16_tells_sound_from_broken_too() -> None:
    pair = load_pair(dtype="bfloat16")
    for prompt in PROMPTS[:6]:
        assert all(check.ok for check in checks(pair, prompt, steps=5, every=2))
    for name in VERIFY_FAULTS:
        assert any(not check.ok for check in checks(pair.with_faults(Faults(name)), PROMPTS[0], steps=3))


@pytest.mark.engine
@pytest.mark.parametrize("name", VERIFY_FAULTS)
def test_a_fault_of_the_verify_is_caught_within_a_few_steps(pair: Pair, name: str) -> None:
    for prompt in PROMPTS[:3]:
        found = checks(pair.with_faults(Faults(name)), prompt, steps=4)
        assert any(not check.ok for check in found)
        worst = max(max(check.root_diff, check.tree_diff) for check in found)
        assert worst > 30 * TOLERANCE[pair.target.dtype]


@pytest.mark.engine
def test_the_root_row_tells_a_damaged_cache_from_a_wrong_tree(pair: Pair) -> None:
    # The first step has a sound cache: a wrong mask shows below the root only, and in the root once it was committed.
    leak = checks(pair.with_faults(Faults("sibling-leak")), PROMPTS[0], steps=3)
    assert leak[0].root_diff < leak[0].tolerance < leak[0].tree_diff
    # Without compaction the tree itself is right while the cache is, and the root is wrong from the first gap on.
    lost = checks(pair.with_faults(Faults("no-compaction")), PROMPTS[0], steps=6)
    assert lost[0].ok
    first = next(check for check in lost if not check.ok)
    assert first.root_diff > first.tolerance


@pytest.mark.engine
@pytest.mark.parametrize("name", ["tiled-layer", "reversed-layers", "mask-token"])
def test_faults_of_the_drafter_are_no_business_of_the_replay(pair: Pair, name: str) -> None:
    assert all(check.ok for check in checks(pair.with_faults(Faults(name)), PROMPTS[0], steps=3))


def test_the_check_works_before_and_after_the_commit_and_for_plain_decoding(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path)
    generator = Generator(pair, [1, 2, 3], Params(algorithm="ddtree", budget=12, max_new_tokens=40))
    generator.start()
    while not generator.done:
        result = generator.draft_and_verify()
        before = generator.replay_check(result)
        generator.commit(result)
        assert before.ok
        assert generator.replay_check(result) == before
        assert [row.node for row in before.rows] == deepest_path(result)
        assert [row.depth for row in before.rows] == list(range(max(result.depths) + 1))
        assert before.as_fact()["ok"] is True
        plain = len(generator.output) % 3 == 0
        generator.params = Params(algorithm="autoregressive" if plain else "ddtree", budget=12, max_new_tokens=40)


def test_nan_logits_on_both_sides_are_no_difference(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path).with_faults(Faults("nan-norm"))
    generator = Generator(pair, [1, 2, 3], Params(algorithm="autoregressive", max_new_tokens=4))
    assert generator.start() == 0  # the argmax of NaNs is id 0
    result = generator.draft_and_verify()
    assert generator.replay_check(result).ok
    assert result.nonfinite["target"] == 16
    assert result.target.logprobs == [None]


def test_an_infinite_difference_is_none_in_the_fact_and_not_ok(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path)
    generator = Generator(pair, [1, 2, 3], Params(algorithm="ddtree", budget=3, max_new_tokens=4))
    generator.start()
    result = generator.draft_and_verify()
    result.logits = result.logits.clone()
    result.logits[0, 2] = float("nan")
    fact = generator.replay_check(result).as_fact()
    assert (fact["root_diff"], fact["ok"]) == (None, False)
    assert fact["rows"][0]["diff"] is None
