"""Where blocks start in a text, what they are to predict, and who sees whom. All on the device, no host in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Blocks:
    """A blocks in each of B texts, all rows one after another: N = A × block.

    rows:      [B, N] ids that go in: the anchor's token, then masks.
    positions: [B, N].
    labels:    [B, A, block - 1] the text's tokens at the masks.
    valid:     [B, A, block - 1] whether the text is that long.
    """

    rows: Tensor
    positions: Tensor
    labels: Tensor
    valid: Tensor


def random_anchors(first: Tensor, lengths: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """[B, count] positions, uniform over those that have a token to predict: first … length − 2 (both [B])."""
    share = torch.rand(len(lengths), count, generator=draws, device=lengths.device)
    span = (lengths - 1 - first)[:, None]
    return torch.minimum(first[:, None] + (share * span).long(), (lengths - 2)[:, None])


def after_rejection(anchors: Tensor, accepted: Tensor, lengths: Tensor, fresh: Tensor) -> Tensor:
    """[B, A] where free-running drafting would go on: the token that the target puts behind the accepted ones.

    anchors: [B, A]; accepted: [B, A] drafted tokens that agreed with the text; fresh: [B, A] anchors for those which
    have nothing left to predict.
    """
    onward = anchors + accepted + 1
    return torch.where(onward <= (lengths - 2)[:, None], onward, fresh)


def accepted_lengths(chosen: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """[B, A] how many of the likeliest tokens [B, A, block - 1] agree with the text from the first mask on."""
    return ((chosen == labels) & valid).long().cumprod(-1).sum(-1)


def cut_blocks(ids: Tensor, lengths: Tensor, anchors: Tensor, block: int, mask_token: int) -> Blocks:
    """Blocks of `block` rows at anchors [B, A] of texts ids [B, L]."""
    texts, count = anchors.shape
    spread = anchors[:, :, None] + torch.arange(block, device=ids.device)
    tokens = ids.gather(1, spread.clamp(max=ids.shape[1] - 1).view(texts, -1)).view(texts, count, block)
    rows = torch.full_like(tokens, mask_token)
    rows[:, :, 0] = tokens[:, :, 0]
    valid = spread[:, :, 1:] < lengths[:, None, None]
    return Blocks(rows.view(texts, -1), spread.view(texts, -1), tokens[:, :, 1:], valid)
