"""What the diagnosis costs a record: µs a step at several budgets and µs a log line, against decoding the same record.

Prints one table. `python benchmarks/diagnose.py [TRACE]`: with a trace, the same for its records as they are.
The steps are drawn at random with the shape of the engine's records: marginals of 15 depths, a tree, positions, mask,
the target's choices with log-probabilities and gaps, its top 8 along the path.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

from ddscope.diagnose import Diagnosis
from ddscope.diagnose.detectors import all_detectors
from ddscope.model import (
    Draft,
    Flags,
    Header,
    Log,
    Model,
    Producer,
    Record,
    Request,
    Step,
    StepTime,
    Target,
    TopK,
    Tree,
)
from ddscope.trace import decode, encode

VOCAB, DEPTHS, STEPS, ROUNDS = 49_152, 15, 200, 25


def header() -> Header:
    producer = Producer("bench", "1")
    model = Model(target="t", vocab_size=VOCAB, hidden_size=576)
    common = {"src": "engine/0", "seq": 0, "t": 0, "mono": 0}
    return Header(
        **common, format="ddscope-trace", version="1.0", min_reader="1.0", producer=producer, host="h", model=model
    )


def sound_steps(budget: int, seed: int = 0) -> list[Record]:
    """A header, a request and STEPS sound greedy steps of one request."""
    rng = random.Random(seed)
    common = {"src": "engine/0", "t": 0, "mono": 0}
    records: list[Record] = [header(), Request(**common, seq=1, rid="r0", prompt_len=60, sampling={"temperature": 0.0})]
    base, root = 60, 1
    for number in range(STEPS):
        step = _step(rng, budget, number, base, root)
        records.append(step)
        base, root = base + len(step.path or ()), step.bonus or 0
    return records


def _step(rng: random.Random, budget: int, number: int, base: int, root: int) -> Step:
    k = max(1, min(budget, 31))
    parents, depths, rows = _tree(rng, budget)
    tokens = rng.sample(range(VOCAB), budget)
    choices = [rng.randrange(VOCAB) for _ in range(budget + 1)]
    path = [0]
    while len(path) < 4 and (children := [n for n, p in enumerate(parents, 1) if p == path[-1]]):
        choices[path[-1]] = tokens[children[0] - 1]
        path.append(children[0])
    bonus = choices[path[-1]] = VOCAB - 1
    return Step(
        src="engine/0", seq=number + 2, t=0, mono=0, rid="r0", step=number, algorithm="ddtree", batch=[0, 1], rank=0,
        base=base, root=root, path=path, bonus=bonus, emitted=[*(tokens[n - 1] for n in path[1:]), bonus],
        draft=Draft(
            k=k,
            ids=[rng.sample(range(VOCAB), k) for _ in range(DEPTHS)],
            logprobs=[sorted((-10 * rng.random() for _ in range(k)), reverse=True) for _ in range(DEPTHS)],
            logz=[20 * rng.random() for _ in range(DEPTHS)],
            entropy=[4 * rng.random() for _ in range(DEPTHS)],
        ),
        tree=Tree(
            budget=budget, tokens=tokens, parents=parents, logprobs=[-rng.random() for _ in range(budget)],
            positions=[base + depth for depth in depths], mask=[format(row, "x") for row in rows],
        ),
        target=Target(
            ids=choices,
            logprobs=[-rng.random() for _ in choices],
            gap=[rng.random() for _ in choices],
            topk=TopK(ids=[[1] * 8 for _ in path], logprobs=[[-1.5] * 8 for _ in path]),
        ),
        time=StepTime(draft=8000, build=300, mask=100, verify=40_000, commit=200, total=48_600),
        time_domain="host",
        flags=Flags(graph=False, overlap=False, sampled=False),
    )  # fmt: skip


def _tree(rng: random.Random, budget: int) -> tuple[list[int], list[int], list[int]]:
    parents, depths, rows = [], [0], [1]
    for node in range(1, budget + 1):
        parent = rng.choice([n for n in range(max(0, node - 6), node) if depths[n] < DEPTHS] or [0])
        parents.append(parent)
        depths.append(depths[parent] + 1)
        rows.append(rows[parent] | 1 << node)
    return parents, depths, rows


def log_lines(count: int = 400) -> dict[str, list[Record]]:
    """Records of a server's journal, by sort of line."""
    decode_ = (
        "[2026-09-21 14:10:36 TP0] Decode batch, #running-req: 8, #token: {0}, token usage: 0.02, accept len: 3.10, "
        "accept rate: 0.30, cuda graph: True, gen throughput (token/s): 845.01, #queue-req: 0"
    )
    texts = {
        "Decode batch": decode_,
        "answered requests": 'INFO:     127.0.0.1:{0} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "other lines": "[2026-09-21 14:10:36 TP0] tree node {0}: parent 3, depth 4, log-probability -0.73 of its token",
        "tracebacks": '  File "/opt/venv/lib/python3.12/site-packages/sglang/srt/managers/tp.py", line {0}, in run',
    }
    return {
        name: [
            Log(
                src="journal/sglang.service", seq=n, t=n * 250_000, mono=n * 250_000, message=text.format(n), pid=4100,
                unit="sglang.service", priority=6, ident="python3", cursor=f"s=aa;i={n:x};b=5c0ffee05c0ffee05c0ffee0",
            )
            for n in range(count)
        ]
        for name, text in texts.items()
    }  # fmt: skip


class Watch:
    """µs a call: the best of ROUNDS for each record, then their mean, as the machine's other work only adds."""

    def __init__(self, records: int) -> None:
        self._best = [float("inf")] * records

    def note(self, record: int, ns: int) -> None:
        if ns < self._best[record]:
            self._best[record] = ns

    @property
    def us(self) -> float:
        return sum(self._best) / len(self._best) / 1000


def measure(lines: list[bytes], observer: Callable[[], Callable[[object, int], None]]) -> tuple[float, float]:
    """(decode µs, observe µs) a record. It is observed right after it was decoded, as in use: it is in the cache."""
    decoding, observing = Watch(len(lines)), Watch(len(lines))
    for _ in range(ROUNDS):
        observe = observer()
        for number, line in enumerate(lines):
            began = perf_counter_ns()
            record = decode(line)
            decoded = perf_counter_ns()
            observe(record, number)
            done = perf_counter_ns()
            decoding.note(number, decoded - began)
            observing.note(number, done - decoded)
    return decoding.us, observing.us


def rule(number: int) -> Callable[[object, int], None]:
    """One rule alone, given what it wants."""
    detector = all_detectors()[number]
    wants = detector.wants

    def observe(record: object, index: int) -> None:
        if isinstance(record, wants):
            detector.observe(record, index)

    return observe


def row(name: str, lines: list[bytes]) -> None:
    decoding, observing = measure(lines, lambda: Diagnosis().observe)
    size = sum(map(len, lines)) / len(lines) / 1024
    print(f"{name:<22} {len(lines):>8,} {size:>9.1f} {decoding:>10.1f} {observing:>10.1f} {observing / decoding:>8.2f}")


def main(arguments: list[str]) -> None:
    print(f"{'records':<22} {'count':>8} {'KB each':>9} {'decode µs':>10} {'observe µs':>10} {'ratio':>8}")
    if arguments:
        row(Path(arguments[0]).name, Path(arguments[0]).read_bytes().splitlines())
        return
    for budget in (0, 7, 15, 31, 63, 255):
        row(f"steps of budget {budget}", [encode(record) for record in sound_steps(budget)])
    for name, records in log_lines().items():
        row(f"log: {name}", [encode(record) for record in records])
    lines = [encode(record) for record in sound_steps(31)]
    print("\nby rule, budget 31           µs a step")
    for number, detector in enumerate(all_detectors()):
        cost = measure(lines, lambda number=number: rule(number))[1]  # type: ignore[misc]
        print(f"{detector.id:<30} {cost:>7.2f}")
    diagnosis = Diagnosis()
    for line in lines:
        diagnosis.observe(decode(line))
    assert diagnosis.findings() == [], "the steps were meant to be sound"
    asking = Watch(1)
    for _ in range(200):
        diagnosis.observe(decode(lines[1]))
        began = perf_counter_ns()
        diagnosis.findings()
        asking.note(0, perf_counter_ns() - began)
    print(f"{'findings(), when asked':<30} {asking.us:>7.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
