"""Conversations on the device, and which of them make up batch number n. Any n can be asked for at any time."""

from __future__ import annotations

import torch
from torch import Tensor

from ddscope.engine.errors import EngineError
from ddscope.engine.training.common import seed_of
from ddscope.engine.training.shards import Conversations

_STEP = 32
"""All batches are as long as the longest text, rounded up to so many tokens: one shape, aligned."""


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
        self._prompts = data.prompts[usable].long().to(device)
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def batch(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids [B, width] (0 behind a text's end), lengths [B], prompt lengths [B]."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_of(self._seed, "order", epoch))
            self._order = torch.randperm(self.count, generator=generator).to(self._starts.device)
            self._epoch = epoch
        part = slice(place * self._size, (place + 1) * self._size)
        chosen = self._order[part]
        lengths = self._lengths[chosen]
        columns = torch.arange(self.width, device=chosen.device)
        at = (self._starts[chosen][:, None] + columns).clamp(max=len(self._tokens) - 1)
        ids = torch.where(columns < lengths[:, None], self._tokens[at].long(), 0)
        return ids, lengths, self._prompts[chosen]
