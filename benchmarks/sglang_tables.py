"""The arithmetic and the tables of benchmarks/sglang_overhead.py: paired ratios, percentiles, counted CUDA calls."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any


def read_profile(folder: Path) -> list[dict[str, Any]]:
    """Events of the trace in a folder, none while it is not written to its end."""
    with (
        contextlib.suppress(StopIteration, OSError, EOFError, ValueError),
        gzip.open(next(folder.glob("*.gz"))) as file,
    ):
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
        return events
    return []


def kind_of(call: str) -> str:
    """Which of the counted kinds a CUDA runtime or driver call is; empty for none."""
    if "Synchronize" in call:
        return call
    if call.startswith(("cudaMemcpy", "cuMemcpy")):
        return "copies"
    return "kernels" if "LaunchKernel" in call else "graphs" if "GraphLaunch" in call else ""


def ratio(values: list[float], base: list[float]) -> tuple[float, float]:
    """Geometric mean of the paired ratios, and its standard error (both as factors of 1)."""
    logs = [math.log(a / b) for a, b in zip(values, base, strict=True)]
    return math.exp(statistics.fmean(logs)), statistics.stdev(logs) / math.sqrt(len(logs))


def p99(rounds: list[list[float]]) -> float:
    """The 99th percentile of all steps."""
    steps = sorted(step for steps in rounds for step in steps)
    return steps[min(len(steps) - 1, int(len(steps) * 0.99))]


def p99_ratio(values: list[list[float]], base: list[list[float]]) -> tuple[float, float]:
    """Ratio of two 99th percentiles; its error by drawing rounds 200 times with replacement."""
    drawn = random.Random(1)
    logs = []
    for _ in range(200):
        picked = drawn.choices(range(len(base)), k=len(base))
        logs.append(math.log(p99([values[i] for i in picked]) / p99([base[i] for i in picked])))
    return p99(values) / p99(base), statistics.stdev(logs)


def cell(value: tuple[float, float]) -> str:
    """A ratio and its standard error."""
    return f"{value[0]:.3f} ± {value[1]:.3f}"


def tables(results: list[dict[str, Any]], states: tuple[str, ...]) -> str:
    """Markdown: speeds and step times as ratios to the first state, then what was counted and compared."""
    base, *others = states
    lines = [
        f"| algorithm | batch | rounds | tokens/s, {base} | " + " | ".join(others) + f" | p99 step ms, {base} | "
        + " | ".join(others) + " |",
        "|---" * (5 + 2 * len(others)) + "|",
    ]  # fmt: skip
    for result in results:
        for run in result["cells"]:
            speeds, steps = run["tokens_s"], run["steps_ms"]
            cells = [result["algorithm"], str(run["batch"]), str(len(speeds[base]))]
            cells += [f"{statistics.fmean(speeds[base]):.0f}", *(cell(ratio(speeds[s], speeds[base])) for s in others)]
            cells += [f"{p99(steps[base]):.2f}", *(cell(p99_ratio(steps[s], steps[base])) for s in others)]
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| algorithm | requests exact | steps recorded = verified | with a tree | under a graph | overlapped | gaps"
        " | a step | " + " | ".join(states) + " |",
        "|---" * (8 + len(states)) + "|",
    ]
    for result in results:
        seen, counts = result["exact"], result["counts"]
        left = [result["algorithm"], *(f"{seen.get(name, 0)}/{seen['requests']}" for name in ("exact", "verified"))]
        left += [f"{seen.get(name, 0)}/{seen['steps']}" for name in ("trees", "graph", "overlap")]
        left.append(str(seen.get("gaps", 0)))
        for kind in dict.fromkeys(kind for state in states for kind in counts[state]):
            cells = [*left, kind, *(f"{counts[state].get(kind, 0):.2f}" for state in states)]
            lines.append("| " + " | ".join(cells) + " |")
            left = [""] * len(left)
    return "\n".join(lines)
