"""What each deliberate fault does to the real engine: acceptance, the depth curve, and whether the text is still right.

The bounds are loose forms of what was measured on these four prompts × 48 tokens in float32 at budget 15. Two groups
matter: faults that kill acceptance and leave the text, and faults that leave acceptance and ruin the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from ddscope.engine.errors import DraftShapeError
from ddscope.engine.faults import WHAT, Faults
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import SHIPPED_DRAFT, Pair, load_pair

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

LINES = (SHIPPED_DRAFT / "heldout-prompts.jsonl").read_text("utf-8").splitlines()
PROMPTS = [json.loads(line)["prompt_ids"] for line in LINES[:4]]
TOKENS = 48


@dataclass(frozen=True)
class Run:
    """tau: emitted tokens a step; curve: share of steps with at least 1 … 5 accepted; texts: one a prompt."""

    tau: float
    curve: list[float]
    texts: list[list[int]]
    nonfinite: int


def run(pair: Pair, algorithm: str = "ddtree", prompts: list[list[int]] = PROMPTS) -> Run:
    texts, accepted, nonfinite = [], [], 0
    for prompt in prompts:
        params = Params(algorithm=algorithm, budget=15, max_new_tokens=TOKENS)  # type: ignore[arg-type]
        generator = Generator(pair, prompt, params)
        generator.start()
        while not generator.done:
            result = generator.draft_and_verify()
            accepted.append(result.accepted)
            nonfinite += result.nonfinite["target"]
            generator.commit(result)
        texts.append(generator.output)
    tau = sum(len(text) - 1 for text in texts) / len(accepted)
    curve = [sum(count >= depth for count in accepted) / len(accepted) for depth in range(1, 6)]
    return Run(tau, curve, texts, nonfinite)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair()


@pytest.fixture(scope="module")
def plain(pair: Pair) -> list[list[int]]:
    return run(pair, "autoregressive").texts


def test_no_fault_accepts_well_and_writes_the_right_text(pair: Pair, plain: list[list[int]]) -> None:
    sound = run(pair)
    assert sound.texts == plain
    assert 3.6 < sound.tau < 4.4
    assert sound.curve[0] > 0.75
    assert sound.curve == sorted(sound.curve, reverse=True)
    assert 0.3 < sound.curve[2] < 0.6


@pytest.mark.parametrize(("name", "most"), [("tiled-layer", 0.65), ("reversed-layers", 0.6), ("mask-token", 0.7)])
def test_wrong_inputs_of_the_drafter_kill_acceptance_and_leave_the_text(
    pair: Pair, plain: list[list[int]], name: str, most: float
) -> None:
    broken = run(pair.with_faults(Faults(name)))
    assert broken.texts == plain
    assert 1.3 < broken.tau < 1.8
    assert 0.3 < broken.curve[0] < most
    assert broken.curve[1] < 0.12
    assert broken.curve[2] < 0.05


@pytest.mark.parametrize("name", ["verify-position", "sibling-leak", "causal-mask"])
def test_a_wrong_mask_or_position_leaves_acceptance_and_ruins_the_text(
    pair: Pair, plain: list[list[int]], name: str
) -> None:
    broken = run(pair.with_faults(Faults(name)))
    assert 3.2 < broken.tau < 4.4  # nothing to be seen here
    assert broken.curve[0] > 0.8
    assert sum(text == right for text, right in zip(broken.texts, plain, strict=True)) == 0


@pytest.mark.parametrize(("name", "low", "high"), [("flat-positions", 2.5, 3.4), ("no-compaction", 2.9, 3.7)])
def test_a_wrong_cache_or_flat_positions_cost_some_acceptance_and_ruin_the_text(
    pair: Pair, plain: list[list[int]], name: str, low: float, high: float
) -> None:
    broken = run(pair.with_faults(Faults(name)))
    assert low < broken.tau < high
    assert sum(text == right for text, right in zip(broken.texts, plain, strict=True)) == 0


def test_a_nan_in_the_final_norm_repeats_token_zero_with_and_without_drafting(pair: Pair) -> None:
    broken = pair.with_faults(Faults("nan-norm"))
    for algorithm in ("ddtree", "autoregressive"):
        ran = run(broken, algorithm, PROMPTS[:1])
        assert ran.texts == [[0] * TOKENS]
        assert ran.tau == 1
        assert ran.nonfinite >= 49_152 * (TOKENS - 1)


def test_the_final_layer_alone_does_not_fit_and_the_error_says_so(pair: Pair) -> None:
    generator = Generator(pair.with_faults(Faults("final-layer-only")), PROMPTS[0], Params(budget=15))
    generator.start()
    assert generator.feature_layers() == (1, 1)
    with pytest.raises(DraftShapeError, match="fc takes 5 layers × 576 = 2880, and 1 arrived") as caught:
        generator.draft_and_verify()
    assert (caught.value.got, caught.value.expected) == ([len(PROMPTS[0]), 576], [None, 2880])
    assert [(t["shape"], t["expect"], t["ok"]) for t in caught.value.tensors] == [
        ([len(PROMPTS[0]), 576], [None, 2880], False)
    ]


def test_what_is_in_force_differs_from_the_checkpoint_only_where_the_fault_is(pair: Pair) -> None:
    for name in (None, *WHAT):
        broken = pair.with_faults(Faults(name))
        ours, theirs = broken.drafter_in_force(), broken.drafter_checkpoint()
        changed = {key for key in theirs if ours[key] != theirs[key]}
        want = {"mask-token": {"mask_token_id"}, "reversed-layers": {"target_layer_ids"}}.get(name or "", set())
        assert changed == want
        assert (broken.fault is None) == (name is None)
    assert pair.with_faults(Faults("mask-token")).with_faults(Faults()).drafter_in_force() == pair.drafter_checkpoint()


def test_every_fault_is_covered_here() -> None:
    covered = {"tiled-layer", "reversed-layers", "mask-token", "verify-position", "sibling-leak", "causal-mask"}
    covered |= {"flat-positions", "no-compaction", "nan-norm", "final-layer-only"}
    assert covered == set(WHAT)
