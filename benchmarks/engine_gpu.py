"""The embedded engine on a CUDA device: τ and tokens/s of plain decoding, a chain and trees, all as CUDA graphs.

    python benchmarks/engine_gpu.py [--requests 1 8] [--budgets 16 32 64 128 255] [--tokens 192] [--prompts 16] …

Every setting is one CUDA graph a step, plain decoding and the chain too. All settings decode the same held-out prompts
in one process, group of prompts by group, in random order, so that whatever the device does hits all of them. Time is
device time from the first step's launch to the last step's end, without the prefill; a step reads nothing back but
what it emitted, except where the row says traced. A ratio is the median over groups of a setting's tokens/s over that
of plain decoding, or of the chain, in the same group. `--synthetic SHAPE` takes a random-weight target of that shape
and a target's choice that follows drawn paths: what a tree costs there, not what it yields; label it so.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ddscope.engine.budget import AUTO
from ddscope.engine.device.decoder import Decoder
from ddscope.engine.device.generator import DeviceGenerator
from ddscope.engine.device.ladder import LadderBudget, measure_ladder
from ddscope.engine.device.plan import Plan
from ddscope.engine.device.step import Step
from ddscope.engine.pair import DTYPES, SHIPPED_DRAFT, Pair, load_pair
from ddscope.engine.step import Params

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import SHAPES, SyntheticStep, synthetic_pair

PLAIN, CHAIN = "plain", "chain"
EARLY = {"auto": None, "on": True, "off": False}


@dataclass(frozen=True)
class Setting:
    """One row: how it decodes, and whether all of a trace is read back."""

    name: str
    params: Params
    traced: bool = False


@dataclass
class Score:
    """Sums over groups of prompts, and per group what the medians need."""

    tokens: int = 0
    request_steps: int = 0
    us: list[float] = field(default_factory=list)  # of a step, per group
    speeds: list[float] = field(default_factory=list)
    same: int = 0
    texts: int = 0


def settings(given: argparse.Namespace, temperature: float) -> list[Setting]:
    """Rows of one temperature."""

    def params(algorithm: str, budget: int = 0) -> Params:
        return Params(algorithm, budget, temperature=temperature, seed=1, max_new_tokens=given.tokens)  # type: ignore[arg-type]

    rows = [Setting(PLAIN, params("autoregressive")), Setting(CHAIN, params("dflash"))]
    rows += [Setting(f"tree {budget}", params("ddtree", budget)) for budget in given.budgets]
    if given.traced:
        rows += [Setting(f"tree {budget}, traced", params("ddtree", budget), traced=True) for budget in given.traced]
        rows.append(Setting(f"{CHAIN}, traced", params("dflash"), traced=True))
    if given.auto:
        rows.append(Setting("tree auto, traced", replace(params("ddtree"), budget=AUTO), traced=True))
    return rows


def groups(prompts: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    """Whole groups of `size` prompts."""
    for first in range(0, len(prompts) - size + 1, size):
        yield prompts[first : first + size]


def decode(decoder: Decoder, plan: Plan, prompts: list[list[int]], params: Params, score: Score) -> list[list[int]]:
    """Decode a group and add it to the score; its texts."""
    texts: list[list[int]] = []
    ended = []
    for place, prompt in enumerate(prompts):
        options = {"max_new_tokens": params.max_new_tokens, "temperature": params.temperature}
        token, reason = decoder.load(place, prompt, seed=params.seed + place, **options)
        texts.append([token])
        ended.append(reason is not None)
    launched = steps = request_steps = 0
    began, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    decoder.forget_time()
    began.record()
    while not all(ended):
        while decoder.waiting < 2:
            decoder.launch(plan)
            launched += 1
        told = decoder.collect()
        steps += 1
        for place, text in enumerate(texts):
            if not ended[place]:
                text += told.emitted(place)
                request_steps += 1
                ended[place] = told.reason(place) is not None
    ends.record()
    while decoder.waiting:
        decoder.collect()
    torch.cuda.synchronize()
    if not steps:
        return texts
    us = began.elapsed_time(ends) * 1000 / launched  # a step costs the same whoever still runs
    tokens = sum(len(text) - 1 for text in texts)
    score.tokens += tokens
    score.request_steps += request_steps
    score.us.append(us)
    score.speeds.append(len(prompts) * tokens / request_steps / us * 1e6)
    return texts


def decode_auto(decoder: Decoder, auto: LadderBudget, prompt: list[int], params: Params, score: Score) -> list[int]:
    """Decode one prompt with a budget of auto, which reads the marginals of every step back."""
    generator = DeviceGenerator(decoder, prompt, params, auto)
    generator.start()
    began, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    decoder.forget_time()
    began.record()
    steps = 0
    while not generator.done:
        generator.commit(generator.draft_and_verify())
        steps += 1
    ends.record()
    launched = steps + decoder.waiting
    generator.close()
    torch.cuda.synchronize()
    if steps:
        us = began.elapsed_time(ends) * 1000 / launched
        score.tokens += len(generator.output) - 1
        score.request_steps += steps
        score.us.append(us)
        score.speeds.append((len(generator.output) - 1) / steps / us * 1e6)
    return generator.output


def measure(pair: Pair, given: argparse.Namespace, requests: int, rows: list[Setting], make: type[Step]) -> None:
    """Decode everything in turn and print a table."""
    prompts = held_out(pair, given)[: max(given.prompts, requests)]
    capacity = given.rows or max(map(len, prompts)) + given.tokens + max(given.budgets) + 2
    decoder = Decoder(
        pair,
        requests=requests,
        rows=-(-capacity // 64) * 64,
        most=max(given.budgets),
        graphs=not given.eager,
        early_launch=EARLY[given.early],
        make_step=make,
    )
    plans = {
        row.name: Plan.of(row.params, pair.drafter.config, traced=row.traced)
        for row in rows
        if row.params.budget != AUTO
    }
    began = perf_counter()
    auto = measure_ladder(decoder, rows[-1].params) if rows[-1].params.budget == AUTO and requests == 1 else None
    for plan in plans.values():
        decoder.prepare(plan)
    print(f"  {len(plans)} graphs in {perf_counter() - began:.1f} s, cache of {decoder.rows} rows", flush=True)
    scores = {row.name: Score() for row in rows}
    order = random.Random(1)
    for group in groups(prompts, requests):
        texts = {}
        for row in order.sample(rows, len(rows)):
            if row.params.budget == AUTO:
                if auto is not None:
                    texts[row.name] = [decode_auto(decoder, auto, group[0], row.params, scores[row.name])]
                continue
            texts[row.name] = decode(decoder, plans[row.name], group, row.params, scores[row.name])
        for name, written in texts.items():
            scores[name].same += sum(a == b for a, b in zip(written, texts[PLAIN], strict=True))
            scores[name].texts += len(written)
    show(rows, scores)
    keep(given, {"requests": requests, "temperature": rows[0].params.temperature, "rows": {
        name: {"tau": s.tokens / max(s.request_steps, 1), "us": s.us, "speeds": s.speeds, "same": s.same, "of": s.texts}
        for name, s in scores.items()
    }})  # fmt: skip


def show(rows: list[Setting], scores: dict[str, Score]) -> None:
    """One table."""
    head = ("", "τ", "µs a step", "tokens/s", "to plain", "to chain", "texts as plain")
    print("  {:22} {:>6} {:>10} {:>9} {:>9} {:>9} {:>15}".format(*head))
    for row in rows:
        score = scores[row.name]
        if not score.speeds:
            continue
        ratios = [
            median(mine / other for mine, other in zip(score.speeds, scores[base].speeds, strict=True))
            for base in (PLAIN, CHAIN)
        ]
        print(
            f"  {row.name:22} {score.tokens / score.request_steps:6.2f} {median(score.us):10.1f} "
            f"{median(score.speeds):9.0f} {ratios[0]:8.2f}× {ratios[1]:8.2f}× {score.same:>8} of {score.texts}",
            flush=True,
        )


def keep(given: argparse.Namespace, result: dict[str, Any]) -> None:
    """Append a line of JSON."""
    if given.json:
        with given.json.open("a") as out:
            out.write(json.dumps(result | {"dtype": given.dtype, "synthetic": given.synthetic}) + "\n")


def held_out(pair: Pair, given: argparse.Namespace) -> list[list[int]]:
    """Ids of the held-out prompts; for a synthetic target any ids."""
    if given.synthetic:
        draw = random.Random(0)
        return [[draw.randrange(pair.target.config.stack.vocab) for _ in range(given.context)] for _ in range(64)]
    lines = (SHIPPED_DRAFT / "heldout-prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt_ids"] for line in lines]


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="folder of the target (the embedded engine's own)")
    parser.add_argument("--draft", type=Path, help="folder of its drafter")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--requests", type=int, nargs="*", default=[1])
    parser.add_argument("--budgets", type=int, nargs="*", default=[16, 32, 64, 128, 255])
    parser.add_argument("--traced", type=int, nargs="*", default=[64], help="budgets that are also measured traced")
    parser.add_argument("--auto", action="store_true", help="a row with a budget of auto, one request only")
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 0.7])
    parser.add_argument("--tokens", type=int, default=192, help="a prompt at most")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt (synthetic only)")
    parser.add_argument("--rows", type=int, help="of a request's cache (as many as are needed)")
    parser.add_argument("--synthetic", choices=tuple(SHAPES), help="a random-weight target of this shape")
    parser.add_argument("--eager", action="store_true", help="no graphs: launch by launch")
    parser.add_argument(
        "--early", choices=tuple(EARLY), default="auto", help="kernels start before the one before them ends"
    )
    parser.add_argument("--profile", action="store_true", help="kernels of a few steps by time, in place of tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append results, one object a line")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("This is measured on a CUDA device, and there is none here.", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    if given.synthetic:
        pair, make = synthetic_pair(given.synthetic, DTYPES[given.dtype], device), SyntheticStep
    else:
        pair, make = load_pair(given.target, given.draft, given.dtype, device), Step
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {pair.title}")
    for requests in given.requests:
        for temperature in given.temperatures if not given.synthetic else [0.0]:
            print(f"{requests} request(s), temperature {temperature:g}" + (", SYNTHETIC" if given.synthetic else ""))
            rows = settings(given, temperature)
            if given.profile:
                profile(pair, given, requests, rows, make)
            else:
                measure(pair, given, requests, rows, make)
    return 0


def profile(pair: Pair, given: argparse.Namespace, requests: int, rows: list[Setting], make: type[Step]) -> None:
    """Kernels of eight replays of each setting."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    prompts = held_out(pair, given)[:requests]
    decoder = Decoder(
        pair,
        requests=requests,
        rows=1024,
        most=max(given.budgets),
        early_launch=EARLY[given.early],
        make_step=make,
    )
    for row in rows:
        plan = Plan.of(row.params, pair.drafter.config, traced=row.traced)
        for place, prompt in enumerate(prompts):
            decoder.load(place, prompt, max_new_tokens=given.tokens, temperature=row.params.temperature)
        decoder.prepare(plan)
        torch.cuda.synchronize()
        with torch_profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as run:
            for _ in range(8):
                decoder.launch(plan)
                decoder.collect()
            torch.cuda.synchronize()
        print(f"== {row.name}")
        print(run.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=60))


if __name__ == "__main__":
    sys.exit(main())
