"""What the store's views cost a frame, at a small and at a large trace: they must not grow with it.

    python benchmarks/session_views.py [--small N] [--large N]

Makes two traces of steps (one request, made up, about 8 KB a step), takes each in, then asks every view as of random
steps and prints the median and the 99th percentile in µs. Below it: first paint, and CPU seconds until all is taken in.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trace_index import header, one_step

from ddscope.model import Record, Request, Tokens
from ddscope.session import Cursor, Store
from ddscope.trace import TraceWriter, encode

REPEAT = 300
WARM = 10


def make(path: Path, count: int) -> Path:
    """One request of `count` steps."""
    rng = random.Random(0)
    start: list[Record] = [
        header(0),
        Tokens(src="engine/0", seq=1, t=0, mono=0, ids=list(range(49152)), text=[f" w{i}" for i in range(49152)]),
        Request(src="engine/0", seq=2, t=0, mono=0, rid="r", prompt_len=20, prompt_ids=list(range(20))),
    ]
    with TraceWriter(path) as writer:
        for record in start:
            writer.write(record)
        for first in range(0, count, 500):
            numbers = range(first, min(first + 500, count))
            writer.write_lines(b"".join(encode(one_step(rng, n + 3, 11_000 * n, "r", n)) for n in numbers))
    return path


def views(store: Store) -> dict[str, Callable[[], object]]:
    """What a frame of the screen asks."""
    cursor = Cursor(store)
    records = store.step_records("r")
    rng = random.Random(1)

    def somewhere() -> int:
        return records[rng.randrange(len(records))]

    return {
        "requests": lambda: store.requests(somewhere())[:30],
        "30 step rows": lambda: store.steps("r", somewhere())[-30:],
        "60 runs of text": lambda: store.text("r", somewhere(), prompt=False)[-60:],
        "depth curve": lambda: store.curve("r", somewhere()),
        "timing": lambda: store.timing("r", somewhere()),
        "totals": lambda: store.totals(somewhere()),
        "facts, state": lambda: (store.facts(somewhere()), store.state(somewhere())),
        "next anomaly": lambda: cursor.anomaly(-1) or cursor.to(store.n - 1),
        "step back": lambda: cursor.step(-1),
        "a tree, unseen": lambda: store.tree(somewhere()),
    }


def measure(path: Path) -> tuple[dict[str, tuple[float, float]], float, float, float]:
    """µs (p50, p99) of each view; first paint in ms, CPU s until settled, worst poll in ms."""
    store = Store(path, use_sidecar=False)
    start = time.perf_counter()
    store.first_paint()
    paint = (time.perf_counter() - start) * 1e3
    cpu, worst, going = time.process_time(), 0.0, True
    while going:
        start = time.perf_counter()
        going = store.poll(0.02)
        worst = max(worst, time.perf_counter() - start)
    cpu = time.process_time() - cpu
    found = {}
    for name, view in views(store).items():
        times = []
        for _ in range(REPEAT + WARM):
            start = time.perf_counter()
            view()
            times.append((time.perf_counter() - start) * 1e6)
        times = sorted(times[WARM:])
        found[name] = (times[REPEAT // 2], times[REPEAT * 99 // 100])
    store.close()
    return found, paint, cpu, worst * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=500, help="steps of the small trace")
    parser.add_argument("--large", type=int, default=10_000, help="steps of the large trace")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {n: measure(make(Path(folder) / f"{n}.jsonl", n)) for n in (args.small, args.large)}
    print(f"{'µs':18}" + "".join(f"{f'{n:,} steps p50':>18}{'p99':>10}" for n in found))
    for name in next(iter(found.values()))[0]:
        print(f"{name:18}" + "".join(f"{rows[name][0]:18.1f}{rows[name][1]:10.1f}" for rows, *_ in found.values()))
    for place, name in ((1, "first paint ms"), (2, "settled, CPU s"), (3, "worst poll ms")):
        print(f"{name:18}" + "".join(f"{row[place]:18.2f}{'':10}" for row in found.values()))


if __name__ == "__main__":
    main()
