"""The command `data`: held-out prompts first, then filtered batches of conversations into shards until they suffice."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddscope.engine.errors import EngineError
from ddscope.engine.pair import SHIPPED_DRAFT
from ddscope.engine.tokenizer import Tokenizer
from ddscope.engine.training.common import Place, TargetFolder, draws, find_target
from ddscope.engine.training.forward import BatchTarget
from ddscope.engine.training.options import DataOptions
from ddscope.engine.training.progress import Progress
from ddscope.engine.training.shards import (
    HELD_OUT,
    DataFolder,
    HeldOut,
    pack,
    read_held_out,
    write_held_out,
)
from ddscope.engine.training.writing import Frame, Writer, Written, chat_frame

_FRUITLESS = 20
"""Batches in a row without one new conversation before it is given up."""


@dataclass
class _Filter:
    """Lets a conversation through once, and none whose prompt is held out."""

    tokenizer: Tokenizer
    options: DataOptions
    held: set[str]
    seen: set[str] = field(default_factory=set)
    refused: dict[str, int] = field(default_factory=lambda: {"short": 0, "held_out": 0, "repeated": 0})

    def take(self, written: Iterable[Written]) -> list[Written]:
        """Those that are new; why others are not is counted in `refused`."""
        kept = []
        for one in written:
            key = prompt_key(self.tokenizer.decode(one.message))
            short = len(one.message) < self.options.min_prompt or len(one.ids) - one.prompt < self.options.min_answer
            if short or not key:
                self.refused["short"] += 1
            elif key in self.held:
                self.refused["held_out"] += 1
            elif key in self.seen:
                self.refused["repeated"] += 1
            else:
                self.seen.add(key)
                kept.append(one)
        return kept


def prompt_key(text: str) -> str:
    """What two prompts have in common that count as the same: words, not case nor spacing."""
    return " ".join(text.casefold().split())


def write_data(options: DataOptions, progress: Progress, command: str = "") -> DataFolder:
    """Run the command. Raises EngineError, in one sentence, for whatever stands in its way."""
    place = Place.of(options.device, options.dtype)
    target = find_target(options.target, progress)
    tokenizer = Tokenizer(target.folder)
    frame = chat_frame(tokenizer, target.config.eos_ids)
    batch = options.batch or (4096 if place.device.type == "cuda" else 16)
    folder = DataFolder.create(options.out, _made(options, target, place, batch), command)
    if folder.count("sequences") >= options.sequences:
        return folder
    progress.at("Loading the target", 0, 1)
    model = BatchTarget.load(target.folder, place.dtype, place.device)
    graphs = options.graphs and place.device.type == "cuda"
    if options.compile and place.device.type == "cuda":
        model.compile()
    writer = Writer(model, frame, batch, options.prompt_tokens, options.answer_tokens, graphs=graphs)
    session = _Session(options, place, writer, frame, tokenizer, progress)
    held = session.held_out(default=options.target is None)
    session.fill(folder, held)
    return folder


class _Session:
    def __init__(
        self,
        options: DataOptions,
        place: Place,
        writer: Writer,
        frame: Frame,
        tokenizer: Tokenizer,
        progress: Progress,
    ) -> None:
        self._options, self._place, self._writer, self._frame = options, place, writer, frame
        self._tokenizer, self._progress = tokenizer, progress

    def held_out(self, *, default: bool) -> list[HeldOut]:
        """The prompts that are kept out: those of the folder, of a file, or drawn now."""
        path = self._options.out / HELD_OUT
        if path.exists():
            return read_held_out(path)
        source = self._options.held_out_file
        if source is None and default:
            source = SHIPPED_DRAFT / HELD_OUT
        prompts = read_held_out(source) if source is not None else self._draw_held_out()
        write_held_out(path, prompts)
        return prompts

    def fill(self, folder: DataFolder, held: list[HeldOut]) -> None:
        """Shards until there are enough conversations. A shard is one batch, so it depends on its number alone."""
        sieve = _Filter(self._tokenizer, self._options, {prompt_key(prompt.text) for prompt in held})
        before, after = len(self._frame.before), len(self._frame.after)
        for shard in range(folder.shards):
            for ids, prompt in folder.read(shard).each():
                sieve.seen.add(prompt_key(self._tokenizer.decode(ids[before : prompt - after])))
        wanted, last = self._options.sequences, time.monotonic()
        limit = math.inf if self._options.seconds is None else last + self._options.seconds
        pending: Future[int] | None = None
        # What the host does with a batch, it does while the device writes the next one.
        with ThreadPoolExecutor(1) as beside:
            number = folder.shards
            while folder.count("sequences") < wanted and last < limit:
                written = self._batch("data", number, folder.count("sequences"))
                if pending is not None:
                    self._settle(pending.result(), folder)
                began, last, number = last, time.monotonic(), number + 1
                pending = beside.submit(self._store, folder, sieve, written, last - began)
                if folder.count("sequences") + len(written) >= wanted:  # this may be the last one
                    self._settle(pending.result(), folder)
                    pending = None
            if pending is not None:
                self._settle(pending.result(), folder)
        self._progress.at("Conversations", folder.count("sequences"), self._options.sequences, self._note)

    def _settle(self, kept: int, folder: DataFolder) -> None:
        """Gives up after too many batches in a row without anything new."""
        self._fruitless = 0 if kept else self._fruitless + 1
        if self._fruitless == _FRUITLESS:
            have = folder.count("sequences")
            raise EngineError(f"The target wrote nothing new in {_FRUITLESS} batches; {have:,} conversations are there")

    def _store(self, folder: DataFolder, sieve: _Filter, written: list[Written], seconds: float) -> int:
        """One shard of a batch's new conversations, which are counted; seconds: that the batch took."""
        sieve.refused = dict.fromkeys(sieve.refused, 0)
        kept = sieve.take(written)
        texts = [one.ids for one in kept]
        packed = pack(texts, [one.prompt for one in kept], [one.temperature for one in kept])
        folder.add(packed, written=len(written), **sieve.refused)
        self._note = f"{folder.count('tokens'):,} tokens, {len(kept) / max(seconds, 1e-9):,.0f} conversations/s"
        return len(kept)

    _note = ""
    _fruitless = 0

    def _draw_held_out(self) -> list[HeldOut]:
        """The first distinct prompts of batches that are drawn for this alone."""
        sieve = _Filter(self._tokenizer, self._options, set())
        prompts: list[HeldOut] = []
        for number in range(_FRUITLESS):
            new = sieve.take(self._batch("held out", number, 0))
            prompts += [HeldOut(self._tokenizer.decode(one.message), one.ids[: one.prompt]) for one in new]
            if len(prompts) >= self._options.held_out:
                return prompts[: self._options.held_out]
        raise EngineError(
            f"The target wrote {len(prompts)} distinct prompts where {self._options.held_out} are to be held out"
        )

    def _batch(self, *names: Any) -> list[Written]:
        kind, number, have = names
        seed = self._options.seed

        def told(steps: int) -> None:
            what = "Conversations" if kind == "data" else "Held-out prompts"
            self._progress.at(what, have, self._options.sequences, f"batch {number}: {steps} tokens  {self._note}")

        return self._writer.write(
            draws(self._place.device, seed, kind, number),
            self._options.prompt_temperature,
            self._temperatures(draws(torch.device("cpu"), seed, kind, number, "temperatures")),
            told,
        )

    def _temperatures(self, generator: torch.Generator) -> Tensor:
        greedy = torch.rand(self._writer.sequences, generator=generator) < self._options.greedy_share
        return torch.where(greedy, 0.0, self._options.answer_temperature)


def _made(options: DataOptions, target: TargetFolder, place: Place, batch: int) -> dict[str, Any]:
    """All that decides what is in a shard. How many shards there are is not part of it."""
    names = (
        *("seed", "prompt_tokens", "answer_tokens", "min_prompt", "min_answer", "prompt_temperature"),
        *("answer_temperature", "greedy_share"),
    )
    return {
        "target": target.name,
        "fingerprint": target.fingerprint,
        **{name: getattr(options, name) for name in names},
        "batch": batch,
        "dtype": place.dtype_name,
        "device": place.device.type,
    }
