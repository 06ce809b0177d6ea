"""The target writes conversations: what a row is, that batches are the target's own decoding, shards, resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ddscope.engine.errors import EngineError
from ddscope.engine.target import Target
from ddscope.engine.tokenizer import Tokenizer
from ddscope.engine.training import data as data_command
from ddscope.engine.training.batches import Batches
from ddscope.engine.training.data import prompt_key, write_data
from ddscope.engine.training.forward import BatchTarget
from ddscope.engine.training.shards import HELD_OUT, MANIFEST, DataFolder, pack, read_held_out
from ddscope.engine.training.writing import Writer, Written, chat_frame
from tests.engine_models import target_config, target_tensors, write_folder, write_tokenizer
from tests.unit.training_support import EOS, Silent, chat_target, data_options, load, written

CPU = torch.device("cpu")
BEFORE, AFTER = [0, 1], [2, 3]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_target(tmp_path_factory.mktemp("data") / "target")


def write(target: Path, temperatures: list[float], seed: int = 0, prompt: int = 9, answer: int = 20) -> list[Written]:
    writer = Writer(
        load(target), chat_frame(Tokenizer(target), frozenset({EOS})), len(temperatures), prompt, answer, graphs=False
    )
    return writer.write(torch.Generator().manual_seed(seed), 1.5, torch.tensor(temperatures))


def test_the_frame_is_the_templates(target: Path) -> None:
    frame = chat_frame(Tokenizer(target), frozenset({EOS}))
    assert (frame.before, frame.after, frame.ends) == (BEFORE, AFTER, [2, EOS])


def test_a_conversation_is_the_template_around_what_the_target_wrote(target: Path) -> None:
    texts = write(target, [1.2] * 40)
    assert len(texts) == 40
    lengths = {len(text.message) for text in texts}
    assert len(lengths) > 3, "the messages should end at different places"
    for text in texts:
        assert text.ids[: text.prompt] == [*BEFORE, *text.message, *AFTER]
        assert not {2, EOS} & set(text.message) and len(text.message) <= 9
        answer = text.ids[text.prompt :]
        assert EOS not in answer[:-1]
        assert len(answer) == 20 or answer[-1] == EOS
    assert {text.ids[-1] == EOS for text in texts} == {True, False}


def test_greedy_answers_are_the_engines_plain_decoding(target: Path) -> None:
    """Rows at different places, beside rows that draw, write what the engine's decoder writes alone."""
    decoder = Target.load(target, torch.float32, CPU)
    texts = write(target, [0.0, 1.0] * 6)
    greedy = [text for text in texts if text.temperature == 0]
    assert len(greedy) == 6
    for text in greedy:
        cache = decoder.new_cache(64)
        token = int(decoder.read(text.ids[: text.prompt], cache).logits[-1].argmax())
        answer = [token]
        while len(answer) < 20 and token != EOS:
            token = int(decoder.read([token], cache).logits[-1].argmax())
            answer.append(token)
        assert text.ids[text.prompt :] == answer


def test_sampled_tokens_follow_the_targets_distribution(target: Path) -> None:
    """The first token of many messages, against the softmax at that temperature."""
    count = 4000
    frame = chat_frame(Tokenizer(target), frozenset({EOS}))
    model = load(target)
    writer = Writer(model, frame, count, 1, 2, graphs=False)
    writer.write(torch.Generator().manual_seed(1), 1.5, torch.zeros(count))
    probabilities = (model.logits(model.read(torch.tensor([BEFORE])).last[0, -1]) / 1.5).softmax(-1)
    seen = torch.bincount(writer._out[:, len(BEFORE)], minlength=16) / count
    probabilities[2] += probabilities[EOS]  # an end of text ends the message as well
    probabilities[EOS] = 0
    assert (seen - probabilities).abs().max() < 4 * (0.25 / count) ** 0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_write_what_is_written_without_them(target: Path) -> None:
    frame = chat_frame(Tokenizer(target), frozenset({EOS}))
    model = BatchTarget.load(target, torch.float32, torch.device("cuda"))
    texts = []
    for graphs in (False, True):
        writer = Writer(model, frame, 32, 40, 90, graphs=graphs)  # three extents of the cache
        for seed in (1, 2):
            draws = torch.Generator("cuda").manual_seed(seed)
            texts.append(writer.write(draws, 1.0, torch.tensor([0.0, 0.8] * 16, device="cuda")))
    assert texts[:2] == texts[2:]


def test_equal_seeds_write_equal_texts(target: Path) -> None:
    assert write(target, [0.7] * 8, seed=4) == write(target, [0.7] * 8, seed=4)
    assert write(target, [0.7] * 8, seed=4) != write(target, [0.7] * 8, seed=5)


def test_data_goes_on_where_it_was_cut_off(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written(target, tmp_path / "whole", sequences=60)
    assert whole.count("sequences") >= 60 and whole.shards >= 4
    calls = 0
    real = data_command._Filter.take

    def cut(self: object, texts: list[Written]) -> list[Written]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return real(self, texts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(data_command._Filter, "take", cut)
        with pytest.raises(KeyboardInterrupt):
            written(target, tmp_path / "cut", sequences=60)
    half = DataFolder.open(tmp_path / "cut")
    assert 0 < half.shards < whole.shards
    resumed = written(target, tmp_path / "cut", sequences=60)
    for name in sorted(path.name for path in (tmp_path / "whole").iterdir()):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert resumed.count("tokens") == whole.count("tokens")


def test_more_can_be_asked_for_later(target: Path, tmp_path: Path) -> None:
    first = written(target, tmp_path / "data", sequences=5)
    shard = (tmp_path / "data" / "shard-00000.safetensors").read_bytes()
    more = written(target, tmp_path / "data", sequences=first.count("sequences") + 1)
    assert more.shards == first.shards + 1
    assert (tmp_path / "data" / "shard-00000.safetensors").read_bytes() == shard


def test_held_out_prompts_are_not_in_the_data(target: Path, tmp_path: Path) -> None:
    """A short message is drawn again and again, so that held-out ones do come up."""
    folder = written(target, tmp_path / "data", sequences=80, prompt_tokens=3, min_prompt=2, held_out=40)
    held = read_held_out(tmp_path / "data" / HELD_OUT)
    assert len(held) == 40 and len({prompt_key(prompt.text) for prompt in held}) == 40
    assert folder.count("held_out") > 0, "no held-out prompt came up: the test shows nothing"
    heads = [tuple(ids[:prompt]) for ids, prompt in folder.read_all().each()]
    assert not {tuple(prompt.ids) for prompt in held} & set(heads)
    assert len(set(heads)) == len(heads), "a prompt is there twice"


def test_held_out_prompts_can_come_from_a_file(target: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"prompt": "efgh", "prompt_ids": [0, 1, 4, 5, 6, 7, 2, 3]}) + "\n")
    written(target, tmp_path / "data", held_out_file=file)
    assert [prompt.text for prompt in read_held_out(tmp_path / "data" / HELD_OUT)] == ["efgh"]


def test_another_seed_does_not_mix_into_a_folder(target: Path, tmp_path: Path) -> None:
    written(target, tmp_path / "data", sequences=5)
    with pytest.raises(EngineError, match=r"was begun with seed 0, not 1; go on with the same options"):
        written(target, tmp_path / "data", sequences=50, seed=1)


def test_a_target_that_repeats_itself_is_given_up(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_command, "_FRUITLESS", 3)
    few = {"prompt_tokens": 1, "min_prompt": 1, "answer_tokens": 4, "min_answer": 3, "batch": 64, "held_out": 1}
    with pytest.raises(EngineError, match=r"wrote nothing new in 3 batches; \d+ conversations are there"):
        written(target, tmp_path / "data", sequences=10_000, **few)


def test_a_broken_shard_is_one_sentence(target: Path, tmp_path: Path) -> None:
    folder = written(target, tmp_path / "data", sequences=5)
    shard = tmp_path / "data" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(EngineError, match="is no readable shard"):
        folder.read_all()
    (tmp_path / "data" / MANIFEST).write_text("{}")
    with pytest.raises(EngineError, match="is no manifest"):
        DataFolder.open(tmp_path / "data")


def test_a_target_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    plain = write_folder(tmp_path / "plain", target_config(), target_tensors(target_config()))
    write_tokenizer(plain)
    with pytest.raises(EngineError, match="has no chat template"):
        write_data(data_options(plain, tmp_path / "data"), Silent())


def test_a_batch_is_a_function_of_its_number() -> None:
    texts = [[10 * n + i for i in range(4 + n)] for n in range(9)]
    data = pack(texts, [2] * 9, [0.0] * 9)
    batches = Batches(data, 3, 64, seed=1, device=CPU)
    assert batches.per_epoch == 3
    rows = []
    for number in range(3):
        batch = batches.batch(number)
        ids, lengths, prompts = batch.ids, batch.lengths, batch.prompts
        assert ids.shape == (3, 32) and prompts.tolist() == [2, 2, 2]
        rows += [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]
        assert not any(row[length:].any() for row, length in zip(ids, lengths.tolist(), strict=True))
    assert sorted(rows) == sorted(texts), "an epoch is every text once"
    again = Batches(data, 3, 64, seed=1, device=CPU)
    for number in (7, 2, 4):
        torch.testing.assert_close(again.batch(number).ids, batches.batch(number).ids)
    assert not torch.equal(batches.batch(0).ids, batches.batch(3).ids), "another epoch has another order"


def test_long_texts_are_cut_and_those_without_an_answer_left_out() -> None:
    data = pack([list(range(1, 31)), list(range(1, 31)), list(range(1, 8))], [5, 19, 2], [0.0] * 3)
    batches = Batches(data, 2, 20, seed=0, device=CPU)
    assert batches.count == 2
    assert sorted(batches.batch(0).lengths.tolist()) == [7, 20]
    with pytest.raises(EngineError, match="fewer than one batch of 3"):
        Batches(data, 3, 20, seed=0, device=CPU)


def test_places_before_answers_are_counted_without_asking() -> None:
    data = pack([list(range(1, 9)), list(range(21, 27))], [3, 4], [0.0] * 2)
    batch = Batches(data, 2, 64, seed=0, device=CPU).batch(0)
    places, begins = batch.before_answers()
    assert batch.answers == 7 == len(places)
    for text in range(2):
        for position in range(int(batch.prompts[text]) - 1, int(batch.lengths[text]) - 1):
            entry = int(begins[text]) + position
            assert places[entry] == text * batch.ids.shape[1] + position
