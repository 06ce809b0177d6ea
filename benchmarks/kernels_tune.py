"""How the kernels' work is best cut on this device: tile sizes, slices and warps tried, and what the defaults cost.

Started by `python benchmarks/kernels.py --tune SECONDS`, which measures.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddscope_kernels import batched

if TYPE_CHECKING:
    from kernels_measure import Bench


@dataclass
class Trial:
    """One way to cut the work of a shape."""

    shape: str
    ways: dict[str, Callable[[], Any]]
    default: str


def attention_trials(bench: Bench) -> list[Trial]:
    """Ways to cut the tree attention, over one cache with a capacity as of the engine, and over long ones."""
    from ddscope_kernels.jit import attention as jit

    arrivals = torch.zeros(65536, dtype=torch.int32, device=bench.device)
    narrow = [(16, 128, 4, 2, False), (16, 32, 4, 1, True), (16, 64, 4, 1, True), (16, 32, 8, 1, True),
              (16, 64, 8, 1, True), (32, 32, 8, 1, True)]  # fmt: skip
    wide = [(32, 64, 4, 2, False), (64, 64, 4, 2, False), (64, 64, 8, 2, False)]
    short = (1, 2, 4)
    sizes = [
        (1, 9, 3, 64, nodes, rows, 1024, narrow, short) for rows in (600, 200, 1000) for nodes in (65, 33, 16, 1, 129)
    ]
    sizes[5:5] = [(8, 9, 3, 64, nodes, 600, 1024, narrow, short) for nodes in (65, 16, 1)]
    sizes += [(1, 32, 8, 128, 65, rows, rows, wide, (4, 8, 16)) for rows in (512, 4096, 32768)]
    trials = []
    for requests, heads, kv_heads, width, nodes, rows, capacity, tiles, splits in sizes:
        q = bench.random(requests, nodes, heads, width)
        k, v = bench.random(requests, kv_heads, capacity, width), bench.random(requests, kv_heads, capacity, width)
        bits = torch.full((requests, nodes, (nodes + 31) // 32), -1, dtype=torch.int32, device=bench.device)
        lengths = torch.full((requests,), min(rows, capacity) - nodes, dtype=torch.int32, device=bench.device)
        counts = torch.full_like(lengths, nodes - 1)

        def way(cut: Any, arrived: Tensor | None, q=q, k=k, v=v, b=bits, n=lengths, c=counts) -> Callable[[], Any]:
            return lambda: jit.launch(q, k, v, b, n, c, None, 0.1, None, arrived, cut)

        ways = {"default": way(None, None), "default, one launch": way(None, arrivals)}
        for block_m, block_n, warps, stages, apart in tiles:
            if block_m > max(16, 2 * nodes * heads // kv_heads):
                continue
            for parts in splits:
                cut = jit.Tiles(block_m, block_n, warps, stages, parts, apart=apart)
                name = f"{block_m} × {block_n}{' apart' if apart else ''}, warps {warps}, splits {parts}"
                ways[name] = way(cut, arrivals)
                if parts > 1:
                    ways[f"{name}, two launches"] = way(cut, None)
        trials.append(
            Trial(f"attention R {requests}, {heads}/{kv_heads} × {width}, N {nodes}, {rows} rows", ways, "default")
        )
    return trials


def topk_trials(bench: Bench) -> list[Trial]:
    """Logits a program of the first pass of the top-k."""
    from ddscope_kernels.jit import topk as jit

    trials = []
    for rows, k in ((15, 64), (33, 8), (120, 64)):
        logits = bench.random(1, rows, 49152) * 4
        ways: dict[str, Callable[[], Any]] = {"default": partial(jit.launch, logits, k, None)}
        for block in (1024, 2048, 4096):
            for warps in (4, 8):
                for merge_warps in (2, 4, 8):
                    if block // warps <= 512 and (k > 8 or merge_warps == 2):
                        call = partial(jit.launch, logits, k, None, block=block, warps=warps, merge_warps=merge_warps)
                        ways[f"block {block}, warps {warps} and {merge_warps}"] = call
        trials.append(Trial(f"topk {rows} × 49152, k {k}", ways, "default"))
    return trials


def build_trials(bench: Bench, logprobs: Tensor, ids: Tensor) -> list[Trial]:
    """Warps of a program of the builder, both ways of growing."""
    from ddscope_kernels.jit import tree as jit

    trials = []
    for budget in (32, 64, 128, 256, 512, 1024):
        out = batched.empty_trees(1, budget, bench.device)
        ways: dict[str, Callable[[], Any]] = {"default": partial(batched.build_tree, logprobs, ids, budget, out=out)}
        for merge in (False, True):
            for warps in (1, 2, 4, 8, 16):
                each = budget / 32 / warps
                if (
                    each > (4 if merge else 8) or each < 1 or (not merge and budget > 64)
                ):  # a thread's nodes; many are slow to compile, too
                    continue
                call = partial(jit.launch, logprobs, ids, None, None, None, None, out, merge, warps)
                ways[f"{'merges' if merge else 'pointers'}, warps {warps}"] = call
        trials.append(Trial(f"build_tree R 1, B {budget}", ways, "default"))
    return trials


def tune(bench: Bench, seconds: float, logprobs: Tensor, ids: Tensor, only: list[str] | None) -> None:
    """Try the ways: all are compiled first, on as many threads as there are processors, then timed while time is left.

    logprobs, ids: [1, D, k] candidates for the builder. only: attention, build, topk, or all where it is empty.
    """
    until = perf_counter() + seconds
    parts = {
        "attention": lambda: attention_trials(bench),
        "build": lambda: build_trials(bench, logprobs, ids),
        "topk": lambda: topk_trials(bench),
    }
    trials = [trial for name, part in parts.items() if not only or name in only for trial in part()]
    bench.quick = True
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for future in [pool.submit(call) for trial in trials for call in trial.ways.values()]:
            if future.exception() is not None:
                print(f"  cannot run: {str(future.exception())[:100]!r}", flush=True)
    torch.cuda.synchronize()
    print(f"# compiled, {until - perf_counter():.1f} s left", flush=True)
    for trial in trials:
        times = {}
        for name, call in trial.ways.items():
            if perf_counter() > until and name != trial.default:
                continue
            with suppress(Exception):  # what cannot run was named above
                times[name] = bench.graph(call)
            torch.cuda.synchronize()
        best = sorted(times.items(), key=lambda item: item[1])
        shown = ", ".join(f"{us:.2f} ({name})" for name, us in best[:4])
        print(f"{trial.shape:38} default {times.get(trial.default, 0.0):.2f}; best {shown}", flush=True)
        if "default, one launch" in times:
            print(f"{'':38} default, one launch {times['default, one launch']:.2f}", flush=True)
        bench.write({"tune": trial.shape, "us": times})
