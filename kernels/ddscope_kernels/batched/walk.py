"""From the target's choices to accepted paths, bonus tokens and what may be emitted, for a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddscope_kernels.batched.backend import use_triton
from ddscope_kernels.walk import walk as single_walk

RUNNING, STOP, LENGTH = 0, 1, 2
"""Values of `WalkBatch.reasons`."""


@dataclass(frozen=True, slots=True)
class WalkBatch:
    """Accepted paths of R requests, with room for P nodes.

    path:    [R, P] int32 node numbers, root first; behind lengths[r] it is 0.
    lengths: [R] int32 nodes of the path, the root included.
    bonus:   [R] int64, the target's choice after the last node of the path.
    emitted: [R, P] int64 tokens: those of the path without the root, then the bonus; behind counts[r] it is 0.
    counts:  [R] int32 tokens that may be emitted: up to an end of text, and no more than there is room for.
    reasons: [R] int32 why the text ends here: RUNNING (it goes on), STOP (an end of text) or LENGTH (no room left).
    """

    path: Tensor
    lengths: Tensor
    bonus: Tensor
    emitted: Tensor
    counts: Tensor
    reasons: Tensor


def empty_walks(requests: int, room: int, device: torch.device) -> WalkBatch:
    """A WalkBatch that holds nothing yet: static buffers for `walk(…, out=…)`; room: nodes of a path, root included."""

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(requests, *shape, dtype=dtype, device=device)

    return WalkBatch(
        empty(room), empty(), empty(dtype=torch.int64), empty(room, dtype=torch.int64), empty(), empty()
    )  # fmt: skip


def walk(
    tokens: Tensor,
    parents: Tensor,
    counts: Tensor,
    choices: Tensor,
    depth: int,
    *,
    eos: Tensor | None = None,
    room: Tensor | None = None,
    out: WalkBatch | None = None,
) -> WalkBatch:
    """Follow the children that carry the target's choice, from each root down: `ddscope_kernels.walk` for a batch.

    tokens:  [R, B] int64, parents: [R, B] int32, counts: [R] int32, as of TreeBatch.
    choices: [R, B + 1] int64 the target's token after each node, root first: its argmax, or one draw (see `choose`).
    depth:   deepest node there can be; a path is cut at depth + 1 nodes (what is emitted stays right).
    eos:     [E] int64 tokens that end a text; nothing behind the first of them is emitted.
    room:    [R] int32 tokens that a request may still emit; no limit where it is None.
    out:     buffers to fill, of `empty_walks(R, depth + 1, …)`.
    On a CUDA device one launch of one program a request, no wait for the host.
    Raises ValueError when shapes disagree or depth < 0.
    Source: DDTree (arXiv 2604.12989), section 3.
    """
    requests, budget = tokens.shape
    if parents.shape != tokens.shape or choices.shape != (requests, budget + 1) or counts.shape != (requests,):
        raise ValueError(
            f"tokens {list(tokens.shape)}, parents {list(parents.shape)}, counts {list(counts.shape)} and "
            f"choices {list(choices.shape)} do not fit one batch of trees"
        )
    if depth < 0 or (room is not None and room.shape != (requests,)) or (eos is not None and eos.ndim != 1):
        raise ValueError(f"depth must be ≥ 0 (got {depth}), room [{requests}] and eos [E]")
    if out is None:
        out = empty_walks(requests, depth + 1, tokens.device)
    elif out.path.shape != (requests, depth + 1):
        raise ValueError(f"buffers for paths {list(out.path.shape)} do not fit {requests} requests of depth {depth}")
    if eos is not None and eos.numel() == 0:
        eos = None
    if use_triton(tokens) and requests:
        from ddscope_kernels.jit import walk as compiled

        compiled.launch(tokens, parents, counts, choices, eos, room, out)
    else:
        _reference(tokens, parents, counts, choices, eos, room, out)
    return out


def _reference(
    tokens: Tensor,
    parents: Tensor,
    counts: Tensor,
    choices: Tensor,
    eos: Tensor | None,
    room: Tensor | None,
    out: WalkBatch,
) -> None:
    out.path.zero_()
    out.emitted.zero_()
    ends = set() if eos is None else set(eos.tolist())
    for r in range(tokens.shape[0]):
        n = int(counts[r])
        chosen = choices[r, : n + 1].tolist()
        path, _ = single_walk(tokens[r, :n].tolist(), parents[r, :n].tolist(), chosen)
        path = path[: out.path.shape[1]]
        emitted = [chosen[node] for node in path]
        left = len(emitted) + 1 if room is None else max(int(room[r]), 0)
        stop = next((place for place, token in enumerate(emitted[:left]) if token in ends), None)
        kept = min(len(emitted), left) if stop is None else stop + 1
        out.path[r, : len(path)] = torch.tensor(path, dtype=torch.int32)
        out.lengths[r], out.bonus[r], out.counts[r] = len(path), emitted[-1], kept
        out.emitted[r, :kept] = torch.tensor(emitted[:kept], dtype=torch.int64)
        out.reasons[r] = STOP if stop is not None else LENGTH if len(emitted) >= left else RUNNING
