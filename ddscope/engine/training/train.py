"""The command `train`: batches → the target's features → blocks at random and on-policy anchors → one drafter.

The loop asks the device for nothing but the figures of the log, every --log-every steps.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.errors import EngineError
from ddscope.engine.training.anchors import (
    accepted_lengths,
    after_rejection,
    cut_blocks,
    random_anchors,
)
from ddscope.engine.training.batches import Batch, Batches
from ddscope.engine.training.checkpoint import Checkpoint, Run
from ddscope.engine.training.common import Place, TargetFolder, draws, find_target
from ddscope.engine.training.export import export
from ddscope.engine.training.forward import BatchTarget
from ddscope.engine.training.graphed import Graphed
from ddscope.engine.training.loss import Judging, Soft, depth_weights, head_loss, target_soft
from ddscope.engine.training.model import DrafterModule, over_blocks
from ddscope.engine.training.muon import Muon, state_of
from ddscope.engine.training.options import TrainOptions
from ddscope.engine.training.progress import Progress
from ddscope.engine.training.shape import drafter_shape
from ddscope.engine.training.shards import DataFolder

_SOFT_ROWS = 4096
"""Positions whose target logits exist at once."""


class Stopped(EngineError):
    """Training was asked to stop and has saved its state."""


def train(options: TrainOptions, progress: Progress, command: str = "") -> Path:
    """Run the command; the drafter's folder comes back. Raises EngineError for whatever stands in its way."""
    place = Place.of(options.device, options.dtype)
    target = find_target(options.target, progress)
    data = DataFolder.open(options.data)
    if data.made.get("fingerprint") not in (None, target.fingerprint):
        raise EngineError(f"{options.data} was written by another target, {data.made.get('target')}")
    config = drafter_shape(options, target.config)
    run = Run(options.run, _decisive(options, target, place, data))
    progress.at("Loading", 0, 1)
    batches = Batches(data.read_all(), options.batch, options.max_tokens, options.seed, place.device)
    model = BatchTarget.load(target.folder, place.dtype, place.device)
    compile = options.compile and place.device.type == "cuda"
    drafter = DrafterModule(config, batches.width + config.block_size, place.device, compile=compile)
    if compile:
        model.compile()
    trainer = Trainer(options, model, drafter, batches)
    saved = run.load(place.device)
    if saved is not None:
        trainer.restore(saved)
    trainer.run(run, progress)
    facts = _facts(options, target, data, trainer, run, command)
    return export(options.run / "drafter", drafter, target, facts, options.data)


class _Answers(NamedTuple):
    """The target's distribution over the tokens of answers; begins as of `Batch.before_answers`."""

    soft: Soft
    begins: Tensor

    def of(self, positions: Tensor) -> Soft:
        """[B × A, D, K] for tokens at positions [B, A, D]; anything for those behind a text's end."""
        at = (self.begins[:, None, None] + positions - 1).clamp(max=len(self.soft.ids) - 1).flatten(0, 1)
        return Soft(self.soft.ids[at], self.soft.probabilities[at])


class Trainer:
    """One drafter in training. `step` counts optimizer steps; a batch is good for `passes` of them."""

    def __init__(self, options: TrainOptions, target: BatchTarget, drafter: DrafterModule, batches: Batches) -> None:
        self.options, self.target, self.drafter, self.batches = options, target, drafter, batches
        self.step = 0
        self.seconds = 0.0
        if options.start_from is not None:
            drafter.load(options.start_from)
        else:
            drafter.initialise(options.seed)
        self.optimizers = _optimizers(options, drafter, target.device)
        self._weights = depth_weights(drafter.config.block_size, options.decay, target.device)
        self._judging = Judging(options.kl, options.reach, options.deep)
        self._sums = torch.zeros(5, device=target.device)  # loss, accepted, first right; accepted on policy, its count
        self._summed = 0
        self._rate_now = 0.0
        graphs = options.graphs and target.device.type == "cuda"
        self._run: Callable[..., tuple[Tensor, ...]] = Graphed(self._learn) if graphs else self._learn

    def restore(self, saved: Checkpoint) -> None:
        """Go on where a checkpoint was made. Raises EngineError when it is of another shape."""
        try:
            self.drafter.load_state_dict(saved.model)
            for optimizer in self.optimizers:
                optimizer.load_state_dict(saved.optimizer[type(optimizer).__name__])
        except (RuntimeError, ValueError, KeyError) as error:
            raise EngineError(f"The checkpoint does not fit this drafter: {str(error).splitlines()[0]}") from None
        self.step, self.seconds = saved.step, saved.seconds

    def state(self) -> Checkpoint:
        """What `restore` takes."""
        return Checkpoint(self.step, self.seconds, self.drafter.state_dict(), state_of(self.optimizers))

    def run(self, run: Run, progress: Progress) -> None:
        """Train to the end. On SIGINT or SIGTERM the state is saved and Stopped is raised."""
        options = self.options
        began = time.monotonic() - self.seconds
        with _Interrupts() as asked:
            while (share := self._done()) < 1:
                self.train_batch(share)
                self.seconds = time.monotonic() - began
                if self._crossed(options.log_every):
                    line = self._report()
                    run.note(line)
                    note = f"loss {line['loss']:.3f}  chain τ {line['tau']:.3f}"
                    if options.seconds is None:
                        progress.at("Training steps", self.step, options.steps, note)
                    else:
                        progress.at("Training seconds", self.seconds, options.seconds, f"step {self.step:,}  {note}")
                if asked.is_set() or self._crossed(options.checkpoint_every):
                    run.save(self.state())
                if asked.is_set():
                    raise Stopped(f"Stopped after {self.step:,} steps; the same command goes on from there")
        run.save(self.state())

    def train_batch(self, share: float) -> None:
        """All passes over the next batch; share: of the training that is done, which decides the learning rate."""
        options = self.options
        number = self.step // options.passes
        batch = self.batches.batch(number)
        lengths, prompts = batch.lengths, batch.prompts
        generator = draws(self.target.device, options.seed, "anchors", number)
        features, soft = self._read(batch)
        anchors = random_anchors(prompts, lengths, options.anchors, generator)
        follow = round(options.on_policy * options.anchors)
        for turn in range(options.passes):
            accepted = self._optimize(batch, anchors, features, soft, self._rate(share))
            if turn:
                self._sums[3] += accepted[:, :follow].sum()
                self._sums[4] += accepted[:, :follow].numel()
            self.step += 1
            fresh = random_anchors(prompts, lengths, options.anchors, generator)
            onward = after_rejection(anchors, accepted, lengths, fresh)
            anchors = torch.cat([onward[:, :follow], fresh[:, follow:]], dim=1)

    def _read(self, batch: Batch) -> tuple[Tensor, _Answers | None]:
        """The target's features [B, L, layers × hidden], and where asked for its distribution over answers."""
        with torch.no_grad():
            out = self.target.read(batch.ids, self.drafter.config.target_layer_ids)
            if not self.options.kl:
                return out.captured, None
            places, begins = batch.before_answers()
            rows = torch.split(out.last.flatten(0, 1)[places], _SOFT_ROWS)
            parts = [target_soft(self.target.logits(piece), self.options.kl_topk) for piece in rows]
            ids, probabilities = (torch.cat(part) for part in zip(*parts, strict=True))
            return out.captured, _Answers(Soft(ids, probabilities), begins)

    def _optimize(self, batch: Batch, anchors: Tensor, features: Tensor, soft: _Answers | None, rate: float) -> Tensor:
        """One optimizer step; [B, A] accepted drafted tokens come back."""
        config = self.drafter.config
        blocks = cut_blocks(batch.ids, batch.lengths, anchors, config.block_size, config.mask_token_id)
        weights = (self._weights * blocks.valid).flatten(0, 1)
        near = () if soft is None else soft.of(blocks.positions.view(*anchors.shape, -1)[:, :, 1:])
        self._set_rate(rate)
        labels = blocks.labels.flatten(0, 1)
        loss, chosen = self._run(features, blocks.rows, blocks.positions, anchors, labels, weights, *near)
        accepted = accepted_lengths(chosen.view_as(blocks.labels), blocks.labels, blocks.valid)
        self._sums[0] += loss
        self._sums[1] += accepted.float().mean()
        self._sums[2] += (accepted > 0).float().mean()
        self._summed += 1
        return accepted

    def _learn(
        self,
        features: Tensor,
        rows: Tensor,
        positions: Tensor,
        anchors: Tensor,
        labels: Tensor,
        weights: Tensor,
        *near: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """From tensors of fixed shapes to a step of the weights; the loss, and the likeliest token of each row."""
        context = self.drafter.context(features, torch.arange(features.shape[1], device=features.device)[None])
        hidden = self.drafter(F.embedding(rows, self.target.embedding), positions, context, over_blocks(anchors))
        drafted = hidden.view(len(labels), -1, hidden.shape[-1])[:, 1:]
        loss, chosen = head_loss(
            drafted, self.target.head, labels, weights, Soft(*near) if near else None, self._judging
        )
        self.drafter.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.options.clip:
            torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach(), chosen

    def _set_rate(self, rate: float) -> None:
        """A tensor where a graph reads it."""
        self._rate_now = rate
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _rate(self, share: float) -> float:
        """Learning rate: linear warm-up, then a cosine down to final_lr of the peak."""
        options = self.options
        warm = min(1.0, (self.step + 1) / options.warmup) if options.warmup else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * share))
        return options.lr * warm * (options.final_lr + (1 - options.final_lr) * cosine)

    def _done(self) -> float:
        """Share of the training that is done."""
        if self.options.seconds is not None:
            return self.seconds / self.options.seconds
        return self.step / self.options.steps

    def _crossed(self, every: int) -> bool:
        """Whether the last batch's passes went over a multiple of `every`."""
        return self.step // every > (self.step - self.options.passes) // every

    def _report(self) -> dict[str, Any]:
        """Means since the last report, as a line of the log. Raises EngineError when the loss is no number any more."""
        loss, accepted, first, on_policy, count = self._sums.tolist()
        steps, self._summed = self._summed, 0
        self._sums.zero_()
        if not math.isfinite(loss):
            raise EngineError(
                f"The loss is {loss} at step {self.step:,}: try a smaller --lr; the last checkpoint is kept"
            )
        line = {"step": self.step, "seconds": round(self.seconds, 2), "loss": loss / steps, "tau": 1 + accepted / steps}
        line |= {"first": first / steps, "lr": self._rate_now}
        return line | ({"tau_on_policy": 1 + on_policy / count} if count else {})


def _optimizers(options: TrainOptions, drafter: DrafterModule, device: torch.device) -> list[torch.optim.Optimizer]:
    matrices = [weight for weight in drafter.parameters() if weight.ndim > 1]
    vectors = [weight for weight in drafter.parameters() if weight.ndim <= 1]
    groups = [{"params": vectors, "weight_decay": 0.0}]
    made: list[torch.optim.Optimizer] = []
    cuda = device.type == "cuda"
    rate = torch.tensor(options.lr, device=device) if cuda else options.lr
    if options.muon:
        made.append(Muon(matrices, rate, options.weight_decay))
    else:
        groups.append({"params": matrices, "weight_decay": options.weight_decay})
    return [*made, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=cuda, capturable=cuda)]


def _decisive(options: TrainOptions, target: TargetFolder, place: Place, data: DataFolder) -> dict[str, Any]:
    """All that decides a run's course. Paths are none of it, nor how often something is logged or saved."""
    free = {"target", "data", "run", "device", "dtype", "start_from", "compile", "graphs"}
    free |= {"log_every", "checkpoint_every", "max_megabytes"}
    chosen = {name: value for name, value in asdict(options).items() if name not in free}
    return {
        **chosen,
        "start_from": None if options.start_from is None else options.start_from.resolve().name,
        "target": target.fingerprint,
        "device": place.device.type,
        "dtype": place.dtype_name,
        "conversations": data.count("sequences"),
        "tokens": data.count("tokens"),
    }


def _facts(
    options: TrainOptions, target: TargetFolder, data: DataFolder, trainer: Trainer, run: Run, command: str
) -> dict[str, Any]:
    """What a model card should say about how a drafter was made."""
    log = run.log()
    return {
        "command": command,
        "target": target.name,
        "data": {
            "sequences": data.count("sequences"),
            "tokens": data.count("tokens"),
            "command": data.command,
            **data.made,
        },
        "start": None if options.start_from is None else options.start_from.resolve().name,
        "options": {name: value for name, value in asdict(options).items() if not isinstance(value, Path)},
        "steps": trainer.step,
        "seconds": round(trainer.seconds, 1),
        "epochs": round(trainer.step / options.passes / trainer.batches.per_epoch, 2),
        "machine": torch.cuda.get_device_name() if trainer.target.device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "last": log[-1] if log else {},
    }


class _Interrupts:
    """Turns SIGINT and SIGTERM into an event, so that a batch is finished and saved. Nothing off the main thread."""

    def __enter__(self) -> threading.Event:
        self._event = threading.Event()
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, lambda *_: self._event.set())
        return self._event

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
