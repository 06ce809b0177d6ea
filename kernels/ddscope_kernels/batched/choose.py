"""The target's token after every node of a batch: its argmax, or one draw whose noise belongs to a position."""

from __future__ import annotations

import torch
from torch import Tensor

from ddscope_kernels.batched.backend import use_triton

_MASK32 = 0xFFFFFFFF


def choose(
    logits: Tensor, *, temperatures: Tensor | None = None, seeds: Tensor | None = None, positions: Tensor | None = None
) -> Tensor:
    """[R, N] int64 token ids.

    logits:       [R, N, V] float32, float16 or bfloat16. NaN is no candidate; of equals the lowest id is taken.
    temperatures: [R] float32: where it is above 0, a draw from softmax(logits / temperature), elsewhere the argmax, as
                  everywhere when it is None.
    seeds:        [R] int64, positions: [R, N] int64 of the token that is chosen; draws need both. The noise of a token
                  depends on (seed, position, id) only: every tree and plain decoding draw the same tokens.
    A row without candidates gives 0. On a CUDA device two launches, no wait for the host, nothing of size V is stored.
    Raises ValueError when shapes disagree.
    Source: the Gumbel-max draw; its uniform numbers are Philox 4×32-10 (Salmon et al., SC 2011), whose key is the seed
    and whose counter is id // 4 and position: word id % 4 is the token's. Not the numbers of `ddscope_kernels.gumbel`,
    which are a CPU generator's.
    """
    if logits.ndim != 3 or (temperatures is not None and (seeds is None or positions is None)):
        raise ValueError(f"logits must be [R, N, V], got {list(logits.shape)}; draws need seeds and positions")
    requests, nodes, _ = logits.shape
    shapes = [None if x is None else list(x.shape) for x in (temperatures, seeds, positions)]
    if temperatures is not None and shapes != [[requests], [requests], [requests, nodes]]:
        raise ValueError(f"temperatures, seeds, positions {shapes} do not fit logits {list(logits.shape)}")
    if logits.numel() == 0:
        return torch.zeros(requests, nodes, dtype=torch.int64, device=logits.device)
    if use_triton(logits):
        from ddscope_kernels.jit import choose as compiled

        return compiled.launch(logits, temperatures, seeds, positions)
    return _reference(logits, temperatures, seeds, positions)


def gumbel_noise(seeds: Tensor, positions: Tensor, size: int) -> Tensor:
    """[R, N, size] float32 standard Gumbel noise: what `choose` adds to logits / temperature."""
    blocks = (size + 3) // 4
    numbers = torch.arange(blocks, device=seeds.device)
    counter = [x.broadcast_to(*positions.shape, blocks) for x in (numbers, positions[..., None] & _MASK32)]
    c = [*counter, torch.zeros_like(counter[0]), torch.zeros_like(counter[0])]
    key = [(seeds & _MASK32)[:, None, None], (seeds >> 32 & _MASK32)[:, None, None]]
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(0xD2511F53, c[0]), _product(0xCD9E8D57, c[2])
        c = [high2 ^ c[1] ^ key[0], low2, high0 ^ c[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & _MASK32, (key[1] + 0xBB67AE85) & _MASK32]
    words = torch.stack(c, dim=-1).flatten(-2)[..., :size]
    u = (words.float() + 0.5) * 2.0**-32
    # -log(1 - u), also right where u is small: there the noise is large, and decides.
    waiting = torch.where(u < 2.0**-6, u * (1 + u * (1 / 2 + u * (1 / 3 + u / 4))), -torch.log(1 - u))
    return -torch.log(waiting)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The high and low 32 bits of a product of two 32-bit numbers held in int64."""
    return (a * (b >> 16) + (a * (b & 0xFFFF) >> 16)) >> 16, a * b & _MASK32


def _reference(logits: Tensor, temperatures: Tensor | None, seeds: Tensor | None, positions: Tensor | None) -> Tensor:
    scores = torch.where(logits.isnan(), -torch.inf, logits.float())
    if temperatures is not None and seeds is not None and positions is not None:
        warm = temperatures[:, None, None]
        noisy = scores * (1.0 / torch.where(warm > 0, warm, 1.0)) + gumbel_noise(seeds, positions, logits.shape[2])
        scores = torch.where(warm > 0, noisy, scores)
    best = scores.amax(-1, keepdim=True)
    ids = torch.arange(logits.shape[2], device=logits.device)
    first = torch.where(scores == best, ids, logits.shape[2]).amin(-1)
    return torch.where(best[..., 0].isneginf(), 0, first)
