"""Free-running evaluation: batched decoding writes the engine's texts, scores are counts, the command line refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ddscope.engine.config import read_drafter_config
from ddscope.engine.errors import EngineError
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import load_pair
from ddscope.engine.training import __main__ as command
from ddscope.engine.training.card import FACTS, SCORES, write_card
from ddscope.engine.training.common import find_target
from ddscope.engine.training.evaluate import evaluate, parse_budgets, table
from ddscope.engine.training.export import export
from ddscope.engine.training.freerun import FreeRun
from ddscope.engine.training.model import DrafterModule
from ddscope.engine.training.options import EvaluateOptions
from ddscope.engine.training.shards import HeldOut, write_held_out
from ddscope.engine.training.train import train
from tests.unit.training_support import Silent, chat_pair, load, train_options, written

SCORED = {"prompts": 1, "max_new_tokens": 8, "dtype": "float32", "machine": "a CPU", "command": ""}
SCORED |= {"scores": [{"name": "chain", "tau": 2.5}]}
PROMPTS = [[0, 1, 5, 6, 2, 3], [0, 1, 9, 2, 3], [0, 1, 7, 7, 4, 12, 11, 2, 3], [0, 1, 13, 5, 8, 8, 2, 3]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a drafter trained for it long enough to have something accepted."""
    root = tmp_path_factory.mktemp("evaluate")
    target, _ = chat_pair(root)
    data = written(target, root / "data", sequences=40).folder
    options = train_options(target, data, root / "run", steps=60, passes=6, lr=3e-2, block=6)
    return target, train(options, Silent())


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    write_held_out(path, [HeldOut("…", ids) for ids in PROMPTS])
    return path


@pytest.mark.parametrize("budget", [None, 1, 7, 40])
def test_decoding_together_is_decoding_one_by_one(folders: tuple[Path, Path], budget: int | None) -> None:
    target, draft = folders
    config = read_drafter_config(draft)
    module = DrafterModule(config, 600, torch.device("cpu"))
    module.load(draft)
    together = FreeRun(load(target), module, PROMPTS, 30, budget).run()
    pair = load_pair(target, draft)
    params = Params("dflash" if budget is None else "ddtree", budget or 0, max_new_tokens=30)
    for prompt, text in zip(PROMPTS, together, strict=True):
        generator = Generator(pair, prompt, params)
        generator.start()
        accepted = []
        while not generator.done:
            result = generator.draft_and_verify()
            accepted.append(result.accepted)
            generator.commit(result)
        assert text.output == generator.output
        assert text.accepted == accepted
    counts = [count for text in together for count in text.accepted]
    assert max(counts) > (budget in (None, 40)), "next to nothing was accepted: the test shows little"
    assert len({len(text.accepted) for text in together}) > 1, "all texts took equally many steps"


def test_it_is_measured_in_bfloat16_as_well(folders: tuple[Path, Path]) -> None:
    """As on a GPU. Near-ties may fall otherwise than in float32: τ is close, not equal. Prompts are the drafter's."""
    target, draft = folders
    taus = []
    for dtype in ("float32", "bfloat16"):
        options = EvaluateOptions(
            target=target, draft=draft, budgets="4", batch=3, max_new_tokens=40, device="cpu", dtype=dtype
        )
        scored = evaluate(options, Silent())[0]
        assert scored.emitted > 40, "three prompts were held out"
        taus.append(scored.tau)
    assert taus[0] == pytest.approx(taus[1], rel=0.3)


def test_both_ways_score_the_same(folders: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    target, draft = folders

    def scores(batch: int) -> list[tuple[str, float, int, int, list[float]]]:
        options = EvaluateOptions(
            target=target, draft=draft, prompts=prompts, budgets="chain,4", batch=batch, max_new_tokens=24,
            device="cpu", json=tmp_path / f"{batch}.json",
        )  # fmt: skip
        return [(s.name, s.tau, s.emitted, s.steps, s.curve) for s in evaluate(options, Silent())]

    one, three = scores(1), scores(3)
    assert one == three
    for name, tau, emitted, steps, curve in one:
        assert tau == emitted / steps and name in ("chain", "DDTree 4")
        assert curve == sorted(curve, reverse=True)
    saved = json.loads((tmp_path / "3.json").read_text())
    assert [score["tau"] for score in saved["scores"]] == [tau for _, tau, *_ in three]
    assert (saved["prompts"], saved["max_new_tokens"], saved["dtype"]) == (4, 24, "float32")


def test_the_card_gets_the_scores(folders: tuple[Path, Path], prompts: Path) -> None:
    target, draft = folders
    words = ["evaluate", "--target", str(target), "--draft", str(draft), "--prompts", str(prompts), "--card"]
    assert command.main([*words, "--budgets", "chain,4", "--max-new-tokens", "16", "--device", "cpu"]) == 0
    card = (draft / "README.md").read_text()
    assert "| chain | DDTree 4 |" in card and "4 held-out prompts × at most 16 tokens" in card
    assert "python -m ddscope.engine.training evaluate --target" in card
    assert "Not evaluated" not in card
    before = card
    write_card(draft)
    assert (draft / "README.md").read_text() == before


def test_scores_stay_with_the_weights_that_got_them(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = folders
    data, finished = draft.parent.parent / "data", draft.parent
    (draft / SCORES).write_text(json.dumps(SCORED))
    train(train_options(target, data, finished, steps=60, passes=6, lr=3e-2, block=6), Silent())  # ended: written again
    assert (draft / SCORES).exists() and "| chain |\n|---|\n| 2.50 |" in (draft / "README.md").read_text()
    config = read_drafter_config(draft)
    other = DrafterModule(config, 8, torch.device("cpu"))
    export(draft, other, find_target(target, Silent()), json.loads((draft / FACTS).read_text()))
    assert not (draft / SCORES).exists()
    train(train_options(target, data, finished, steps=60, passes=6, lr=3e-2, block=6), Silent())


def test_a_drafter_of_others_gets_no_card(folders: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    target, draft = folders
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((draft / name).read_bytes())
    with pytest.raises(EngineError, match=f"has no {FACTS}"):
        evaluate(EvaluateOptions(target=target, draft=tmp_path, prompts=prompts, card=True, device="cpu"), Silent())


def test_the_table_is_aligned(folders: tuple[Path, Path], prompts: Path) -> None:
    target, draft = folders
    options = EvaluateOptions(
        target=target, draft=draft, prompts=prompts, budgets="chain,4", max_new_tokens=8, count=2, device="cpu"
    )
    lines = table(evaluate(options, Silent())).splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    assert lines[1].startswith("chain ") and lines[2].startswith("DDTree 4 ")


@pytest.mark.parametrize("text", ["", "chain,", "0", "-3", "tree", "1.5"])
def test_budgets_are_chain_and_whole_numbers(text: str) -> None:
    with pytest.raises(EngineError, match="--budgets takes 'chain' and whole numbers"):
        parse_budgets(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "--out", "D", "--greedy-share", "1.5"], "--greedy-share must be from 0 to 1, not 1.5"),
        (["data", "--out", "D", "--target", "nowhere"], "nowhere has no config.json"),
        (["data", "--out", "D", "--device", "tpu"], "No device 'tpu'; there are cpu and cuda"),
        (["train", "--data", "nowhere", "--run", "R", "--target", "TARGET"], "nowhere has no manifest.json"),
        (["train", "--data", "D", "--run", "R", "--steps", "0"], "--steps must be at least 1, not 0"),
        (["evaluate", "--target", "TARGET", "--prompts", "nowhere"], "nowhere does not exist"),
        (["evaluate", "--target", "TARGET", "--draft", "nowhere"], "does not fit the target's vocabulary of 16"),
    ],
)
def test_bad_input_is_one_sentence(
    folders: tuple[Path, Path],
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main([str(folders[0]) if word == "TARGET" else word for word in words]) == 1
    out, err = capsys.readouterr()
    assert said in err and out == ""
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["data", "train", "evaluate"])
def test_help_has_every_option_with_its_default(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    expected = {
        "data": ["--sequences N", "[60000]"],
        "train": ["--lr X", "[0.003]"],
        "evaluate": ["--count N", "[192]"],
    }
    assert all(word in said for word in expected[name])
