"""Records for tests of the session: small, real in shape, and arbitrary ones within the record types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ddscope.model import (
    FORMAT,
    Draft,
    Engine,
    Flags,
    Header,
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
from ddscope.trace import TraceWriter

ENGINE = "engine/0"


def header(seq: int = 0, src: str = ENGINE, engine: bool = True, **fields: Any) -> Header:
    """A header, of an engine unless told otherwise."""
    told = {
        "engine": Engine(name="embedded", version="1", algorithm="ddtree"),
        "model": Model(target="t", hidden_size=576),
    }
    return Header(
        src=src,
        seq=seq,
        t=1_000_000,
        mono=0,
        format=FORMAT,
        version="1.0",
        min_reader="1.0",
        producer=Producer("test", "1"),
        host="h",
        **((told if engine else {}) | fields),
    )


class Book:
    """Makes records with the next seq of their source and a clock that moves 1 ms a record."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._seqs: dict[str, int] = {}
        self._mono = 0

    def put(self, kind: type[Record], src: str = ENGINE, **fields: Any) -> int:
        """Append a record; returns its number."""
        seq = self._seqs.get(src, -1) + 1
        self._seqs[src] = seq
        self._mono += 1000
        self.records.append(kind(src=src, seq=seq, t=1_000_000 + self._mono, mono=self._mono, **fields))
        return len(self.records) - 1

    def header(self) -> int:
        """Append the engine's header."""
        self._seqs[ENGINE] = 0
        self.records.append(header())
        return len(self.records) - 1

    def write(self, path: Path, footer: bool = True) -> Path:
        """Write all of it as a trace."""
        writer = TraceWriter(path)
        for record in self.records:
            writer.write(record)
        writer.close(footer=footer)
        return path


def small_step(**changes: Any) -> Step:
    """A step with seven nodes: 0─1─2─3 accepted to 2; 4, 5 children of 0 and 2; 6 below 4; 7 child of 1.

    The target chooses 11 → 12 → 50 (bonus), and node 5 (token 15) and 3 (token 13) follow node 2 in vain.
    """
    fields: dict[str, Any] = {
        "src": ENGINE,
        "seq": 7,
        "t": 1,
        "mono": 1,
        "rid": "r",
        "step": 4,
        "base": 100,
        "root": 10,
        "draft": Draft(
            k=3,
            ids=[[11, 14, 70], [12, 17, 16], [13, 15, 50], [80, 81, 82]],
            logprobs=[[-0.1, -1.0, -3.0], [-0.2, -2.0, -2.5], [-0.3, -1.5, -4.0], [-1.0, -1.5, -2.0]],
        ),
        "tree": Tree(
            budget=7,
            tokens=[11, 12, 13, 14, 15, 16, 17],
            parents=[0, 1, 2, 0, 2, 4, 1],
            logprobs=[-0.1, -0.2, -0.3, -1.0, -1.5, -2.5, -2.0],
            positions=[100, 101, 102, 103, 101, 103, 102, 102],
            mask=["01", "03", "07", "0f", "11", "27", "51", "83"],
        ),
        "target": Target(
            ids=[11, 12, 50, 1, 16, 2, 3, 4],
            logprobs=[-0.01, -0.02, -0.3, None, -0.5, -0.6, -0.7, -0.8],
            gap=[5.0, 4.0, 0.7, 1.0, 1.0, 1.0, 1.0, 1.0],
            topk=TopK(ids=[[11, 14], [12, 17], [50, 13]], logprobs=[[-0.01, -5.0], [-0.02, -4.0], [-0.3, -1.0]]),
        ),
        "path": [0, 1, 2],
        "bonus": 50,
        "emitted": [11, 12, 50],
        "time": StepTime(draft=10, build=2, mask=1, verify=50, commit=3, total=70),
        "flags": Flags(sampled=False),
    }
    return Step(**(fields | changes))


def plain_step(book: Book, rid: str, step: int, base: int, root: int, emitted: list[int], **changes: Any) -> int:
    """Append a step that accepted all but the last of `emitted`, as a chain."""
    accepted = len(emitted) - 1
    fields: dict[str, Any] = {
        "rid": rid,
        "step": step,
        "base": base,
        "root": root,
        "tree": Tree(budget=4, tokens=[*emitted[:accepted], 999], parents=list(range(accepted + 1))),
        "path": list(range(accepted + 1)),
        "bonus": emitted[-1],
        "emitted": emitted,
        "time": StepTime(draft=10, verify=20 + step, commit=1, total=40 + step),
    }
    return book.put(Step, **(fields | changes))


def request(book: Book, rid: str, prompt: list[int], **changes: Any) -> int:
    """Append a request."""
    return book.put(Request, **({"rid": rid, "prompt_len": len(prompt), "prompt_ids": prompt} | changes))


# arbitrary values within the record types ----------------------------------------------------------------------

small = st.integers(-2, 9)
anything = st.one_of(small, st.integers(-(2**70), 2**70))
number = st.one_of(st.none(), st.floats())


def lists(of: st.SearchStrategy[Any], size: int = 6) -> st.SearchStrategy[list[Any]]:
    """Short lists."""
    return st.lists(of, max_size=size)


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """None, or one of those."""
    return st.one_of(st.none(), of)


drafts = st.builds(
    Draft,
    k=anything,
    ids=lists(lists(small)),
    logprobs=lists(lists(number)),
    logz=maybe(lists(number)),
    entropy=maybe(lists(number)),
)
trees = st.builds(
    Tree,
    budget=small,
    tokens=lists(small, 8),
    parents=lists(small, 8),
    logprobs=maybe(lists(number, 8)),
    positions=maybe(lists(anything, 9)),
    mask=maybe(lists(st.one_of(st.text(max_size=4), st.from_regex(r"[0-9a-f]{1,3}", fullmatch=True)), 9)),
)
targets = st.builds(
    Target,
    ids=lists(anything, 9),
    logprobs=maybe(lists(number, 9)),
    gap=maybe(lists(number, 9)),
    topk=maybe(st.builds(TopK, ids=lists(lists(small)), logprobs=lists(lists(number)))),
)
flags = st.builds(
    Flags,
    nonfinite=maybe(st.dictionaries(st.text(max_size=3), st.integers(0, 5), max_size=2)),
    sampled=maybe(st.booleans()),
    truncated=maybe(st.booleans()),
)
times = st.builds(StepTime, **dict.fromkeys(("draft", "build", "mask", "verify", "commit", "total"), maybe(anything)))


def steps(
    rid: st.SearchStrategy[str] | None = None, ints: st.SearchStrategy[int] = anything
) -> st.SearchStrategy[Step]:
    """Arbitrary steps. ints: what their numbers are drawn from."""
    return st.builds(
        Step,
        src=st.just(ENGINE),
        seq=st.just(1),
        t=st.just(1),
        mono=st.just(1),
        rid=st.text(max_size=3) if rid is None else rid,
        step=st.integers(-3, 2**40),
        algorithm=maybe(st.text(max_size=3)),
        base=maybe(ints),
        root=maybe(ints),
        draft=maybe(drafts),
        tree=maybe(trees),
        target=maybe(targets),
        path=maybe(lists(small)),
        bonus=maybe(ints),
        emitted=maybe(lists(ints)),
        time=maybe(times),
        flags=maybe(flags),
    )
