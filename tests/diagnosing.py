"""Streams of records for tests of the diagnosis: a small engine on paper, sound unless a test changes what it writes.

Trees are bushy (a spine with a sibling at each depth), the target's choices follow the wanted accepted length.
Positions and mask are made by walking up the parents, which is not how the rules under test make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ddscope.diagnose import Detector, Diagnosis, Finding
from ddscope.model import (
    FORMAT,
    Draft,
    Engine,
    Fact,
    Finish,
    Flags,
    Gap,
    Header,
    Log,
    Model,
    Producer,
    Record,
    Request,
    Step,
    Target,
    Tensor,
    Tokens,
    Tree,
)

VOCAB = 49_152
HIDDEN = 576
CHECKPOINT = {
    "block_size": 16,
    "mask_token_id": 0,
    "target_layer_ids": [1, 8, 14, 20, 27],
    "num_target_layers": 30,
    "hidden_size": HIDDEN,
}
Change = Callable[[dict[str, Any]], None]


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """The node and its ancestors, up to the root."""
    chain = [node]
    while chain[-1]:
        chain.append(parents[chain[-1] - 1])
    return chain


def depth(parents: Sequence[int], node: int) -> int:
    return len(ancestors(parents, node)) - 1


def sound_positions(base: int, parents: Sequence[int]) -> list[int]:
    return [base + depth(parents, node) for node in range(len(parents) + 1)]


def mask_rows(rows: Sequence[Sequence[int]]) -> list[str]:
    """Hex rows from lists of nodes that are seen."""
    return [format(sum(1 << node for node in set(row)), "x") for row in rows]


def sound_mask(parents: Sequence[int]) -> list[str]:
    return mask_rows([ancestors(parents, node) for node in range(len(parents) + 1)])


def bushy(spine: int) -> list[int]:
    """Parents of a tree with a spine of nodes 1, 3, 5 … and a sibling 2, 4, 6 … beside each."""
    parents: list[int] = []
    for level in range(spine):
        above = 2 * level - 1 if level else 0
        parents += [above, above]
    return parents


class Stream:
    """Writes records of one engine in order."""

    def __init__(self, src: str = "engine/0") -> None:
        self.src = src
        self.records: list[Record] = []
        self._seq = 0
        self._base: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._root: dict[str, int] = {}
        self._token = 1000

    def add(self, kind: type[Record], src: str | None = None, **fields: Any) -> Record:
        record = kind(src=src or self.src, seq=self._seq, t=self._seq, mono=self._seq, **fields)
        self._seq += 1
        self.records.append(record)
        return record

    def header(self, vocab: int | None = VOCAB, hidden: int | None = HIDDEN, **config: Any) -> Stream:
        self.add(
            Header,
            format=FORMAT,
            version="1.0",
            min_reader="1.0",
            producer=Producer(name="test", version="1"),
            host="h",
            engine=Engine(name="test", version="1", algorithm="ddtree", config=config),
            model=Model(target="t", draft="d", vocab_size=vocab, hidden_size=hidden),
        )
        return self

    def tokens(self, texts: dict[int, str]) -> None:
        self.add(Tokens, ids=list(texts), text=list(texts.values()))

    def fact(self, name: str, value: Any) -> None:
        self.add(Fact, name=name, value=value)

    def drafter(self, in_force: dict[str, Any] | None = None, distinct: int = 5) -> None:
        """The facts about the drafter's inputs; sound by default."""
        self.fact("drafter.checkpoint", CHECKPOINT)
        self.fact("drafter.in_force", CHECKPOINT | (in_force or {}))
        self.fact("draft.features", {"rid": "r0", "layers": 5, "distinct": distinct})

    def log(self, message: str, **fields: Any) -> None:
        self.add(Log, src="journal/serve", message=message, **fields)

    def tensor(
        self, name: str, shape: list[int], expect: list[int | None] | None, ok: bool | None, **more: Any
    ) -> None:
        self.add(Tensor, name=name, shape=shape, expect=expect, ok=ok, **({"dtype": "float32"} | more))

    def gap(self, count: int | None = 3, reason: str = "ring_full") -> None:
        self._seq += (count or 1) - 1
        self.add(Gap, of=self.src, count=count, reason=reason)

    def request(self, rid: str = "r0", prompt_len: int = 20, temperature: float = 0.0, **fields: Any) -> None:
        self._base[rid], self._steps[rid] = prompt_len, 0
        self._root.pop(rid, None)
        self.add(Request, rid=rid, prompt_len=prompt_len, sampling={"temperature": temperature}, **fields)

    def finish(self, rid: str = "r0", reason: str = "length") -> None:
        self.add(Finish, rid=rid, reason=reason, emitted=1, steps=self._steps[rid])

    def fresh(self) -> int:
        self._token += 1
        return self._token % VOCAB

    def step(self, accepted: int = 2, rid: str = "r0", spine: int = 5, change: Change | None = None) -> None:
        """One sound greedy step that accepts `accepted` nodes of the spine; change: edits its fields first."""
        base, root = self._base.setdefault(rid, 20), self._root.get(rid)
        parents = bushy(spine)
        tokens = [self.fresh() for _ in parents]
        path = [0, *range(1, 2 * accepted, 2)]
        choices = [self.fresh() for _ in range(len(parents) + 1)]
        for node, following in pairwise(path):
            choices[node] = tokens[following - 1]
        bonus = choices[path[-1]]
        fields: dict[str, Any] = {
            "rid": rid,
            "step": self._steps.setdefault(rid, 0),
            "algorithm": "ddtree",
            "base": base,
            "root": self.fresh() if root is None else root,
            "tree": {
                "budget": max(15, len(parents)),
                "tokens": tokens,
                "parents": parents,
                "positions": sound_positions(base, parents),
                "mask": sound_mask(parents),
            },
            "target": {"ids": choices, "logprobs": [-0.5] * len(choices), "gap": [1.5] * len(choices)},
            "path": path,
            "bonus": bonus,
            "emitted": [*(tokens[node - 1] for node in path[1:]), bonus],
            "flags": {"sampled": False},
        }
        if change is not None:
            change(fields)
        for name, kind in (("tree", Tree), ("target", Target), ("flags", Flags), ("draft", Draft)):
            if isinstance(fields.get(name), dict):
                fields[name] = kind(**fields[name])
        self.add(Step, **fields)
        self._base[rid] = base + len(fields["path"])
        self._steps[rid] += 1
        self._root[rid] = fields["bonus"]

    def run(self, accepted: Sequence[int], rid: str = "r0", change: Change | None = None, **request: Any) -> Stream:
        """A whole request: one step for each accepted length."""
        self.request(rid, **request)
        for count in accepted:
            self.step(count, rid, change=change)
        self.finish(rid)
        return self

    def replay(
        self, root: float | None, tree: float | None, step: int, rid: str = "r0", tolerance: float = 0.01
    ) -> None:
        ok = root is not None and tree is not None and max(root, tree) <= tolerance
        value = {"rid": rid, "step": step, "rows": [], "root_diff": root, "tree_diff": tree, "tolerance": tolerance}
        self.fact("replay_check", value | {"ok": ok})

    def findings(self, detector: Detector | None = None) -> list[Finding]:
        return run(self.records, detector)


def run(records: Sequence[Record], detector: Detector | None = None) -> list[Finding]:
    """Findings of all rules, or of one alone (which may raise, as nothing stands around it)."""
    if detector is None:
        diagnosis = Diagnosis()
        for number, record in enumerate(records):
            diagnosis.observe(record, number)
        return diagnosis.findings()
    for number, record in enumerate(records):
        if isinstance(record, detector.wants):
            detector.observe(record, number)
    return list(detector.findings())


def grave(findings: Sequence[Finding]) -> list[str]:
    """Ids of the findings above info, in order."""
    return [finding.id for finding in findings if finding.severity != "info"]


def only(findings: Sequence[Finding]) -> Finding:
    """The single finding above info."""
    found = [finding for finding in findings if finding.severity != "info"]
    assert len(found) == 1, [f"{f.id} ({f.kind}): {f.title}" for f in found]
    return found[0]


# Accepted lengths of 54 steps of a sound run, of hard text, and of runs whose drafter is fed wrongly (measured curves).
HEALTHY = [3, 2, 4, 1, 2, 0, 5, 3, 1, 2, 4, 3, 2, 1, 5, 2, 3, 0, 1, 4, 2, 2, 3, 1, 0, 5, 3] * 2
HARD = [1, 0, 2, 0, 1, 0, 3, 1, 0, 0, 2, 1, 0, 1, 4, 0, 0, 1, 0, 2] * 4
DEPTH_1_ONLY = [1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1] * 6 + [2, 0, 0, 1, 0, 1, 0, 0, 1, 0] * 2
SAMPLED_HARD = [0, 0, 1, 0, 0, 0, 1, 0, 0, 1] * 60  # temperature 1 on hard text: .30 and next to nothing below
NOTHING = [0] * 60
