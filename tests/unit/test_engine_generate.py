"""The generator's edges on tiny random models: ends of the text, limits, changes between steps, draws, refusals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddscope.engine import generate
from ddscope.engine.errors import EngineError
from ddscope.engine.faults import Faults
from ddscope.engine.generate import Generator, Params, StepResult
from ddscope.engine.pair import Pair
from tests.engine_models import VOCAB, target_config, tiny_pair

PROMPT = [3, 1, 4, 1, 5]
TREE = Params(algorithm="ddtree", budget=40, max_new_tokens=30)
PLAIN = Params(algorithm="autoregressive", max_new_tokens=30)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return tiny_pair(tmp_path_factory.mktemp("tiny"))


def steps(generator: Generator) -> Iterator[StepResult]:
    if not generator.output:
        generator.start()
    while not generator.done:
        result = generator.draft_and_verify()
        yield result
        generator.commit(result)


def text(pair: Pair, params: Params, prompt: list[int] | None = None) -> list[int]:
    generator = Generator(pair, prompt or PROMPT, params)
    list(steps(generator))
    return generator.output


def with_eos(pair: Pair, *ids: int) -> Pair:
    target = object.__new__(type(pair.target))
    target.__dict__.update(pair.target.__dict__)
    target.config = replace(pair.target.config, eos_ids=frozenset(ids))
    return replace(pair, target=target)


# -- the same text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_algorithms_and_budgets_write_the_same_text(tmp_path: Path, family: str, temperature: float) -> None:
    pair = tiny_pair(tmp_path, target_config(family, tie_word_embeddings=family == "llama"))
    accepted = 0
    for prompt in ([3, 1, 4], [2, 7, 1, 8, 2, 8], [0]):
        base = Params(algorithm="autoregressive", temperature=temperature, seed=11, max_new_tokens=40)
        want = text(pair, base, prompt)
        assert text(pair, replace(base, algorithm="dflash"), prompt) == want
        assert text(pair, replace(base, algorithm="dflash", draft_rows=3), prompt) == want
        for budget in (0, 1, 7, 40):
            generator = Generator(pair, prompt, replace(base, algorithm="ddtree", budget=budget))
            accepted += sum(step.accepted for step in steps(generator))
            assert generator.output == want
    assert accepted > 20  # trees did carry some of it


def test_the_text_is_what_the_target_alone_would_write(pair: Pair) -> None:
    output = text(pair, TREE)
    whole = PROMPT + output
    logits = pair.target.read(whole, pair.target.new_cache(64), keep=len(output) + 1).logits
    assert logits.argmax(-1).tolist()[:-1] == output


def test_equal_seeds_draw_equal_texts_and_others_do_not(pair: Pair) -> None:
    warm = replace(TREE, temperature=1.0)
    texts = [text(pair, replace(warm, seed=seed)) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len({tuple(t) for t in texts}) == 3


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_text_ends_at_an_end_token_inside_the_tree_and_nothing_after_it_is_emitted(pair: Pair) -> None:
    generator = Generator(pair, PROMPT, TREE)
    # A token that a sound run accepts as the first of several in a step, and has not emitted before.
    end = next(s.emitted[0] for s in steps(generator) if s.accepted and s.emitted[0] not in generator.output)
    ended = Generator(with_eos(pair, end), PROMPT, TREE)
    taken = list(steps(ended))
    assert ended.done == "stop"
    assert ended.output[-1] == end
    assert end not in ended.output[:-1]
    assert (taken[-1].emitted, taken[-1].reason, taken[-1].truncated) == ([end], "stop", True)
    assert len(taken[-1].path) > 1  # the walk went on, the text did not
    assert 1 + sum(len(step.emitted) for step in taken) == len(ended.output)


def test_some_end_token_truncates_a_step(pair: Pair) -> None:
    truncated = 0
    for end in range(VOCAB):
        generator = Generator(with_eos(pair, end), PROMPT, replace(TREE, max_new_tokens=60))
        for step in steps(generator):
            assert step.truncated == (len(step.emitted) < len(step.path))
            truncated += step.truncated
        want = text(with_eos(pair, end), replace(PLAIN, max_new_tokens=60))
        assert generator.output == want
    assert truncated > 0


def test_an_end_token_as_the_first_token_ends_the_request_in_the_prefill(pair: Pair) -> None:
    first = text(pair, PLAIN)[0]
    generator = Generator(with_eos(pair, first), PROMPT, TREE)
    assert generator.start() == first
    assert (generator.output, generator.done) == ([first], "stop")
    with pytest.raises(EngineError, match="has ended"):
        generator.draft_and_verify()


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 30])
def test_no_more_tokens_are_emitted_than_asked_for(pair: Pair, limit: int) -> None:
    generator = Generator(pair, PROMPT, replace(TREE, max_new_tokens=limit))
    taken = list(steps(generator))
    assert generator.output == text(pair, PLAIN)[:limit]
    assert generator.done == "length"
    assert sum(len(step.emitted) for step in taken) == limit - 1
    if taken:
        assert taken[-1].reason == "length"
        assert all(step.reason is None for step in taken[:-1])


def test_a_step_cut_by_the_limit_is_marked_and_counts_only_what_it_emits(pair: Pair) -> None:
    cut = 0
    for limit in range(2, 20):
        last = list(steps(Generator(pair, PROMPT, replace(TREE, max_new_tokens=limit))))[-1]
        assert last.truncated == (len(last.emitted) < len(last.path))
        cut += last.truncated
    assert cut > 0


def test_the_context_of_the_target_is_a_limit_too(tmp_path: Path) -> None:
    small = tiny_pair(tmp_path, target_config(max_position_embeddings=12))
    generator = Generator(small, PROMPT, TREE)
    list(steps(generator))
    assert (len(generator.output), generator.done) == (12 - len(PROMPT), "length")


def test_token_zero_which_is_also_the_mask_id_is_kept(pair: Pair) -> None:
    assert pair.drafter.config.mask_token_id == 0
    outputs = [text(pair, replace(TREE, temperature=1.5, seed=seed)) for seed in range(6)]
    plain = [text(pair, replace(PLAIN, temperature=1.5, seed=seed)) for seed in range(6)]
    assert outputs == plain
    assert any(0 in output[:-1] for output in outputs)


# -- shapes of a step ------------------------------------------------------------------------------------------------


def test_a_step_tells_everything_a_trace_needs(pair: Pair) -> None:
    position = len(PROMPT)
    roots = [text(pair, PLAIN)[0]]
    for step in steps(Generator(pair, PROMPT, replace(TREE, budget=9, topk=4))):
        nodes = len(step.tokens)
        assert (step.base, step.root, step.budget) == (position, roots[-1], 9)
        assert nodes == len(step.parents) == len(step.logprobs) == 9
        assert step.draft is not None
        assert [len(row) for row in step.draft.ids] == [len(row) for row in step.draft.logprobs] == [4] * 5
        assert len(step.draft.logz) == len(step.draft.entropy) == 5
        assert step.positions == [position + depth for depth in step.depths]
        assert len(step.mask) == len(step.target.ids) == len(step.target.logprobs) == len(step.target.gap) == nodes + 1
        assert [len(row) for row in step.target.topk_ids] == [8] * len(step.path)
        assert [row[0] for row in step.target.topk_ids] == [step.target.ids[node] for node in step.path]
        assert [row[0] for row in step.target.topk_logprobs] == pytest.approx(
            [step.target.logprobs[node] for node in step.path], abs=1e-5
        )
        assert all(gap is not None and gap >= 0 for gap in step.target.gap)
        assert set(step.times) == {"draft", "build", "mask", "verify"}
        assert step.nonfinite == {"draft": 0, "target": 0}
        assert [t["name"] for t in step.tensors] == ["draft.target_hidden", "draft.block_hidden", "target.block_mask"]
        assert step.tensors[0]["shape"][1:] == [48]
        assert step.tensors[0]["expect"] == [None, 48]
        assert all(t["ok"] for t in step.tensors)
        position += len(step.path)
        roots.append(step.bonus)


def test_gap_and_log_probability_are_of_the_targets_own_distribution(pair: Pair) -> None:
    generator = Generator(pair, PROMPT, replace(TREE, temperature=1.0, seed=4))
    generator.start()
    step = generator.draft_and_verify()
    logits = step.logits.float()
    exact = logits.log_softmax(-1)
    top = logits.sort(-1, descending=True).values
    assert step.target.gap == pytest.approx((top[:, 0] - top[:, 1]).tolist(), abs=1e-5)
    assert step.target.logprobs == pytest.approx([exact[i, t].item() for i, t in enumerate(step.target.ids)], abs=1e-5)
    assert step.target.ids != logits.argmax(-1).tolist()  # draws, not argmaxes


def test_the_chain_is_as_long_as_the_block_allows(pair: Pair) -> None:
    for step in itertools.islice(steps(Generator(pair, PROMPT, replace(TREE, algorithm="dflash"))), 3):
        assert (step.budget, step.parents) == (5, [0, 1, 2, 3, 4])
    for step in itertools.islice(steps(Generator(pair, PROMPT, replace(TREE, algorithm="dflash", draft_rows=3))), 3):
        assert (step.budget, step.parents) == (2, [0, 1])


@pytest.mark.parametrize("params", [PLAIN, replace(TREE, budget=0)])
def test_plain_decoding_is_a_tree_of_no_nodes_and_drafts_nothing(pair: Pair, params: Params) -> None:
    for step in steps(Generator(pair, PROMPT, params)):
        assert (step.tokens, step.path, step.draft, step.budget) == ([], [0], None, 0)
        assert (step.mask, step.positions) == ([1], [step.base])
        assert step.emitted == [step.bonus]


def test_a_vocabulary_smaller_than_the_candidates_asked_for(pair: Pair) -> None:
    step = next(steps(Generator(pair, PROMPT, replace(TREE, topk=1000, budget=20))))
    assert step.draft is not None
    assert [len(row) for row in step.draft.ids] == [VOCAB] * 5


def test_a_tree_larger_than_all_candidates_is_all_candidates(pair: Pair) -> None:
    step = next(steps(Generator(pair, PROMPT, replace(TREE, budget=200, topk=2, draft_rows=4))))
    assert (len(step.tokens), step.budget) == (2 + 4 + 8, 200)


def test_a_cut_leaves_out_the_unlikely_nodes_and_keeps_the_rest_of_the_tree(pair: Pair) -> None:
    whole = next(steps(Generator(pair, PROMPT, TREE)))
    some = next(steps(Generator(pair, PROMPT, replace(TREE, cut=0.05))))
    likely = [score for score in whole.scores[1:] if score >= math.log(0.05)]
    assert 0 < len(likely) < len(whole.tokens)
    assert (some.tokens, some.budget) == (whole.tokens[: len(likely)], whole.budget)
    assert text(pair, replace(TREE, cut=0.2)) == text(pair, PLAIN)
    assert text(pair, replace(TREE, cut=0.999)) == text(pair, PLAIN)  # mostly the root alone


def test_drafting_a_part_of_the_vocabulary_leaves_the_text_and_says_that_log_z_is_unknown(pair: Pair) -> None:
    part = replace(TREE, draft_vocab=VOCAB // 2)
    for step in steps(Generator(pair, PROMPT, part)):
        assert step.draft is not None
        assert step.draft.logz is None
        assert step.draft.entropy is None
        assert all(token < VOCAB // 2 for row in step.draft.ids for token in row)
    assert text(pair, part) == text(pair, PLAIN)
    all_of_it = next(steps(Generator(pair, PROMPT, replace(TREE, draft_vocab=VOCAB))))
    assert all_of_it.draft is not None
    assert all_of_it.draft.logz is not None


def test_a_drafter_whose_logits_are_no_numbers_drafts_nothing_and_the_text_stays(pair: Pair) -> None:
    drafter = copy(pair.drafter)
    drafter.norm = replace(drafter.norm, weight=torch.full_like(drafter.norm.weight, torch.nan))
    for algorithm in ("ddtree", "dflash"):
        generator = Generator(replace(pair, drafter=drafter), PROMPT, replace(TREE, algorithm=algorithm))
        for step in steps(generator):
            assert step.nonfinite == {"draft": 5 * VOCAB, "target": 0}
            assert step.tokens == []
            assert step.draft is not None
            assert {value for row in step.draft.logprobs for value in row} == {None}
            assert step.draft.logz == [None] * 5
        assert generator.output == text(pair, PLAIN)


def test_one_candidate_that_is_no_number_is_dropped_and_counted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = type(pair.drafter).logits

    def spoiled(self: object, hidden: torch.Tensor, vocab: int | None = None) -> torch.Tensor:
        logits = sound(self, hidden, vocab)  # type: ignore[arg-type]
        logits[0, 3], logits[1, 4] = torch.nan, -torch.inf
        return logits

    monkeypatch.setattr(type(pair.drafter), "logits", spoiled)
    step = next(steps(Generator(pair, PROMPT, replace(TREE, budget=2000, draft_rows=3))))
    assert step.nonfinite["draft"] == 2
    first = {token for token, depth in zip(step.tokens, step.depths[1:], strict=True) if depth == 1}
    second = {token for token, depth in zip(step.tokens, step.depths[1:], strict=True) if depth == 2}
    assert (3 in first, 4 in second, len(first), len(second)) == (False, False, VOCAB - 1, VOCAB - 1)
    assert text(pair, TREE) == text(pair, PLAIN)


def test_a_text_longer_than_the_first_cache_is_the_same_text(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    want = text(pair, replace(PLAIN, max_new_tokens=80))
    monkeypatch.setattr(generate, "FIRST_ROWS", 3)
    assert text(pair, replace(TREE, max_new_tokens=80)) == want


# -- between steps ---------------------------------------------------------------------------------------------------


def test_parameters_may_change_between_steps_and_the_text_stays(pair: Pair) -> None:
    want = text(pair, replace(PLAIN, max_new_tokens=60))
    generator = Generator(pair, PROMPT, replace(PLAIN, max_new_tokens=60))
    changes = itertools.cycle(
        [
            PLAIN,
            PLAIN,
            TREE,
            replace(TREE, algorithm="dflash"),
            replace(TREE, budget=300, topk=9),
            replace(TREE, budget=0),
        ]
    )
    generator.start()
    while not generator.done:
        generator.params = replace(next(changes), max_new_tokens=60)
        generator.commit(generator.draft_and_verify())
    assert generator.output == want


def test_a_step_may_be_verified_again_before_its_commit(pair: Pair) -> None:
    generator = Generator(pair, PROMPT, TREE)
    generator.start()
    first = generator.draft_and_verify()
    generator.params = replace(TREE, budget=5)
    second = generator.draft_and_verify()
    assert first.tokens[:5] == second.tokens
    torch.testing.assert_close(first.logits[:6], second.logits)
    with pytest.raises(EngineError, match="verified last"):
        generator.commit(first)
    generator.commit(second)
    assert generator.output == text(pair, PLAIN)[: len(generator.output)]
    with pytest.raises(EngineError, match="verified last"):
        generator.commit(second)


def test_a_pending_step_waits_for_its_commit(pair: Pair) -> None:
    generator = Generator(pair, PROMPT, TREE)
    generator.start()
    assert generator.pending is None
    result = generator.draft_and_verify()
    assert generator.pending is result
    assert len(generator.output) == 1
    assert generator.commit(result) == result.emitted
    assert generator.pending is None
    assert result.times["commit"] >= 0


def test_feature_layers_counts_the_layers_that_differ(pair: Pair) -> None:
    for name, want in ((None, (2, 2)), ("tiled-layer", (2, 1)), ("final-layer-only", (1, 1))):
        generator = Generator(pair.with_faults(Faults(name)), PROMPT, TREE)
        assert generator.feature_layers() == (0, 0)
        generator.start()
        assert generator.feature_layers() == want


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty"),
        ([3, VOCAB], f"token {VOCAB}, outside"),
        ([-1], "token -1"),
        ([1] * 512, "512 tokens; the target takes 511"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused(pair: Pair, prompt: list[int], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        Generator(pair, prompt, TREE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"algorithm": "eagle"}, "there are autoregressive, dflash, ddtree"),
        ({"budget": -1}, "budget must be at least 0"),
        ({"topk": 0}, "topk must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"draft_rows": 1}, "draft_rows must be at least 2"),
        ({"draft_vocab": 0}, "draft_vocab must be at least 1"),
        ({"cut": 1.0}, "cut is a probability"),
        ({"cut": -0.1}, "cut is a probability"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_a_parameter_outside_its_range_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        replace(TREE, **change)


def test_a_step_before_the_start_and_a_second_start_are_refused(pair: Pair) -> None:
    generator = Generator(pair, PROMPT, TREE)
    with pytest.raises(EngineError, match="not been started"):
        generator.draft_and_verify()
    generator.start()
    with pytest.raises(EngineError, match="already been started"):
        generator.start()
