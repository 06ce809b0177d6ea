"""The embedded engine on this machine: τ, tokens/s and stage times of the three algorithms, interleaved by prompt.

    python benchmarks/engine_cpu.py [--dtype float32 bfloat16] [--prompts 12] [--tokens 96] [--threads 2] [--clock wall]

One row is plain decoding with torch's own products in place of the packed ones: what a plain implementation gets here.
All settings decode the same held-out prompts greedily in one process, in turn, prompt by prompt, so that whatever else
the machine does hits all of them. A ratio is the median over prompts of a setting's tokens/s over plain decoding's
on the same prompt. Time is decoding alone, without the prefill; with `--clock cpu` it is the process's CPU time, which
is steadier on a busy machine (use one thread then: a waiting thread also burns time). Prints one table a dtype.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

from ddscope.engine import linear
from ddscope.engine.budget import AUTO, AutoBudget
from ddscope.engine.calibrate import calibrate
from ddscope.engine.generate import Generator, Params
from ddscope.engine.judge import Judge
from ddscope.engine.pair import SHIPPED_DRAFT, Pair, load_pair

import torch  # isort: skip  # after the engine, which says how its threads wait

PLAIN = "autoregressive"
UNPACKED = "plain, torch's products"
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {"algorithm": "autoregressive"},
    UNPACKED: {"algorithm": "autoregressive"},
    "chain, block 16": {"algorithm": "dflash", "draft_rows": 16},
    "chain, block 8": {"algorithm": "dflash", "draft_rows": 8},
    "chain, block 5": {"algorithm": "dflash", "draft_rows": 5},
    "tree 3, block 6": {"budget": 3, "draft_rows": 6},
    "tree 5, block 6": {"budget": 5, "draft_rows": 6},
    "tree 7, block 8": {"budget": 7, "draft_rows": 8},
    "tree 11, block 8": {"budget": 11, "draft_rows": 8},
    "tree 15, block 8": {"budget": 15, "draft_rows": 8},
    "tree 15, block 16": {"budget": 15, "draft_rows": 16},
    "tree 31, block 16": {"budget": 31, "draft_rows": 16},
    "tree 63, block 16": {"budget": 63, "draft_rows": 16},
    "tree 15 cut 0.1, block 6": {"budget": 15, "draft_rows": 6, "cut": 0.1},
    "the same, of 12,288 ids": {"budget": 15, "draft_rows": 6, "cut": 0.1, "draft_vocab": 12_288},
    "tree auto, block 6": {"budget": "auto", "draft_rows": 6},
    "tree auto, block 8": {"budget": "auto", "draft_rows": 8},
    "tree auto, block 16": {"budget": "auto", "draft_rows": 16},
}
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}
STAGES = ("draft", "build", "mask", "verify", "commit")


@dataclass
class Score:
    """Sums over prompts, and per prompt what the medians need."""

    tokens: int = 0
    steps: int = 0
    nodes: int = 0
    seconds: float = 0.0
    same: int = 0
    speeds: list[float] = field(default_factory=list)
    stages: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def decode(
    pair: Pair, prompt: list[int], score: Score, params: Params, clock: Clock, auto: AutoBudget | None
) -> list[int]:
    """Decode one prompt and add it to the score."""
    generator = Generator(pair, prompt, params, auto)
    generator.start()
    began = clock()
    while not generator.done:
        result = generator.draft_and_verify()
        generator.commit(result)
        score.steps += 1
        score.nodes += len(result.tokens)
        for stage, took in result.times.items():
            score.stages[stage].append(took)
    took = clock() - began
    score.seconds += took
    score.tokens += len(generator.output) - 1
    score.speeds.append((len(generator.output) - 1) / took)
    return generator.output


def load(dtype: str, *, packed: bool) -> Pair:
    """The pair that ddscope comes with, its products packed as usual or left to torch."""
    pays = linear._packing_pays
    if not packed:
        linear._packing_pays = lambda dtype: False
    try:
        return load_pair(dtype=dtype)
    finally:
        linear._packing_pays = pays


def measure(
    pairs: dict[bool, Pair], prompts: list[list[int]], tokens: int, names: list[str], clock: Clock
) -> dict[str, Score]:
    """Every setting on every prompt; the order turns from prompt to prompt. pairs: by whether products are packed."""
    scores = {name: Score() for name in names}
    warm_up = Score()
    autos: dict[str, AutoBudget | None] = dict.fromkeys(names)
    for name in names:
        params = Params(**{"max_new_tokens": 6, **SETTINGS[name]})
        decode(pairs[name != UNPACKED], prompts[0], warm_up, params, clock, None)
        if params.budget == AUTO:
            autos[name] = calibrate(pairs[True], params)
    for number, prompt in enumerate(prompts):
        turn = number % len(names)
        texts = {}
        for name in [*names[turn:], *names[:turn]]:
            params = Params(**{"max_new_tokens": tokens, **SETTINGS[name]})
            texts[name] = decode(pairs[name != UNPACKED], prompt, scores[name], params, clock, autos[name])
        for name in names:
            scores[name].same += texts[name] == texts[PLAIN]
    return scores


def rows(scores: dict[str, Score]) -> Iterator[str]:
    """One line a setting."""
    plain = scores[PLAIN].speeds
    yield f"{'':26} {'τ':>5} {'nodes':>6} {'tok/s':>6} {'×plain (quartiles)':>20} {'same':>6}  ms: " + " ".join(
        f"{stage:>6}" for stage in STAGES
    )
    for name, score in scores.items():
        ratios = [speed / base for speed, base in zip(score.speeds, plain, strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        stages = " ".join(f"{median(score.stages[stage]) / 1000:6.1f}" for stage in STAGES)
        yield (
            f"{name:26} {score.tokens / score.steps:5.2f} {score.nodes / score.steps:6.1f} "
            f"{score.tokens / score.seconds:6.1f} {middle:9.2f} ({low:.2f}–{high:.2f}) "
            f"{score.same:3}/{len(plain):<2}      {stages}"
        )


def recording(pair: Pair, prompt: list[int]) -> str:
    """What it costs to know the target's choice, gap, log-probability and top-8, over a bare argmax, at 16 nodes."""
    generator = Generator(pair, prompt, Params(budget=15, max_new_tokens=8))
    generator.start()
    result = generator.draft_and_verify()
    judge, positions = Judge(), [result.base + depth + 1 for depth in result.depths]

    def best(work: Any) -> float:
        times = []
        for _ in range(30):
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        return min(times) * 1000

    def full() -> None:
        step, logz, _ = judge.judge(result.logits, positions, Params())
        judge.add_topk(step, result.logits, logz, result.path)

    with torch.inference_mode():
        whole, bare = best(full), best(lambda: result.logits.argmax(-1).tolist())
    return f"Choice, gap, log-probability and path top-8 of 16 nodes: {whole:.1f} ms; a bare argmax: {bare:.1f} ms."


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--only", nargs="+", metavar="SETTING", help=f"of: {'; '.join(SETTINGS)}")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = [PLAIN, *(name for name in SETTINGS if name != PLAIN and (not args.only or name in args.only))]
    lines = (SHIPPED_DRAFT / "heldout-prompts.jsonl").read_text("utf-8").splitlines()
    prompts = [json.loads(line)["prompt_ids"] for line in lines[: args.prompts]]
    for dtype in args.dtype:
        pairs = {packed: load(dtype, packed=packed) for packed in (True, False)}
        pair = pairs[True]
        print(f"\n{pair.title}, {args.threads} threads, torch {torch.__version__}, {platform.machine()}")
        print(f"{len(prompts)} prompts × {args.tokens} tokens, greedy, {args.clock} time\n")
        print("\n".join(rows(measure(pairs, prompts, args.tokens, names, CLOCKS[args.clock]))), flush=True)
        print(f"\n{recording(pair, prompts[0])}", flush=True)


if __name__ == "__main__":
    main()
