"""Several ranks in one trace: views, stats, verify and the first paint count each step once, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddscope.model import Engine, Fact, Finish, Gap, Header, Record, Request, Step, Tokens
from ddscope.session import Store
from ddscope.trace import TraceWriter, stats, verify
from ddscope.trace.ranks import Ranks, rank_of
from tests.unit.session_support import Book, header, plain_step, request


def engine_header(src: str, engine: Engine) -> Header:
    return msgspec.structs.replace(header(src=src), engine=engine)


def rank_header(book: Book, rank: int, src: str | None = None, **config: Any) -> None:
    src = src or f"engine/{rank}"
    engine = Engine(name=f"sglang-{rank}", version="1", algorithm="EAGLE", config=config or {"tp": rank})
    book.records.append(engine_header(src, engine))
    book._seqs[src] = 0


def follow(book: Book, step: int, emitted: Sequence[int], rid: str = "r", src: str = "engine/1") -> None:
    book.put(Step, src=src, rid=rid, step=step, emitted=list(emitted))


def two_ranks(first: int = 0) -> Book:
    """Four steps of one request told by two ranks, the rank `first` always before the other."""
    book = Book()
    rank_header(book, 0)
    rank_header(book, 1)
    book.put(Tokens, ids=[1, 5, 6, 999], text=["a", "b", "c", "x"])
    request(book, "r", [1])
    base, root = 1, 1
    for step in range(4):
        emitted = [5, 6] if step % 2 else [5]
        for rank in (first, 1 - first):
            if rank:
                follow(book, step, emitted)
            else:
                plain_step(book, "r", step, base, root, emitted)
        base, root = base + len(emitted), emitted[-1]
    book.put(Finish, rid="r", reason="stop", emitted=7, steps=4)
    return book


def store_of(book: Book, folder: Path) -> Store:
    store = Store(book.write(folder / "t.jsonl"), use_sidecar=False)
    while store.poll(1.0):
        pass
    return store


@pytest.mark.parametrize("first", [0, 1])
def test_every_view_counts_a_step_once_whichever_rank_is_heard_first(tmp_path: Path, first: int) -> None:
    store = store_of(two_ranks(first), tmp_path)
    row = store.requests()[0]
    assert (len(store.requests()), row.steps, row.emitted, row.tau) == (1, 4, 6, 1.5)
    assert [step.nodes is not None for step in store.steps("r")] == [True] * 4
    assert (store.totals().steps, store.curve().n, store.curve("r").n) == (4, 4, 4)
    assert store.timing().total_steps == 4
    assert store.text("r", prompt=False).plain == "abbcbbc"
    told = stats(tmp_path / "t.jsonl")
    assert (told.steps, told.emitted, told.tau, told.types["step"]) == (4, 7, 1.5, 8)
    assert (told.requests[0].steps, told.requests[0].tau) == (4, 1.5)
    assert verify(tmp_path / "t.jsonl").problems == []
    assert store.first_paint() is not None and store.first_paint().step.tree is not None  # type: ignore[union-attr]
    assert store.first_paint(2).step.src == "engine/0"  # type: ignore[union-attr]


def test_facts_and_header_are_those_of_the_first_rank_and_every_rank_can_be_asked(tmp_path: Path) -> None:
    book = two_ranks()
    book.put(Fact, name="hooks.sampling", value={"every": 1, "control": True})
    book.put(Fact, src="engine/1", name="hooks.sampling", value={"every": 9, "control": False})
    book.put(Fact, src="engine/1", name="only.there", value=7)
    rank_header(book, 2)
    store = store_of(book, tmp_path)
    assert store.header.engine is not None and store.header.engine.name == "sglang-0"
    assert store.facts() == {"hooks.sampling": {"every": 1, "control": True}, "only.there": 7}
    ranks = store.ranks()
    assert [(rank.src, rank.follower) for rank in ranks] == [
        ("engine/0", False), ("engine/1", True), ("engine/2", True),
    ]  # fmt: skip
    assert [rank.sampling and (rank.sampling.every, rank.sampling.control) for rank in ranks] == [
        (1, True), (9, False), None,
    ]  # fmt: skip
    assert store.ranks(1)[0].sampling is None, "as of a moment"


def test_a_request_of_a_server_that_was_started_again_is_the_new_ones(tmp_path: Path) -> None:
    book = Book()
    rank_header(book, 0)
    request(book, "r", [1])
    plain_step(book, "r", 0, 1, 1, [5])
    rank_header(book, 0, "engine/0#2")
    book.put(Request, src="engine/0#2", rid="r", prompt_len=1)
    for step in range(3):
        plain_step(book, "r", step, 1 + step, 1, [5], src="engine/0#2")
    store = store_of(book, tmp_path)
    assert store.requests()[0].steps == 4
    assert verify(tmp_path / "t.jsonl").problems != [], "ids without texts"


def test_a_further_rank_that_tells_trees_leads_its_own_requests(tmp_path: Path) -> None:
    """Data-parallel ranks are servers of their own; with attention split that way, groups are smaller."""
    book = Book()
    rank_header(book, 0)
    rank_header(book, 2, enable_dp_attention=True, tp=2, tp_size=4, dp_size=2)
    rank_header(book, 3)
    plain_step(book, "a", 0, 1, 1, [5])
    follow(book, 0, [5], rid="b", src="engine/2")
    plain_step(book, "c", 0, 1, 1, [5], src="engine/3")
    store = store_of(book, tmp_path)
    assert [row.rid for row in store.requests()] == ["a", "b", "c"]
    assert stats(tmp_path / "t.jsonl").steps == 3


def test_what_was_before_a_viewer_came_is_missing_and_not_lost(tmp_path: Path) -> None:
    book = two_ranks()
    book._seqs["engine/0"] += 6
    book.put(Gap, of="engine/0", count=7, reason="joined_late")
    book._seqs["engine/0"] += 1
    book.put(Gap, of="engine/0", count=2, reason="ring_full")
    book._seqs["engine/0"] += 4
    book.put(Gap, of="engine/0", count=5, reason="rate_limited")
    book._seqs["journal/x"] = 2
    book.put(Gap, src="journal/x", of="journal/x", count=3, reason="rate_limited")
    store = store_of(book, tmp_path)
    books = store.counters["engine/0"]
    assert (books.dropped, books.late, books.asked, books.lost) == (14, 7, 12, 2)
    assert books.emitted == books.received + books.dropped
    assert store.counters["journal/x"].lost == 3, "journald throws away what somebody wanted"
    assert [gap.words for gap in store.gaps()][2:] == [
        "engine/0: 5 records missing: left out by its sampling, or nobody was there",
        "journal/x: 3 records missing: the journal limited the rate",
    ]


def test_only_a_further_rank_attached_shows_no_step(tmp_path: Path) -> None:
    book = Book()
    rank_header(book, 1)
    follow(book, 0, [5])
    store = store_of(book, tmp_path)
    assert len(store.requests()) == 0 and store.totals().steps == 0
    assert stats(tmp_path / "t.jsonl").requests == []


def test_what_verify_asks_of_a_request_it_asks_beside_other_ranks_too(tmp_path: Path) -> None:
    book = two_ranks()
    last = book.records[-1]
    assert isinstance(last, Finish)
    book.records[-1] = msgspec.structs.replace(last, steps=8)
    store_of(book, tmp_path)
    assert [problem.text for problem in verify(tmp_path / "t.jsonl").problems] == [
        "finish of r counts 8 steps, 4 are here"
    ]


def test_texts_that_the_first_rank_tells_serve_the_others_in_any_order(tmp_path: Path) -> None:
    records = two_ranks(1).records
    late = [record for record in records if not isinstance(record, Tokens)]
    path = tmp_path / "t.jsonl"
    follower = [record for record in late if record.src == "engine/1"]
    with TraceWriter(path) as writer:
        for record in [*follower, *(record for record in records if record.src != "engine/1")]:
            writer.write(record)
    assert verify(path).problems == []
    bare = tmp_path / "bare.jsonl"
    extra = Step(src="engine/1", seq=5, t=9, mono=9, rid="r", step=9, emitted=[4242])
    with TraceWriter(bare) as writer:
        for record in [*records, extra]:
            writer.write(record)
    assert [problem.text for problem in verify(bare).problems] == [
        "1 token ids of other ranks have no text in any `tokens` record"
    ]


def test_the_name_of_a_source_tells_its_rank() -> None:
    names = ("engine/0", "engine/12", "engine/3#2", "journal/engine/1", "viewer", "engine/x")
    assert [rank_of(src) for src in names] == [0, 12, 3, None, None, None]


def test_a_header_with_odd_ranks_leaves_it_to_the_name() -> None:
    ranks = Ranks()
    for rank in ("1", True, None, [1]):
        engine = Engine(name="x", version="1", algorithm="a", config={"tp": rank})
        ranks.header(engine_header("engine/0", engine))
    assert not ranks.follower("engine/0") and ranks.follower("engine/1") and not ranks.follower("viewer")
    assert ranks.repeats("engine/1", False) and not ranks.repeats("engine/1", True)


def interleaved(streams: list[list[Record]], picks: list[int]) -> list[Record]:
    out: list[Record] = []
    left = [list(stream) for stream in streams]
    for pick in picks:
        alive = [stream for stream in left if stream]
        if alive:
            out.append(alive[pick % len(alive)].pop(0))
    return [*out, *(record for stream in left for record in stream)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(picks=st.lists(st.integers(0, 1), max_size=20))
def test_any_interleaving_of_two_ranks_gives_the_same_numbers(tmp_path: Path, picks: list[int]) -> None:
    records = two_ranks().records
    streams = [[r for r in records if r.src == src] for src in ("engine/0", "engine/1")]
    path = tmp_path / "t.jsonl"
    path.unlink(missing_ok=True)
    with TraceWriter(path) as writer:
        for record in interleaved(streams, picks):
            writer.write(record)
    store = Store(path, use_sidecar=False)
    while store.poll(1.0):
        pass
    row = store.requests()[0]
    assert (row.steps, row.emitted, row.tau, store.curve().n) == (4, 6, 1.5, 4)
    assert store.text("r", prompt=False).plain == "abbcbbc"
    assert (stats(path).steps, stats(path).tau) == (4, 1.5)
    assert verify(path).problems == []
    assert isinstance(records[0], Header)
    store.close()
