"""What a verify costs here: the real target timed at a few tree sizes, in a second or two, for `--budget auto`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import perf_counter_ns

import torch

from ddscope.engine.budget import AutoBudget, VerifyCost
from ddscope.engine.convert import Progress
from ddscope.engine.drafting import Drafting
from ddscope.engine.errors import EngineError
from ddscope.engine.judge import Judge
from ddscope.engine.layers import KVCache
from ddscope.engine.pair import Pair
from ddscope.engine.step import Params

log = logging.getLogger("ddscope.engine")

MOST = {"cpu": 63, "cuda": 255}
"""Nodes that the policy may choose, by device: beyond these, a node's verify costs more than any is likely to yield."""
CONTEXT = 64
"""Tokens before the timed rows; what a longer context costs is learned while running."""
SECONDS = 1.6
ROUNDS = 8
MEASURING = "Measuring what a verify costs"


def sizes(most: int) -> list[int]:
    """Rows that are timed: powers of two, up to a tree of `most` nodes and its root."""
    rows = [1]
    while rows[-1] * 2 < most + 1:
        rows.append(rows[-1] * 2)
    return [*rows, most + 1] if most else rows


@torch.inference_mode()
def calibrate(pair: Pair, params: Params, progress: Progress | None = None) -> AutoBudget:
    """Time a verify (forward and judging) of growing trees, and a draft. `params` say how is drafted and chosen.

    Every size has an equal share of the time, so that small ones, which are cheap and matter most, are repeated; the
    least time of a size counts, because whatever else the machine does only adds to it.
    """
    stack = pair.target.config.stack
    most = min(MOST.get(pair.target.device.type, 63), max(1, stack.max_positions - CONTEXT - 1))
    rows = sizes(most)
    cache = pair.target.new_cache(CONTEXT + rows[-1])
    drafting = Drafting(pair, CONTEXT + rows[-1])
    context = [token % stack.vocab for token in range(CONTEXT)]
    drafting.add(pair.target.read(context, cache, drafting.capture).hidden)
    works: list[Callable[[], None]] = [partial(_draft, drafting, params, most)]
    works += [partial(_verify, pair, cache, count, params) for count in rows]
    fixed, *verify = _least_us(works, progress)
    costs = ", ".join(f"{count - 1}: {us / 1000:.1f}" for count, us in zip(rows, verify, strict=True))
    log.info("Budget auto: ms of a verify by nodes %s; %.1f ms of a draft.", costs, fixed / 1000)
    return AutoBudget(VerifyCost(rows, verify), fixed)


def _least_us(works: Sequence[Callable[[], None]], progress: Progress | None) -> list[float]:
    """The least µs of each work, all in turn until each has had its share of the time, at most ROUNDS rounds."""
    least, spent = [inf] * len(works), [0.0] * len(works)
    share = SECONDS * 1e6 / len(works)
    works[1]()  # the first forward of a process warms up more than itself
    for number in range(ROUNDS):
        if progress is not None:
            progress(MEASURING, number, ROUNDS)
        for place, work in enumerate(works):
            if spent[place] < share:
                began = perf_counter_ns()
                work()
                took = max(1.0, (perf_counter_ns() - began) / 1000)
                least[place], spent[place] = min(least[place], took), spent[place] + took
    if progress is not None:
        progress(MEASURING, ROUNDS, ROUNDS)
    return least


def _verify(pair: Pair, cache: KVCache, count: int, params: Params) -> None:
    """One verify of `count` rows; nothing is committed."""
    ids = [token % pair.target.config.stack.vocab for token in range(count)]
    positions = list(range(CONTEXT, CONTEXT + count))
    bias = pair.target.causal_bias(count) if count > 1 else None
    out = pair.target.forward(ids, positions, cache, bias, pair.drafter.config.target_layer_ids)
    Judge().judge(out.logits, positions, params)


def _draft(drafting: Drafting, params: Params, most: int) -> None:
    """One draft. That a broken drafter cannot draft is the request's to report."""
    with suppress(EngineError):
        drafting.draft(0, params, most)
