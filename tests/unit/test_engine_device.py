"""The decoder of batches against the generator of one request: same texts, same steps, on tiny random models.

On a CUDA device the same tests run its kernels, as graphs and launch by launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddscope.engine import records
from ddscope.engine.budget import Trust
from ddscope.engine.device.decoder import SLOTS, Decoder
from ddscope.engine.device.generator import DeviceGenerator
from ddscope.engine.device.ladder import LadderBudget, measure_ladder
from ddscope.engine.device.plan import Plan
from ddscope.engine.device.reading import Told
from ddscope.engine.errors import EngineError
from ddscope.engine.generate import Generator, Params, StepResult
from ddscope.engine.pair import Pair, load_pair
from ddscope_kernels import DraftTree, build_tree
from tests.engine_models import drafter_config, target_config, write_pair

CUDA = torch.cuda.is_available()
WAYS = [
    pytest.param("cpu", False, id="cpu", marks=pytest.mark.skipif(CUDA, reason="this process is for the CUDA device")),
    pytest.param("cuda", False, id="cuda", marks=pytest.mark.skipif(not CUDA, reason="no CUDA device")),
    pytest.param("cuda", True, id="graphs", marks=pytest.mark.skipif(not CUDA, reason="no CUDA device")),
]
PROMPTS = [[3, 1, 4, 1, 5], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8, 4], [6]]
TREE = Params(algorithm="ddtree", budget=12, max_new_tokens=24)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target = target_config(request.param, head_dim=16, tie_word_embeddings=request.param == "llama")
    return write_pair(tmp_path_factory.mktemp(request.param), target, drafter_config(head_dim=16))


def pair_on(folders: tuple[Path, Path], device: str) -> Pair:
    return load_pair(*folders, device=device)


def one_by_one(pair: Pair, prompt: list[int], params: Params) -> tuple[Generator, list[StepResult]]:
    generator = Generator(pair, prompt, params)
    generator.start()
    steps = []
    while not generator.done:
        steps.append(generator.draft_and_verify())
        generator.commit(steps[-1])
    return generator, steps


def together(
    decoder: Decoder, prompts: Sequence[list[int]], plan: Plan, limits: Sequence[int], *, ahead: int = 1, seed: int = 0
) -> tuple[list[list[int]], list[list[StepResult]], list[str | None]]:
    """All texts, their steps, and why they ended; `ahead` steps are launched before one is read."""
    temperature = 0.8 if plan.sampled else 0.0
    texts, reasons = [], []
    for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        token, reason = decoder.load(place, prompt, max_new_tokens=limit, temperature=temperature, seed=seed + place)
        texts.append([token])
        reasons.append(reason)
    steps: list[list[StepResult]] = [[] for _ in prompts]
    while not all(reasons):
        while decoder.waiting < ahead:
            decoder.launch(plan)
        take(decoder.collect(), texts, reasons, steps)
    while decoder.waiting:
        told = decoder.collect()
        assert not any(told.emitted(place) for place in range(len(prompts)))  # nothing is emitted behind the ends
    return texts, steps, reasons


def take(told: Told, texts: list[list[int]], reasons: list[str | None], steps: list[list[StepResult]]) -> None:
    for place in range(len(texts)):
        if reasons[place] is None:
            texts[place] += told.emitted(place)
            reasons[place] = told.reason(place)
            if told.plan.traced:
                steps[place].append(told.result(place, told.plan.budget))


def assert_same_step(mine: StepResult, other: StepResult) -> None:
    exact = ("base", "root", "tokens", "parents", "depths", "positions", "mask", "path", "bonus", "emitted", "reason",
             "truncated", "nonfinite")  # fmt: skip
    for name in exact:
        assert getattr(mine, name) == getattr(other, name), name
    assert mine.target.ids == other.target.ids
    near = {"rel": 1e-3, "abs": 1e-3}
    assert mine.target.logprobs == pytest.approx(other.target.logprobs, **near)
    assert mine.target.gap == pytest.approx(other.target.gap, **near)
    assert mine.target.topk_ids == other.target.topk_ids
    assert mine.logprobs == pytest.approx(other.logprobs, **near)
    if other.draft is None or mine.draft is None:
        assert mine.draft is other.draft
        return
    assert mine.draft.ids == [row[: len(mine.draft.ids[0])] for row in other.draft.ids]
    assert mine.draft.logz == pytest.approx(other.draft.logz, **near)
    assert mine.draft.entropy == pytest.approx(other.draft.entropy, **near)


@pytest.mark.parametrize(("device", "graphs"), WAYS)
@pytest.mark.parametrize("algorithm", ["autoregressive", "dflash", "ddtree"])
def test_a_batch_decodes_as_its_requests_do_alone(folders, device: str, graphs: bool, algorithm: str) -> None:
    pair = pair_on(folders, device)
    limits = [24, 9, 17, 1]
    decoder = Decoder(pair, requests=len(PROMPTS), rows=64, most=16, graphs=graphs)
    plan = Plan.of(replace(TREE, algorithm=algorithm), pair.drafter.config)
    texts, steps, reasons = together(decoder, PROMPTS, plan, limits)
    accepted = 0
    for place, (prompt, limit) in enumerate(zip(PROMPTS, limits, strict=True)):
        generator, alone = one_by_one(pair, prompt, replace(TREE, algorithm=algorithm, max_new_tokens=limit))
        assert texts[place] == generator.output
        assert reasons[place] == generator.done
        assert len(steps[place]) == len(alone)
        for mine, other in zip(steps[place], alone, strict=True):
            assert_same_step(mine, other)
        accepted += sum(step.accepted for step in alone)
    assert accepted > 3 or algorithm == "autoregressive"


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_thirty_two_requests_of_every_length(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    prompts = [[(7 * place + 3 * i) % 16 for i in range(1 + place % 9)] for place in range(32)]
    limits = [1 + 5 * place % 17 for place in range(32)]
    decoder = Decoder(pair, requests=32, rows=64, most=8, graphs=graphs)
    texts, _, _ = together(decoder, prompts, Plan.of(replace(TREE, budget=7), pair.drafter.config), limits)
    for prompt, limit, text in zip(prompts, limits, texts, strict=True):
        assert text == one_by_one(pair, prompt, replace(TREE, max_new_tokens=limit))[0].output


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_a_place_is_used_again_and_steps_may_be_launched_ahead(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    decoder = Decoder(pair, requests=2, rows=64, most=16, graphs=graphs)
    for first, ahead in ((0, 1), (2, SLOTS), (1, 2)):
        prompts = PROMPTS[first : first + 2]
        plan = Plan.of(replace(TREE, budget=5 + first), pair.drafter.config, traced=first != 1)
        texts, _, _ = together(decoder, prompts, plan, [20, 20], ahead=ahead)
        for prompt, written in zip(prompts, texts, strict=True):
            assert written == one_by_one(pair, prompt, replace(TREE, max_new_tokens=20))[0].output


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_draws_are_the_same_for_every_tree(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    decoder = Decoder(pair, requests=2, rows=64, most=16, graphs=graphs)
    warm = replace(TREE, temperature=0.8)
    written = []
    for params in (
        replace(warm, algorithm="autoregressive"),
        replace(warm, algorithm="dflash"),
        warm,
        replace(warm, budget=3, topk=2, draft_rows=4, cut=0.05, draft_vocab=9),
    ):
        plan = Plan.of(params, pair.drafter.config)
        texts, steps, _ = together(decoder, PROMPTS[:2], plan, [20, 20], seed=5)
        written.append(texts)
        for step in (step for one in steps for step in one):
            chosen = dict(zip(step.target.topk_ids[0], step.target.topk_logprobs[0], strict=True))
            if step.target.ids[0] in chosen:
                assert step.target.logprobs[0] == pytest.approx(chosen[step.target.ids[0]], abs=1e-4)
    assert all(texts == written[0] for texts in written)
    assert written[0][0] != written[0][1]


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_an_end_of_text_ends_one_request_and_not_its_neighbours(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    plain = [one_by_one(pair, prompt, replace(TREE, max_new_tokens=24))[0].output for prompt in PROMPTS[:2]]
    end = next(token for token in plain[0][3:] if token not in plain[1][:12])
    config = replace(pair.target.config, eos_ids=frozenset([end]))
    target = object.__new__(type(pair.target))
    target.__dict__.update(pair.target.__dict__ | {"config": config})
    ending = replace(pair, target=target)
    decoder = Decoder(ending, requests=2, rows=64, most=16, graphs=graphs)
    texts, _, reasons = together(decoder, PROMPTS[:2], Plan.of(TREE, pair.drafter.config), [24, 12])
    assert texts[0] == plain[0][: plain[0].index(end) + 1]
    assert texts[1] == plain[1][:12]
    assert reasons == ["stop", "length"]


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_a_step_becomes_a_record(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    decoder = Decoder(pair, requests=1, rows=64, most=16, graphs=graphs)
    _, steps, _ = together(decoder, PROMPTS[:1], Plan.of(TREE, pair.drafter.config), [12])
    fields = records.step("r1", 0, steps[0][0], TREE)
    assert fields["draft"]["k"] == 12
    assert len(fields["tree"]["tokens"]) == len(fields["tree"]["mask"]) - 1 == 12


def test_what_does_not_fit_is_refused_in_a_sentence(folders) -> None:
    pair = pair_on(folders, "cpu")
    decoder = Decoder(pair, requests=1, rows=32, most=8)
    with pytest.raises(EngineError, match="do not fit"):
        decoder.load(0, [1] * 20, max_new_tokens=10)
    with pytest.raises(EngineError, match="room for"):
        decoder.launch(Plan.of(TREE, pair.drafter.config))
    with pytest.raises(EngineError, match="auto"):
        Plan.of(replace(TREE, budget="auto"), pair.drafter.config)


# -- one request, as the server has it ---------------------------------------------------------------------------------


def device_steps(generator: DeviceGenerator) -> Iterator[StepResult]:
    generator.start()
    while not generator.done:
        result = generator.draft_and_verify()
        assert generator.draft_and_verify() is result  # again before the commit: the same step
        yield result
        generator.commit(result)
    generator.close()


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_a_generator_of_the_device_tells_the_steps_of_the_other(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    decoder = Decoder(pair, requests=1, rows=64, most=16, graphs=graphs)
    for prompt in PROMPTS:
        generator = DeviceGenerator(decoder, prompt, TREE)
        mine = list(device_steps(generator))
        other, steps = one_by_one(pair, prompt, TREE)
        assert generator.output == other.output
        assert generator.done == other.done
        for a, b in zip(mine, steps, strict=True):
            assert_same_step(a, b)
        assert all(step.graph == graphs for step in mine)
        assert (device == "cuda") == all(step.times.get("total", 0) > 0 for step in mine[1:])


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_parameters_change_behind_the_steps_on_their_way(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    decoder = Decoder(pair, requests=1, rows=96, most=16, graphs=graphs)
    plain = one_by_one(pair, PROMPTS[0], replace(TREE, max_new_tokens=40))[0].output
    generator = DeviceGenerator(decoder, PROMPTS[0], TREE)
    budgets = []
    for number, step in enumerate(device_steps(generator)):
        budgets.append(step.budget)
        if number == 1:
            generator.params = replace(TREE, budget=4, max_new_tokens=40)
        if number == 5:
            generator.params = replace(TREE, algorithm="autoregressive", max_new_tokens=40)
    assert generator.output == plain
    assert budgets[:2] == [12, 12]
    assert budgets.index(4) in (2, 3, 4)
    assert budgets[-1] == 0
    generator = DeviceGenerator(decoder, PROMPTS[0], replace(TREE, algorithm="autoregressive"))
    for number, _ in enumerate(device_steps(generator)):
        if number == 3:
            generator.params = replace(TREE, max_new_tokens=9)
    assert len(generator.output) in (9, 10, 11, 12)  # what was on its way counts before the new limit does
    assert generator.output == plain[: len(generator.output)]


@pytest.mark.parametrize(("device", "graphs"), WAYS)
def test_a_replay_check_compares_what_was_told(folders, device: str, graphs: bool) -> None:
    pair = pair_on(folders, device)
    decoder = Decoder(pair, requests=1, rows=64, most=16, graphs=graphs)
    generator = DeviceGenerator(decoder, PROMPTS[0], TREE)
    for number, step in enumerate(device_steps(generator)):
        check = generator.replay_check(step)
        assert check.ok
        assert len(check.rows) > 1
        if number == 2:
            step.target.logprobs[0] -= 0.5
            assert not generator.replay_check(step).ok
    assert generator.output == one_by_one(pair, PROMPTS[0], TREE)[0].output


def test_auto_takes_the_size_that_pays(folders) -> None:
    pair = pair_on(folders, "cpu")
    decoder = Decoder(pair, requests=1, rows=64, most=16)
    auto = replace(TREE, budget="auto")
    want = one_by_one(pair, PROMPTS[0], TREE)[0].output
    for us, sizes in (([10, 10, 10, 10], {15}), ([10, 1000, 9000, 90000], {3})):
        policy = LadderBudget((3, 7, 15), us)
        generator = DeviceGenerator(decoder, PROMPTS[0], auto, policy)
        steps = list(device_steps(generator))
        assert generator.output == want
        assert {step.budget for step in steps[3:]} == sizes  # the first ones were launched before anything was known
        assert all(step.choice is not None and step.choice.budget == step.budget for step in steps)


def test_a_ladder_believes_what_was_measured_where_rows_are_paid_for_in_tiles() -> None:
    us = {7: 700.0, 15: 740.0, 31: 754.0, 63: 890.0, 127: 1043.0, 255: 1410.0}  # an H200's, and 418 without a draft
    random = torch.Generator().manual_seed(5)
    policy, chosen = LadderBudget(tuple(us), [418.0, *us.values()]), []
    for _ in range(200):
        logits = torch.randn(15, 64, generator=random) * torch.linspace(5, 2, 15)[:, None]
        top = logits.log_softmax(-1).sort(-1, descending=True)
        tree = build_tree(top.values.tolist(), top.indices.tolist(), 255)
        rate = {size: (1 + sum(map(math.exp, tree.scores[1 : size + 1]))) / us[size] for size in us}
        size = policy.choose(tree, 999).budget
        assert rate[size] > 0.97 * max(rate.values())
        policy.observe_step(tree.depths[: size + 1], tree.scores[: size + 1], 0, round(us[size] * 1.06))
        policy.trust = Trust()  # the marginals are right: this is about costs
        chosen.append(size)
    assert chosen.count(31) > 160  # a convex curve below these costs lies at 541 µs there, and at 914 for 127 nodes
    assert policy.cost.curve[31] == pytest.approx(754 * 1.06, rel=0.01)


def test_a_smaller_tree_is_grown_where_a_larger_one_cannot_win() -> None:
    sizes = (7, 15, 31, 63, 127, 255)
    random, grown = torch.Generator().manual_seed(6), []
    for number in range(300):
        steep = 10 ** (torch.rand(1, generator=random).item() * 4 - 3)  # from all sizes at one price to each at its own
        policy = LadderBudget(sizes, [100.0, *(100 + steep * size for size in sizes)])
        policy.trust.observe(range(16), [0.0] * 16, number % 16)
        depths, k = int(torch.randint(1, 16, (1,), generator=random)), 1 + number % 64
        sharp = torch.linspace(6, 1 + number % 4, depths)[:, None]
        top = (torch.randn(depths, k, generator=random) * sharp).log_softmax(-1).sort(-1, descending=True)
        room = 1 + number % 20

        def grow(nodes: int, top=top) -> DraftTree:  # type: ignore[no-untyped-def]
            grown.append(nodes)
            return build_tree(top.values.tolist(), top.indices.tolist(), nodes)

        assert policy.choose_grown(grow, room) == policy.choose(grow(255), room)
    assert 300 < grown.count(255) < 500  # of 600, had it been grown every time
    assert grown.count(63) == 300


def test_measuring_a_ladder_moves_no_request(folders) -> None:
    pair = pair_on(folders, "cpu")
    decoder = Decoder(pair, requests=1, rows=64, most=16)
    generator = DeviceGenerator(decoder, PROMPTS[0], TREE)
    for number, _ in enumerate(device_steps(generator)):
        if number == 1:
            generator.settle()
            assert measure_ladder(decoder, TREE).step_sizes == (7, 15)
    assert generator.output == one_by_one(pair, PROMPTS[0], TREE)[0].output


def test_a_request_is_refused_as_the_generator_refuses_it(folders) -> None:
    pair = pair_on(folders, "cpu")
    decoder = Decoder(pair, requests=1, rows=64, most=16)
    for prompt, words in (([], "empty"), ([99], "vocabulary"), ([1] * 600, "takes")):
        with pytest.raises(EngineError, match=words):
            DeviceGenerator(decoder, prompt, TREE)
    generator = DeviceGenerator(decoder, PROMPTS[0], TREE)
    with pytest.raises(EngineError, match="not been started"):
        generator.draft_and_verify()
