"""The command `evaluate`: free-running τ of chain and DDTree on held-out prompts; a table, JSON, a model card."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddscope.engine.config import check_pair, read_drafter_config
from ddscope.engine.errors import EngineError
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import SHIPPED_DRAFT, load_pair
from ddscope.engine.training.card import FACTS, SCORES, write_card
from ddscope.engine.training.common import Place, TargetFolder, find_target
from ddscope.engine.training.forward import BatchTarget
from ddscope.engine.training.freerun import FreeRun
from ddscope.engine.training.model import DrafterModule
from ddscope.engine.training.options import EvaluateOptions
from ddscope.engine.training.progress import Progress
from ddscope.engine.training.shards import HELD_OUT, read_held_out, write_whole

CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Score:
    """One algorithm's. tau: tokens emitted after the first one of each text, per target forward; curve: share of the
    steps that accepted at least 1, 2, … drafted tokens; seconds: wall time, loading left out."""

    name: str
    budget: int | None
    tau: float
    emitted: int
    steps: int
    curve: list[float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Decoded:
    """One text: tokens emitted, the first one included, and drafted tokens accepted by each step."""

    output: list[int]
    accepted: list[int]


def parse_budgets(text: str) -> list[int | None]:
    """`chain,15,32` → [None, 15, 32]. Raises EngineError for anything else."""
    budgets: list[int | None] = []
    for word in (part.strip() for part in text.split(",")):
        if word == CHAIN:
            budgets.append(None)
        elif word.isdecimal() and int(word) > 0:
            budgets.append(int(word))
        else:
            raise EngineError(f"--budgets takes {CHAIN!r} and whole numbers from 1, with commas, not {word!r}")
    return budgets


def evaluate(options: EvaluateOptions, progress: Progress, command: str = "") -> list[Score]:
    """Run the command. Raises EngineError for whatever stands in its way."""
    budgets = parse_budgets(options.budgets)
    place = Place.of(options.device, options.dtype)
    target = find_target(options.target, progress)
    source = options.prompts or _beside(options.draft)
    prompts = [prompt.ids for prompt in read_held_out(source)[: options.count]]
    _check_prompts(source, prompts, target, options.max_new_tokens)
    if options.card and not (options.draft / FACTS).is_file():
        raise EngineError(f"{options.draft} has no training.json, so its model card is not one of `train`")
    batch = options.batch or (192 if place.device.type == "cuda" else 1)
    decoder: _OneByOne | _Together = (
        _OneByOne(options, target, place) if batch == 1 else _Together(options, target, place, batch)
    )
    scores: list[Score] = []
    for budget in budgets:
        began = time.monotonic()
        name = CHAIN if budget is None else f"DDTree {budget}"
        texts = decoder.decode(prompts, budget, name, progress)
        scores.append(_score(name, budget, texts, time.monotonic() - began))
    _save(options, scores, len(prompts), place, command)
    return scores


def table(scores: Sequence[Score]) -> str:
    """The scores in aligned columns, for a terminal or a pipe."""
    rows: list[tuple[str, ...]] = [("", "τ", "tokens", "steps", "P(≥1)", "P(≥4)", "s")]
    for score in scores:
        at = [f"{score.curve[depth - 1]:.2f}" if len(score.curve) >= depth else "0.00" for depth in (1, 4)]
        rows.append(
            (score.name, f"{score.tau:.3f}", f"{score.emitted:,}", f"{score.steps:,}", *at, f"{score.seconds:.1f}")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join(lines)


class _OneByOne:
    """The engine's own generator, a prompt at a time: fast on a CPU."""

    def __init__(self, options: EvaluateOptions, target: TargetFolder, place: Place) -> None:
        self._pair = load_pair(target.folder, options.draft, place.dtype, place.device)
        self._limit = options.max_new_tokens

    def decode(self, prompts: Sequence[list[int]], budget: int | None, name: str, progress: Progress) -> list[Decoded]:
        """All prompts."""
        params = Params("dflash" if budget is None else "ddtree", budget or 0, max_new_tokens=self._limit)
        texts = []
        for number, prompt in enumerate(prompts):
            progress.at(name, number, len(prompts))
            generator = Generator(self._pair, prompt, params)
            generator.start()
            accepted = []
            while not generator.done:
                result = generator.draft_and_verify()
                accepted.append(result.accepted)
                generator.commit(result)
            texts.append(Decoded(generator.output, accepted))
        progress.at(name, len(prompts), len(prompts))
        return texts


class _Together:
    """Batches of prompts: fast on a GPU."""

    def __init__(self, options: EvaluateOptions, target: TargetFolder, place: Place, batch: int) -> None:
        config = read_drafter_config(options.draft)
        check_pair(target.config, config)
        self._batch, self._limit = batch, options.max_new_tokens
        self._target = BatchTarget.load(target.folder, place.dtype, place.device)
        positions = target.config.stack.max_positions + config.block_size
        self._drafter = DrafterModule(config, positions, place.device).eval()
        self._drafter.load(options.draft)
        self._drafter.to(place.dtype)

    def decode(self, prompts: Sequence[list[int]], budget: int | None, name: str, progress: Progress) -> list[Decoded]:
        """All prompts."""
        texts: list[Decoded] = []
        for first in range(0, len(prompts), self._batch):
            part = prompts[first : first + self._batch]
            run = FreeRun(self._target, self._drafter, part, self._limit, budget)
            told = partial(self._told, progress, name, first, len(prompts))
            texts += [Decoded(text.output, text.accepted) for text in run.run(told)]
        return texts

    @staticmethod
    def _told(progress: Progress, name: str, before: int, total: int, ended: int) -> None:
        progress.at(name, before + ended, total)


def _beside(draft: Path) -> Path:
    """The prompts held out when this drafter was trained; those of the shipped one for a drafter that brings none."""
    own = draft / HELD_OUT
    return own if own.is_file() else SHIPPED_DRAFT / HELD_OUT


def _check_prompts(source: Path, prompts: Iterable[list[int]], target: TargetFolder, more: int) -> None:
    stack = target.config.stack
    for number, prompt in enumerate(prompts, start=1):
        if not prompt or not all(0 <= token < stack.vocab for token in prompt):
            raise EngineError(f"{source}: prompt {number} does not fit the target's vocabulary of {stack.vocab:,}")
        if len(prompt) + more > stack.max_positions:
            raise EngineError(f"{source}: prompt {number} is too long for {more} tokens more")


def _score(name: str, budget: int | None, texts: Sequence[Decoded], seconds: float) -> Score:
    accepted = [count for text in texts for count in text.accepted]
    emitted = sum(len(text.output) - 1 for text in texts)
    if not accepted:
        raise EngineError("Every text ended with its first token: there is nothing to score")
    curve = [sum(count >= depth for count in accepted) / len(accepted) for depth in range(1, max(accepted) + 1)]
    return Score(name, budget, emitted / len(accepted), emitted, len(accepted), curve, round(seconds, 2))


def _save(options: EvaluateOptions, scores: Sequence[Score], prompts: int, place: Place, command: str) -> None:
    content: dict[str, Any] = {
        "command": command,
        "draft": options.draft.resolve().name,
        "prompts": prompts,
        "max_new_tokens": options.max_new_tokens,
        "dtype": place.dtype_name,
        "machine": torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else "a CPU",
        "torch": torch.__version__,
        "scores": [asdict(score) for score in scores],
    }
    text = (json.dumps(content, indent=1) + "\n").encode()
    if options.json is not None:
        write_whole(options.json, text)
    if options.card:
        write_whole(options.draft / SCORES, text)
        write_card(options.draft)
