"""Conversations on the device, and which of them make up batch number n. Any n can be asked for at any time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddscope.engine.errors import EngineError
from ddscope.engine.training.common import seed_of
from ddscope.engine.training.shards import Conversations

_STEP = 32
"""All batches are as long as the longest text, rounded up to so many tokens: one shape, aligned."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B conversations: ids [B, width] (0 behind a text's end), lengths [B], prompts [B] tokens before the answers;
    answers: tokens of all answers together, known on the host."""

    ids: Tensor
    lengths: Tensor
    prompts: Tensor
    answers: int

    def before_answers(self) -> tuple[Tensor, Tensor]:
        """Places (in ids, flat) of the tokens before each token of an answer, text by text; [B] where a text's begin,
        less its place of the first: that of position p of text b is entry begins[b] + p."""
        each = self.lengths - self.prompts
        ends = each.cumsum(0)
        text = torch.arange(len(each), device=each.device).repeat_interleave(each, output_size=self.answers)
        begins = ends - each - (self.prompts - 1)
        place = torch.arange(self.answers, device=each.device) - begins[text]
        return text * self.ids.shape[1] + place, begins


class Batches:
    """Shuffled anew every epoch. All tokens lie on the device (4 bytes each), so a batch is one gather there."""

    def __init__(self, data: Conversations, size: int, max_tokens: int, seed: int, device: torch.device) -> None:
        """Raises EngineError when the conversations do not fill one batch."""
        starts = data.lengths.long().cumsum(0) - data.lengths
        # What is cut must leave two tokens of the answer: an anchor and one to predict.
        usable = (data.lengths.clamp(max=max_tokens) - data.prompts >= 2).nonzero().flatten()
        if len(usable) < size:
            raise EngineError(f"The data has {len(usable):,} usable conversations, fewer than one batch of {size}")
        self.count = len(usable)
        self.per_epoch = len(usable) // size
        self._size, self._seed = size, seed
        lengths = data.lengths[usable].long().clamp(max=max_tokens)
        self.width = -(-int(lengths.max()) // _STEP) * _STEP
        self._tokens = data.tokens.to(device)
        self._starts = starts[usable].to(device)
        self._lengths = lengths.to(device)
        prompts = data.prompts[usable].long()
        self._answers = lengths - prompts  # on the host
        self._prompts = prompts.to(device)
        self._epoch = -1
        self._order = self._host_order = torch.empty(0, dtype=torch.int64)

    def batch(self, number: int) -> Batch:
        """Number n of the training."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_of(self._seed, "order", epoch))
            self._host_order = torch.randperm(self.count, generator=generator)
            self._order = self._host_order.to(self._starts.device)
            self._epoch = epoch
        part = slice(place * self._size, (place + 1) * self._size)
        chosen = self._order[part]
        lengths = self._lengths[chosen]
        columns = torch.arange(self.width, device=chosen.device)
        at = (self._starts[chosen][:, None] + columns).clamp(max=len(self._tokens) - 1)
        ids = torch.where(columns < lengths[:, None], self._tokens[at].long(), 0)
        # Asking the device how many there are would make the host wait.
        answers = int(self._answers[self._host_order[part]].sum())
        return Batch(ids, lengths, self._prompts[chosen], answers)
