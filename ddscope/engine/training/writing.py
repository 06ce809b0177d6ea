"""The target writes conversations: R at once over a static KV cache, on a GPU one CUDA graph a token.

A row is a small automaton that lives on the device: it writes the user's message, closes it as the chat template does,
answers, and stops. No row waits for another, and the host only counts steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddscope.engine.errors import EngineError
from ddscope.engine.tokenizer import Tokenizer
from ddscope.engine.training.forward import BatchCache, BatchTarget
from ddscope_kernels.batched import choose

_PROMPT, _CLOSING, _ANSWER, _DONE = range(4)
_EXTENT = 64
"""Columns of the cache that are attended to through a mask grow by so many; a kernel reads what a row has, no more."""
_SENTINEL = "ddscope"


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a user's message in a chat: ids before it, ids after it up to the answer, ids that end it."""

    before: list[int]
    after: list[int]
    ends: list[int]


@dataclass(frozen=True, slots=True)
class Written:
    """One conversation. prompt: how many of the ids come before the answer; message: the ids of the user's message."""

    ids: list[int]
    prompt: int
    message: list[int]
    temperature: float


def chat_frame(tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Frame:
    """From the chat template. Raises EngineError when there is none, or it does not hold the message as it is."""
    text = tokenizer.chat_text(_SENTINEL)
    if text is None:
        raise EngineError("The target has no chat template, so it cannot be asked to write prompts")
    head, found, tail = text.partition(_SENTINEL)
    before, after = tokenizer.encode(head), tokenizer.encode(tail)
    if not found or not before or not after:
        raise EngineError("The target's chat template puts nothing before or after a message: no place to start or end")
    return Frame(before, after, sorted({after[0], *eos_ids}))


class Writer:
    """Writes batches of R conversations of at most `prompt + answer` tokens besides the template's."""

    def __init__(
        self, target: BatchTarget, frame: Frame, sequences: int, prompt: int, answer: int, *, graphs: bool
    ) -> None:
        """prompt, answer: tokens at most; graphs: capture CUDA graphs (only on a CUDA device)."""
        self._target, self._frame = target, frame
        self.sequences = sequences
        self._answer_tokens = answer
        self._prompt_end = len(frame.before) + prompt
        self.steps = prompt + len(frame.after) + answer
        rows = len(frame.before) + self.steps
        if rows > target.config.stack.max_positions:
            raise EngineError(
                f"A conversation may take {rows} tokens, and the target {target.config.stack.max_positions}"
            )
        self._rows = -(-rows // _EXTENT) * _EXTENT
        like = target.embedding
        self._cache = BatchCache(target.config.stack, sequences, self._rows, like)

        def state(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=target.device)

        def constant(ids: Sequence[int]) -> Tensor:
            return torch.tensor(ids, device=target.device)

        self._out = state(sequences, self._rows + 1)
        self._place = state(sequences, 1)  # of the token that goes in next
        self._phase = state(sequences)
        self._closed = state(sequences)  # ids of `after` already written
        self._started = state(sequences)  # place where the answer starts
        self._warmth = torch.zeros(sequences, dtype=torch.float32, device=target.device)
        self._answer_warmth = torch.zeros_like(self._warmth)
        self._seeds = state(sequences)  # of a row's draws, which depend on nothing else but the place
        self._after, self._ends = constant(frame.after), constant(frame.ends)
        self._eos = constant(sorted(target.config.eos_ids) or [frame.after[0]])
        self._graphs: dict[int, torch.cuda.CUDAGraph] | None = {} if graphs else None

    @torch.inference_mode()
    def write(
        self,
        draws: torch.Generator,
        prompt_temperature: float,
        answer_temperatures: Tensor,
        told: Callable[[int], None] | None = None,
    ) -> list[Written]:
        """One batch; messages at their temperature, answers at [R] of theirs (0: greedy).

        draws: on the target's device. told: called with the steps done, now and then.
        """
        before = len(self._frame.before)
        self._begin(prompt_temperature, answer_temperatures)
        self._seeds.random_(generator=draws)
        for step in range(self.steps):
            extent = min(-(-(before + step + 1) // _EXTENT) * _EXTENT, self._rows)
            self._advance(extent)
            if step % 32 == 31:
                if told is not None:
                    told(step + 1)
                if bool((self._phase == _DONE).all()):
                    break
        return self._harvest(answer_temperatures)

    def _begin(self, prompt_temperature: float, answer_temperatures: Tensor) -> None:
        before = torch.tensor(self._frame.before, device=self._out.device)
        self._out.zero_()
        self._out[:, : len(before)] = before
        self._place.fill_(len(before) - 1)
        for state in (self._phase, self._closed, self._started):
            state.zero_()
        self._warmth.fill_(prompt_temperature)
        self._answer_warmth.copy_(answer_temperatures)
        if len(before) > 1:  # all rows begin alike: K and V of one serve all
            one = BatchCache(self._target.config.stack, 1, self._rows, self._target.embedding)
            at = torch.arange(len(before) - 1, device=before.device)[None]
            seen = torch.ones(len(before) - 1, len(before) - 1, dtype=torch.bool, device=before.device).tril()
            self._target.step(before[None, :-1], at, at, one, _bias(seen[None], self._target.dtype))
            self._cache.data[:, :, : len(before) - 1] = one.data[:, :, : len(before) - 1]

    def _advance(self, extent: int) -> None:
        """One token of every row, on a GPU by a graph: the only one, unless there are masks of this extent."""
        if not self._target.masks:
            extent = self._rows
        if self._graphs is None:
            self._token(extent)
            return
        if extent not in self._graphs:
            self._graphs[extent] = self._capture(extent)
        self._graphs[extent].replay()

    def _capture(self, extent: int) -> torch.cuda.CUDAGraph:
        """Capture does not run anything; warming up does, so what it moves is put back."""
        state = (self._out, self._place, self._phase, self._closed, self._started, self._warmth)
        kept = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._token(extent)
                for tensor, old in zip(state, kept, strict=True):
                    tensor.copy_(old)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # One pool for all: they run one after another, and nothing but the state outlives a replay.
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._token(extent)
        return graph

    def _token(self, extent: int) -> None:
        """Feed each row's token, choose the next, move the automaton. In-place on the state, no host in between."""
        token, place = self._out.gather(1, self._place)[:, 0], self._place[:, 0]
        live = self._phase != _DONE
        last = self._target.token(token, place, self._cache, live, extent)
        here = place + 1
        logits = self._target.logits(last)[:, None]
        drawn = choose(logits, temperatures=self._warmth, seeds=self._seeds, positions=here[:, None])[:, 0]
        in_prompt, closing, answering = (self._phase == phase for phase in (_PROMPT, _CLOSING, _ANSWER))
        ends = in_prompt & (_among(drawn, self._ends) | (here >= self._prompt_end))
        forced = self._after[self._closed.clamp(max=len(self._after) - 1)]
        closing = closing | ends
        chosen = torch.where(closing, forced, drawn)
        self._closed += closing.long()
        opened = closing & (self._closed == len(self._after))
        self._started.copy_(torch.where(opened, here + 1, self._started))
        finished = answering & (_among(chosen, self._eos) | (here + 1 >= self._started + self._answer_tokens))
        phase = torch.where(ends, _CLOSING, self._phase)
        phase = torch.where(opened, _ANSWER, phase)
        self._phase.copy_(torch.where(finished, _DONE, phase))
        self._warmth.copy_(torch.where(opened, self._answer_warmth, self._warmth))
        # A row that is done keeps its last token and its place.
        place = torch.where(live, here, place)[:, None]
        self._out.scatter_(1, place, torch.where(live[:, None], chosen[:, None], self._out.gather(1, place)))
        self._place.copy_(place)

    def _harvest(self, temperatures: Tensor) -> list[Written]:
        """Conversations whose answer has begun and, at their length or an end of text, ended."""
        before, after = len(self._frame.before), len(self._frame.after)
        done = (self._phase == _DONE).tolist()
        ends = (self._place[:, 0] + 1).tolist()
        rows, starts, warmth = self._out.tolist(), self._started.tolist(), temperatures.tolist()
        return [
            Written(row[:end], start, row[before : start - after], round(warm, 4))
            for row, end, start, warm, whole in zip(rows, ends, starts, warmth, done, strict=True)
            if whole
        ]


def _among(ids: Tensor, few: Tensor) -> Tensor:
    # Not torch.isin: it may sort, and then looks at sizes on the host, which a graph cannot.
    return (ids[:, None] == few).any(-1)


def _bias(sees: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, -torch.inf)
