"""A drafter for the real target, in small: the target writes, a drafter is trained and measured in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import SHIPPED_DRAFT, Pair, load_pair
from ddscope.engine.training.__main__ import main
from ddscope.engine.training.data import write_data
from ddscope.engine.training.options import DataOptions
from ddscope.engine.training.progress import progress
from ddscope.engine.training.shards import HELD_OUT, DataFolder, read_held_out

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "data"
    few = {"sequences": 2, "batch": 2, "prompt_tokens": 12, "answer_tokens": 12, "greedy_share": 1.0}
    write_data(DataOptions(out=folder, device="cpu", seed=1, **few), progress())
    return folder


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair()


def test_the_target_writes_chats_and_answers_them_as_the_engine_does(data: Path, pair: Pair) -> None:
    folder = DataFolder.open(data)
    assert folder.count("sequences") >= 2
    assert read_held_out(data / HELD_OUT) == read_held_out(SHIPPED_DRAFT / HELD_OUT)
    for ids, prompt in folder.read_all().each():
        message = pair.tokenizer.decode(ids[:prompt]).split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert len(message.split()) >= 3
        text = pair.tokenizer.chat_text(message)
        assert text == pair.tokenizer.decode(ids[:prompt])
        generator = Generator(pair, ids[:prompt], Params("autoregressive", max_new_tokens=12))
        generator.start()
        while not generator.done:
            generator.commit(generator.draft_and_verify())
        assert ids[prompt:] == generator.output


def test_the_shipped_drafter_is_trained_further_and_measured(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first loss says that features, blocks and labels mean what they meant when it was made."""
    words = ["--steps", "6", "--passes", "3", "--batch", "2", "--anchors", "4", "--log-every", "3", "--warmup", "0"]
    words += ["--start-from", str(SHIPPED_DRAFT), "--lr", "5e-4", "--kl", "0.5", "--device", "cpu"]
    assert main(["train", "--data", str(data), "--run", str(tmp_path), *words]) == 0
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [3, 6]
    assert log[0]["loss"] < 6, "a random drafter starts above 10"
    assert log[-1]["loss"] < 0.9 * log[0]["loss"]

    drafter = tmp_path / "drafter"
    same = [
        "--draft",
        str(drafter),
        "--count",
        "2",
        "--max-new-tokens",
        "12",
        "--budgets",
        "7",
        "--device",
        "cpu",
    ]
    scores = {}
    for batch in ("1", "2"):
        file = tmp_path / f"{batch}.json"
        assert main(["evaluate", *same, "--batch", batch, "--json", str(file), "--card"]) == 0
        scores[batch] = [(s["emitted"], s["steps"], s["curve"]) for s in json.loads(file.read_text())["scores"]]
    assert scores["1"] == scores["2"]
    assert all(emitted == 22 and steps < 18 for emitted, steps, _ in scores["1"])
    assert "| DDTree 7 |" in (drafter / "README.md").read_text()
    assert "DDTree 7" in capsys.readouterr().out
