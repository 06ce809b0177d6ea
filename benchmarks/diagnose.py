"""What the diagnosis costs a record: µs a step at several budgets, against decoding the same record.

Prints one table. `python benchmarks/diagnose.py [TRACE]`: with a trace, the same for its records as they are.
The steps are drawn at random with the shape of the engine's records: marginals of 15 depths, a tree, positions, mask,
the target's choices with log-probabilities and gaps, its top 8 along the path.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from time import thread_time

from ddscope.diagnose import Detector, Diagnosis, all_detectors
from ddscope.model import Draft, Flags, Header, Model, Producer, Record, Request, Step, StepTime, Target, TopK, Tree
from ddscope.trace import decode, encode

VOCAB, DEPTHS, STEPS, ROUNDS = 49_152, 15, 400, 5


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


def best(work: Callable[[], None], count: int) -> float:
    """CPU µs an item, the best of ROUNDS: the machine's other work only adds."""
    times = []
    for _ in range(ROUNDS):
        began = thread_time()
        work()
        times.append((thread_time() - began) / count * 1e6)
    return min(times)


def observe_all(records: list[Record]) -> None:
    diagnosis = Diagnosis()
    for number, record in enumerate(records):
        diagnosis.observe(record, number)


def observe_one(detector: Detector, records: list[Record]) -> None:
    for number, record in enumerate(records):
        if isinstance(record, detector.wants):
            detector.observe(record, number)


def row(name: str, records: list[Record]) -> float:
    lines = [encode(record) for record in records]
    decoding = best(lambda: [decode(line) for line in lines] and None, len(records))
    observing = best(lambda: observe_all(records), len(records))
    size = sum(map(len, lines)) / len(lines) / 1024
    print(
        f"{name:<22} {len(records):>8,} {size:>9.1f} {decoding:>10.1f} {observing:>10.1f} {observing / decoding:>8.2f}"
    )
    return observing


def main(arguments: list[str]) -> None:
    print(f"{'records':<22} {'count':>8} {'KB each':>9} {'decode µs':>10} {'observe µs':>10} {'ratio':>8}")
    if arguments:
        lines = Path(arguments[0]).read_bytes().splitlines()
        row(Path(arguments[0]).name, [record for line in lines if isinstance(record := decode(line), Record)])
        return
    for budget in (0, 7, 15, 31, 63, 255):
        row(f"steps of budget {budget}", sound_steps(budget))
    records = sound_steps(31)
    print("\nby rule, budget 31           µs a step")
    for number, detector in enumerate(all_detectors()):
        cost = best(lambda number=number: observe_one(all_detectors()[number], records), len(records))  # type: ignore[misc]
        print(f"{detector.id:<28} {cost:>9.2f}")
    diagnosis = Diagnosis()
    for record in records:
        diagnosis.observe(record)
    assert diagnosis.findings() == [], "the steps were meant to be sound"

    def ask() -> None:
        for _ in range(100):
            diagnosis.observe(records[1])
            diagnosis.findings()

    print(f"{'findings(), when asked':<28} {best(ask, 100):>9.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
