"""Indexing a trace against reading the same file with the standard library's json, in one run.

    python benchmarks/trace_index.py [--events N] [--steps N] [--repeat R]

Makes two traces in a temporary folder (small events; large steps with draft, tree and target), then measures each way
in a fresh process, the ways taking turns, and prints a table. Wall and CPU are the best of the repeats; resident is the
peak of the process, the interpreter included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddscope.model import (
    Draft,
    Flags,
    Header,
    Log,
    Probe,
    Producer,
    Record,
    Request,
    Step,
    StepTime,
    Target,
    Tokens,
    TopK,
    Tree,
)
from ddscope.trace import TraceWriter, encode

EPOCH = 1_700_000_000_000_000  # µs; what the records count their time from
DEPTHS, CANDIDATES, NODES = 15, 8, 63
LOG = "Decode batch, #running-req: 2, #token: 68, token usage: 0.00, accept len: 2.50, gen throughput (token/s): 41.83"


def header(t: int) -> Header:
    return Header(
        src="engine/0", seq=0, t=t, mono=t, format="ddscope-trace", version="1.0", min_reader="1.0",
        producer=Producer("benchmark", "1"), host="host",
    )  # fmt: skip


def events(count: int, rng: random.Random) -> Iterator[Record]:
    """A header and small records: half log lines, the rest plain steps, tokens and probes of four requests."""
    yield header(EPOCH)
    seq = {"engine/0": 1, "journal/server": 0, "probe": 0}
    step = [0] * 4
    for i in range(1, count):
        kind = rng.random()
        src = "journal/server" if kind < 0.5 else "probe" if kind < 0.55 else "engine/0"
        common: dict[str, Any] = {"src": src, "seq": seq[src], "t": EPOCH + 900 * i, "mono": 900 * i}
        seq[src] += 1
        if kind < 0.5:
            yield Log(**common, message=LOG, unit="server", pid=4100, priority=6, cursor=f"s=0f;i={i:x}")
        elif kind < 0.55:
            yield Probe(**common, rung="health", ok=True, ms=1.25, detail="200 OK")
        elif kind < 0.6:
            yield Tokens(**common, ids=[i], text=[" token"])
        else:
            r = rng.randrange(4)
            step[r] += 1
            yield Step(
                **common, rid=f"request-{r}", step=step[r] - 1, algorithm="autoregressive", batch=[r, 4], base=step[r],
                root=rng.randrange(49152), path=[0], bonus=rng.randrange(49152), emitted=[rng.randrange(49152)],
                time=StepTime(verify=9000, commit=12, total=9100), time_domain="host",
            )  # fmt: skip


def steps(count: int, rng: random.Random) -> Iterator[Record]:
    """A header and `count` steps of one request after another, 500 steps each, about 8 KB a step."""
    yield header(EPOCH)
    seq = 1
    for i in range(count):
        t = EPOCH + 11_000 * i
        rid, number = f"r{i // 500}", i % 500
        if number == 0:
            yield Request(src="engine/0", seq=seq, t=t, mono=t, rid=rid, prompt_len=20)
            seq += 1
        yield one_step(rng, seq, t, rid, number)
        seq += 1


def one_step(rng: random.Random, seq: int, t: int, rid: str, number: int) -> Step:
    def logs(n: int) -> list[float | None]:
        return [round(-8 * rng.random(), 4) for _ in range(n)]

    def ids(n: int) -> list[int]:
        return [rng.randrange(49152) for _ in range(n)]

    path = list(range(rng.randrange(1, 8)))
    return Step(
        src="engine/0", seq=seq, t=t, mono=t, rid=rid, step=number, algorithm="ddtree", batch=[0, 1], rank=0,
        base=20 + number * 3, root=rng.randrange(49152),
        draft=Draft(
            k=CANDIDATES, ids=[ids(CANDIDATES) for _ in range(DEPTHS)],
            logprobs=[logs(CANDIDATES) for _ in range(DEPTHS)], logz=logs(DEPTHS), entropy=logs(DEPTHS),
        ),
        tree=Tree(
            budget=NODES, tokens=ids(NODES), parents=[rng.randrange(i + 1) for i in range(NODES)], logprobs=logs(NODES),
            positions=[20 + number * 3 + min(i, 9) for i in range(NODES + 1)],
            mask=[f"{rng.getrandbits(64):x}" for _ in range(NODES + 1)],
        ),
        target=Target(
            ids=ids(NODES + 1), logprobs=logs(NODES + 1), gap=logs(NODES + 1),
            topk=TopK(ids=[ids(5) for _ in path], logprobs=[logs(5) for _ in path]),
        ),
        path=path, bonus=rng.randrange(49152), emitted=ids(len(path)),
        time=StepTime(draft=2100, build=300, mask=90, verify=8400, commit=60, total=10950), time_domain="host",
        flags=Flags(sampled=False),
    )  # fmt: skip


def write(path: Path, records: Iterator[Record]) -> None:
    """A finished trace with the records."""
    with TraceWriter(path) as writer:
        batch = []
        for record in records:
            batch.append(encode(record))
            if len(batch) == 1000:
                writer.write_lines(b"".join(batch))
                batch.clear()
        writer.write_lines(b"".join(batch))


# Each way is a program of its own, run in a fresh interpreter.
PRELUDE = """
import json, sys, time
path = sys.argv[1]
def report(records, wall, cpu):
    # VmHWM, not ru_maxrss: that one is inherited from the process that started this one.
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
    print(json.dumps({"records": records, "wall": wall, "cpu": cpu, "rss": peak}))
def clocks():
    return time.perf_counter(), time.process_time()
"""
WAYS = {
    "stdlib json, streaming": """
import json
w, c = clocks()
n = 0
with open(path, "rb") as file:
    for line in file:
        record = json.loads(line)
        n += 1
w2, c2 = clocks()
report(n, w2 - w, c2 - c)
""",
    "ddscope index": """
from ddscope.trace import TraceFile
w, c = clocks()
file = TraceFile(path, use_sidecar=False)
while not file.done:
    file.poll(0.05)
w2, c2 = clocks()
report(file.index.n, w2 - w, c2 - c)
""",
    "ddscope from sidecar": """
from ddscope.trace import TraceFile
w, c = clocks()
file = TraceFile(path)
while not file.done:
    file.poll(0.05)
w2, c2 = clocks()
report(file.index.n, w2 - w, c2 - c)
""",
    "ddscope tail(200)": """
from ddscope.trace import TraceFile
w, c = clocks()
file = TraceFile(path, use_sidecar=False)
n = len(file.tail(200))
w2, c2 = clocks()
report(n, w2 - w, c2 - c)
""",
    "ddscope find_step": """
from ddscope.trace import TraceFile
w, c = clocks()
file = TraceFile(path, use_sidecar=False)
n = len(file.find_step(int(sys.argv[2]), sys.argv[3]))
w2, c2 = clocks()
report(n, w2 - w, c2 - c)
""",
}


def measure(way: str, path: Path, step: int, rid: str) -> dict[str, float]:
    command = [sys.executable, "-c", PRELUDE + WAYS[way], str(path), str(step), rid]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, float] = json.loads(result.stdout)
    return row


def table(name: str, path: Path, step: int, rid: str, repeat: int) -> None:
    measure("ddscope from sidecar", path, step, rid)  # the first opening makes it
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repeat):
        for way in WAYS:
            runs[way].append(measure(way, path, step, rid))
    best = {
        way: {key: min(run[key] for run in of_way) for key in ("records", "wall", "cpu", "rss")}
        for way, of_way in runs.items()
    }
    base = best["stdlib json, streaming"]
    size = path.stat().st_size
    print(f"\n{name}: {base['records']:,.0f} records, {size / 1e6:,.0f} MB")
    print(f"{'':24}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}{'records':>11}{'json/this':>11}")
    for way, row in best.items():
        ratio = base["wall"] / row["wall"]
        print(f"{way:24}{row['wall']:9.3f}{row['cpu']:9.3f}{row['rss']:9.0f}{row['records']:11,.0f}{ratio:10.1f}×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=50_000, help="records of the small-event trace")
    parser.add_argument("--steps", type=int, default=5_000, help="steps of the large-step trace")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, help="a folder for the traces, kept and used again (default: a temporary one)"
    )
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    with tempfile.TemporaryDirectory() as folder:
        where = args.keep or Path(folder)
        for name, count, make, step, rid in (
            ("small events", args.events, events, args.events // 20, "request-1"),
            ("steps", args.steps, steps, 250, f"r{args.steps // 1000}"),
        ):
            path = where / f"{name.replace(' ', '-')}-{count}.jsonl"
            if not path.exists():
                write(path, make(count, random.Random(7)))
            table(name, path, step, rid, args.repeat)


if __name__ == "__main__":
    main()
