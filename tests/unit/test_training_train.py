"""Training: it learns, it can be killed at any time, it refuses what does not fit, and what it exports loads."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddscope.engine.config import read_drafter_config
from ddscope.engine.errors import EngineError
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import load_pair
from ddscope.engine.training import train as train_module
from ddscope.engine.training.checkpoint import CHECKPOINT, LOG
from ddscope.engine.training.muon import Muon
from ddscope.engine.training.shards import HELD_OUT
from ddscope.engine.training.train import Stopped, Trainer, train
from tests.engine_models import drafter_config, drafter_tensors, write_folder
from tests.unit.training_support import Silent, chat_target, train_options, written


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_target(tmp_path_factory.mktemp("train") / "target")


@pytest.fixture(scope="module")
def data(target: Path) -> Path:
    return written(target, target.parent / "data", sequences=40).folder


def log_of(run: Path) -> list[dict[str, Any]]:
    """Lines of the log without their times."""
    lines = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize(("muon", "lr"), [(False, 1e-2), (True, 3e-2)])
def test_the_loss_falls(target: Path, data: Path, tmp_path: Path, muon: bool, lr: float) -> None:
    train(train_options(target, data, tmp_path / "run", steps=50, lr=lr, log_every=10, muon=muon), Silent())
    log = log_of(tmp_path / "run")
    assert [line["step"] for line in log] == list(range(10, 51, 10))
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    assert log[-1]["loss"] < math.log(16), "no better than guessing among 16 tokens"
    assert log[-1]["tau"] > log[0]["tau"] + 0.1
    assert all(line["tau_on_policy"] >= 1 for line in log)
    assert log[-1]["lr"] < log[0]["lr"]


def test_it_learns_in_bfloat16_as_well(target: Path, data: Path, tmp_path: Path) -> None:
    """What runs on a GPU: autocast, logits in bfloat16, float32 weights. Compared with the same steps in float32."""
    logs = []
    for dtype in ("float32", "bfloat16"):
        options = {"steps": 8, "lr": 5e-3, "log_every": 2, "kl": 0.5, "dtype": dtype}
        folder = train(train_options(target, data, tmp_path / dtype, **options), Silent())
        state = torch.load(tmp_path / dtype / CHECKPOINT, weights_only=True)["model"]
        assert {tensor.dtype for tensor in state.values()} == {torch.float32}
        assert read_drafter_config(folder).block_size == 5
        logs.append([line["loss"] for line in log_of(tmp_path / dtype)])
    for exact, rounded in zip(*logs, strict=True):
        assert abs(rounded - exact) < 0.1 * exact
    assert logs[1] != logs[0]


def test_a_share_of_the_loss_can_go_to_the_targets_distribution(target: Path, data: Path, tmp_path: Path) -> None:
    options = {"steps": 40, "lr": 5e-3, "log_every": 10, "kl": 1.0, "kl_topk": 16}
    train(train_options(target, data, tmp_path / "run", **options), Silent())
    log = log_of(tmp_path / "run")
    # Towards all 16 tokens the loss is a cross-entropy with the target's own entropy as its floor.
    assert log[-1]["loss"] < log[0]["loss"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("muon", [False, True])
def test_graphs_learn_what_is_learned_without_them(tmp_path: Path, muon: bool) -> None:
    """With rates that change from step to step."""
    target = chat_target(tmp_path / "target", head_dim=16)
    data = written(target, tmp_path / "data", sequences=40).folder
    logs = []
    for graphs in (False, True):
        options = {"device": "cuda", "dtype": "float32", "kl": 0.3, "passes": 3, "log_every": 3, "compile": False}
        options |= {"steps": 30, "lr": 1e-2, "graphs": graphs, "muon": muon, "warmup": 10}
        train(train_options(target, data, tmp_path / str(graphs), **options), Silent())
        logs.append([line["loss"] for line in log_of(tmp_path / str(graphs))])
    assert logs[0] == pytest.approx(logs[1], rel=0.02)
    assert logs[0][-1] < logs[0][0]


@pytest.mark.parametrize(("cut", "muon"), [(1, False), (3, True)])
def test_a_stopped_run_goes_on_bit_for_bit(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, muon: bool
) -> None:
    options = {"muon": muon, "kl": 0.3, "passes": 3, "steps": 18, "log_every": 3, "checkpoint_every": 6}
    whole = train(train_options(target, data, tmp_path / "whole", **options), Silent())
    real = Trainer.train_batch
    batches = 0

    def stopping(self: Trainer, share: float) -> None:
        nonlocal batches
        real(self, share)
        batches += 1
        if batches == cut:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_batch", stopping)
        with pytest.raises(Stopped, match=f"Stopped after {3 * cut} steps; the same command goes on"):
            train(train_options(target, data, tmp_path / "cut", **options), Silent())
    assert not (tmp_path / "cut" / "drafter").exists()
    resumed = train(train_options(target, data, tmp_path / "cut", **options), Silent())
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    states = [torch.load(tmp_path / run / CHECKPOINT, weights_only=True) for run in ("cut", "whole")]
    for mine, theirs in zip(*(state["model"].values() for state in states), strict=True):
        assert torch.equal(mine, theirs)


KILLED = """
import os, signal, sys
from ddscope.engine.training.__main__ import main
from ddscope.engine.training.train import Trainer

real = Trainer.train_batch

def killing(self, share):
    real(self, share)
    if self.step == 16:
        os.kill(os.getpid(), signal.SIGKILL)

Trainer.train_batch = killing
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_process_goes_on_bit_for_bit(target: Path, data: Path, tmp_path: Path) -> None:
    """SIGKILL between checkpoints: what came after the last one is done again, the log included."""
    changes = {"steps": 24, "checkpoint_every": 10}
    whole = train(train_options(target, data, tmp_path / "whole", **changes), Silent())
    options = train_options(target, data, tmp_path / "killed", **changes)
    names = ("target", "data", "run", "steps", "layers", "block", "features", "batch", "anchors", "max_tokens")
    names += ("warmup", "log_every", "checkpoint_every", "device")
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "train", *words], capture_output=True, text=True, env=environment, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert torch.load(tmp_path / "killed" / CHECKPOINT, weights_only=True)["step"] == 10
    assert log_of(tmp_path / "killed")[-1]["step"] == 14
    resumed = train(options, Silent())
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


def test_a_step_of_muon_has_equal_singular_values_and_the_size_of_adamws() -> None:
    """Wide, tall and equal matrices, two of them together; what the step is made of points where the gradient does."""
    torch.manual_seed(0)
    matrices = [torch.zeros(shape).requires_grad_() for shape in ((8, 24), (24, 8), (8, 24), (6, 6))]
    grads = [
        torch.randn(8, 3) @ torch.randn(3, 24) + 0.05 * torch.randn(8, 24),
        *(torch.randn(m.shape) for m in matrices[1:]),
    ]
    for matrix, grad in zip(matrices, grads, strict=True):
        matrix.grad = grad.clone()
    Muon(matrices, lr=0.1, weight_decay=0.0).step()
    for matrix, grad in zip(matrices, grads, strict=True):
        singular = torch.linalg.svdvals(matrix.detach()) / (0.1 * 0.2 * max(matrix.shape) ** 0.5)
        assert singular.max() < 1.3 and singular.min() > 0.3
        assert (matrix.detach() * grad).sum() < 0
        assert 0.5 < matrix.detach().square().mean().sqrt() / (0.1 * 0.2) < 1.5


def test_what_is_exported_is_a_drafter_of_the_engine(target: Path, data: Path, tmp_path: Path) -> None:
    folder = train(train_options(target, data, tmp_path / "run"), Silent(), command="python -m … train --data D")
    pair = load_pair(target, folder)
    generator = Generator(pair, [0, 1, 5, 6, 2, 3], Params(max_new_tokens=12))
    generator.start()
    while not generator.done:
        generator.commit(generator.draft_and_verify())
    state = torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)["model"]
    exported = load_file(folder / "model.safetensors")
    assert exported.keys() == state.keys()
    for name, tensor in exported.items():
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, state[name].bfloat16()), name
    config = read_drafter_config(folder)
    assert (config.block_size, config.stack.layers, config.target_layer_ids) == (5, 2, (0, 1))
    assert (folder / HELD_OUT).read_bytes() == (data / HELD_OUT).read_bytes()
    card = (folder / "README.md").read_text()
    assert "python -m … train --data D" in card and "Not evaluated yet" in card
    conversations = json.loads((folder / "training.json").read_text())["data"]["sequences"]
    assert f": {conversations} conversations, " in card and "12 steps" in card


def test_training_can_start_from_a_drafter(target: Path, data: Path, tmp_path: Path) -> None:
    config = drafter_config(num_hidden_layers=1)
    start = write_folder(tmp_path / "start", config, drafter_tensors(config))
    options = train_options(target, data, tmp_path / "run", start_from=start, steps=1, lr=0.0, passes=1)
    exported = load_file(train(options, Silent()) / "model.safetensors")
    for name, tensor in load_file(start / "model.safetensors").items():
        assert torch.equal(exported[name], tensor.bfloat16()), name


def test_seconds_end_a_run(target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the test's: every look at it is half a second later."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(train_module.time, "monotonic", lambda: next(ticks) / 2)
    train(train_options(target, data, tmp_path / "run", seconds=5.0), Silent())
    state = torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)
    assert state["seconds"] >= 5 and 0 < state["step"] <= 40


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_megabytes": 0.001}, r"would take 0\.0 MB in bfloat16, more than --max-megabytes 0\.001"),
        ({"features": 9}, "has 4 layers, so --features cannot be 9"),
        ({"heads": 3, "kv_heads": 2}, "3 --heads are no multiple of 2 --kv-heads"),
        ({"mask_token": 99}, "--mask-token 99 is outside the target's vocabulary of 16"),
        ({"batch": 4000}, "fewer than one batch of 4000"),
        ({"lr": float("inf")}, "The loss is nan at step"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    target: Path, data: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        train(train_options(target, data, tmp_path / "run", **changes), Silent())


def test_a_run_keeps_its_options(target: Path, data: Path, tmp_path: Path) -> None:
    train(train_options(target, data, tmp_path / "run", steps=4), Silent())
    with pytest.raises(EngineError, match=r"was begun with lr 0\.003, not 0\.002"):
        train(train_options(target, data, tmp_path / "run", steps=4, lr=2e-3), Silent())
    (tmp_path / "run" / CHECKPOINT).write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(EngineError, match="is no readable checkpoint"):
        train(train_options(target, data, tmp_path / "run", steps=4), Silent())


def test_data_of_another_target_is_refused(data: Path, tmp_path: Path) -> None:
    other = chat_target(tmp_path / "other", family="qwen3")
    with pytest.raises(EngineError, match="was written by another target, target"):
        train(train_options(other, data, tmp_path / "run"), Silent())
