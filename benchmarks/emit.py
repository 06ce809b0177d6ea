"""What `Emitter.emit` costs the thread that calls it, and how fast the writer drains: one table.

A step record carries a tree of 64 or 256 nodes and marginals [15, 32]. The hot thread emits every 2 ms, as an engine
does, and computes in Python half of the time in between; then once without a pause, when all is warm in the caches. The
first rows are what any call costs in that loop on this machine now: compare with them. Run: python benchmarks/emit.py
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from ddscope_hooks.emit import Emitter
from ddscope_hooks.emit.encoder import BACKEND, body, body_json

HEADER = {"engine": {"name": "benchmark", "version": "0", "algorithm": "ddtree"}}
DRAIN = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\nwhile s.recv(1<<20): pass"


def step(nodes: int, depths: int = 15, k: int = 32) -> dict[str, Any]:
    """Fields of a step as a tap would hand them over: plain lists."""
    r = random.Random(nodes)
    ids = [[r.randrange(49152) for _ in range(k)] for _ in range(depths)]
    return {
        "rid": "r0", "step": 1, "algorithm": "ddtree", "batch": [0, 1], "base": 100, "root": 5,
        "draft": {"k": k, "ids": ids, "logprobs": [[-r.random() * 9 for _ in range(k)] for _ in range(depths)]},
        "tree": {
            "budget": nodes,
            "tokens": [r.randrange(49152) for _ in range(nodes)],
            "parents": [r.randrange(i + 1) for i in range(nodes)],
            "logprobs": [-r.random() * 9 for _ in range(nodes)],
        },
        "target": {"ids": [r.randrange(49152) for _ in range(nodes + 1)]},
        "path": [0, 1, 2], "bonus": 7, "emitted": [1, 2, 7], "time": {"total": 10000},
    }  # fmt: skip


class Nothing:
    """A call that does nothing: what the loop itself costs."""

    def emit(self, type: str, fields: dict[str, Any]) -> None:
        """Nothing."""


class Append:
    """The least that any ring does: stamp, copy the outer dict, append."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque(maxlen=8192)

    def emit(self, type: str, fields: dict[str, Any]) -> None:
        """Append."""
        self._items.append((type, dict(fields), time.monotonic_ns()))


def hot(emitter: Emitter | Nothing | Append, nodes: int, count: int, pause_s: float) -> list[float]:
    """µs of each of `count` calls. Between two, half of the pause is spent computing in Python, half asleep."""
    fields = step(nodes)
    took = []
    for _ in range(count):
        start = time.perf_counter_ns()
        emitter.emit("step", fields)
        took.append((time.perf_counter_ns() - start) / 1000)
        if pause_s:
            busy = time.perf_counter() + pause_s / 2
            while time.perf_counter() < busy:
                pass
            time.sleep(pause_s / 2)
    return took


def measure(nodes: int, count: int, pause_s: float, viewers: int, stalled: bool, encoder: Any) -> str:
    """One row: emit p50, p99, max; records lost in the ring and for the viewers."""
    with tempfile.TemporaryDirectory() as folder:
        emitter = Emitter("engine/0", HEADER, token_text=lambda ids: [str(i) for i in ids], body=encoder)
        path = emitter.listen(f"unix:{Path(folder, 's')}")
        processes = [subprocess.Popen([sys.executable, "-c", DRAIN, path]) for _ in range(viewers)]
        until = time.monotonic() + 10
        while len(emitter.counters.viewers) < viewers and time.monotonic() < until:
            time.sleep(0.01)
        if stalled:
            processes[0].send_signal(signal.SIGSTOP)
        took = hot(emitter, nodes, count, pause_s)
        counters = emitter.counters
        lost = sum(v.dropped + v.behind for v in counters.viewers)
        if stalled:
            processes[0].send_signal(signal.SIGCONT)
        emitter.close()
        for process in processes:
            process.wait()
    return f"{summary(took)} {counters.dropped:9} {lost:9}"


def summary(took: list[float]) -> str:
    """p50, p99, max."""
    took = sorted(took)
    return f"{statistics.median(took):8.2f} {took[int(len(took) * 0.99)]:8.2f} {took[-1]:9.1f}"


def throughput(encoder: Any, nodes: int, count: int = 4000) -> float:
    """Records a second from ring to a viewer that reads, with an idle hot thread."""
    with tempfile.TemporaryDirectory() as folder:
        emitter = Emitter("engine/0", HEADER, ring=count + 10, body=encoder, queue_bytes=1 << 30)
        fields = step(nodes)
        for _ in range(count):
            emitter.emit("step", fields)
        path = str(Path(folder, "t.jsonl"))
        start = time.perf_counter()
        emitter.listen(f"file:{path}")
        while emitter.counters.emitted < count:
            time.sleep(0.005)
        took = time.perf_counter() - start
        emitter.close()
    return count / took


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=2000, help="emits a row")
    options.add_argument("--pause-ms", type=float, default=2.0, help="between two emits")
    args = options.parse_args()
    encoders = [(BACKEND, body)] + ([("json", body_json)] if body is not body_json else [])
    print(f"emit on the hot thread, {args.count} calls a row, every {args.pause_ms} ms (µs)")
    print(
        f"{'encoder':8}{'nodes':>6}  {'viewers':18}{'p50':>8} {'p99':>8} {'max':>9} {'ring lost':>9} {'view lost':>9}"
    )
    for name, reference in (("nothing", Nothing()), ("append", Append())):
        print(f"{name:8}{64:6}  {'':18}{summary(hot(reference, 64, args.count, args.pause_ms / 1000))}", flush=True)
    for name, encoder in encoders:
        for nodes in (64, 256):
            for label, viewers, stalled in (
                ("none", 0, False),
                ("one", 1, False),
                ("one stopped", 1, True),
                ("three", 3, False),
            ):
                row = measure(nodes, args.count, args.pause_ms / 1000, viewers, stalled, encoder)
                print(f"{name:8}{nodes:6}  {label:18}{row}", flush=True)
    print("\nno pause, warm (µs)")
    for name, reference in (("nothing", Nothing()), ("append", Append())):
        print(f"{name:8}{64:6}  {'':18}{summary(hot(reference, 64, 20000, 0.0))}", flush=True)
    for name, encoder in encoders:
        print(f"{name:8}{64:6}  {'one':18}{measure(64, 20000, 0.0, 1, False, encoder)}", flush=True)
    print("\nring to file, records/s")
    for name, encoder in encoders:
        print(f"{name:8}{64:6}  {throughput(encoder, 64):10,.0f}", flush=True)


if __name__ == "__main__":
    main()
