"""The store: every view as of any record, on small traces whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddscope.model import (
    Draft,
    Fact,
    Finish,
    Flags,
    Gap,
    Log,
    Mark,
    Position,
    Probe,
    Raw64,
    Stack,
    Step,
    Tensor,
    Thread,
    Tokens,
    Tree,
)
from ddscope.session import Cursor, EngineState, Store
from ddscope.trace import TraceWriter, encode
from tests.unit.session_support import Book, plain_step, request, small_step

Open = Callable[[Book], Store]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    stores: list[Store] = []

    def open_(book: Book) -> Store:
        store = Store(book.write(tmp_path / f"t{len(stores)}.jsonl", footer=False), use_sidecar=False)
        stores.append(store)
        settle(store)
        return store

    yield open_
    for store in stores:
        store.close()


def settle(store: Store) -> None:
    while store.poll(1.0):
        pass
    assert store.settled


def two_requests() -> tuple[Book, dict[str, int]]:
    """r1: three steps (3, 1 and 2 tokens), then finished; r2: one step, open, in between."""
    book, at = Book(), {}
    book.header()
    book.put(Tokens, ids=[1, 2, 3, 4, 5, 6, 7, 8, 9, 20], text=["a", "b", "c", "d", "e", "f", "g", "h", "i", " Hi"])
    at["r1"] = request(book, "r1", [20, 20], cached_tokens=1)
    at["s1"] = plain_step(book, "r1", 0, 2, 1, [2, 3, 4])
    at["r2"] = request(book, "r2", [20])
    at["s2"] = plain_step(book, "r1", 1, 5, 4, [5], tree=Tree(budget=4, tokens=[9], parents=[0]))
    at["q1"] = plain_step(book, "r2", 0, 1, 7, [8, 9])
    at["s3"] = plain_step(book, "r1", 2, 6, 5, [6, 7], flags=Flags(truncated=True))
    at["f1"] = book.put(Finish, rid="r1", reason="stop", emitted=7, steps=3)
    return book, at


def test_requests_as_of_any_record(opened: Open) -> None:
    book, at = two_requests()
    store = opened(book)
    r1, r2 = store.requests()
    assert (r1.rid, r1.record, r1.prompt_len, r1.cached, r1.preview, r1.preview_of) == (
        "r1",
        at["r1"],
        2,
        1,
        "Hi Hi",
        "prompt",
    )
    assert (r1.steps, r1.emitted, r1.tau, r1.state, r1.reason, r1.anomalies) == (3, 6, 2.0, "finished", "stop", 2)
    assert (r2.steps, r2.emitted, r2.tau, r2.state, r2.reason) == (1, 2, 2.0, "open", None)
    assert (r1.last_step, r1.last_t - r1.t) == (at["s3"], 6000)
    assert (r1.seconds, r1.rate) == (0.004, 3 / 0.004), "tokens after the first step, over the time from it to the last"
    (early,) = store.requests(at["s1"])
    assert (early.steps, early.emitted, early.state, early.rate, early.last_step) == (1, 3, "open", None, at["s1"])
    assert list(store.requests(at["r1"] - 1)) == []
    assert store.request("r2", at["s1"]) is None
    assert store.request("r2", at["r2"]) is not None


def test_steps_are_rows_over_the_index(opened: Open) -> None:
    book, at = two_requests()
    store = opened(book)
    rows = store.steps("r1")
    assert [(row.record, row.step, row.accepted, row.emitted, row.nodes, row.budget, row.total_us) for row in rows] == [
        (at["s1"], 0, 2, 3, 3, 4, 40),
        (at["s2"], 1, 0, 1, 1, 4, 41),
        (at["s3"], 2, 1, 2, 2, 4, 42),
    ]
    assert [row.anomalies for row in rows] == [(), ("accepted_zero",), ("truncated",)]
    assert (rows[-1].record, len(rows[1:]), rows.place_of(at["q1"]), rows.place_of(0)) == (at["s3"], 2, 1, None)
    assert [row.record for row in store.steps("r1", at["s2"])] == [at["s1"], at["s2"]]
    assert len(store.steps("nobody")) == 0
    with pytest.raises(IndexError):
        rows[3]


def test_curve_counts_only_steps_that_drafted(opened: Open) -> None:
    book, at = two_requests()
    plain_step(book, "r2", 1, 3, 9, [1], tree=Tree(budget=0, tokens=[], parents=[]))
    store = opened(book)
    assert (store.curve().n, store.curve().at_least) == (4, (3, 1))
    assert store.curve("r1").p == (2 / 3, 1 / 3)
    assert store.curve("r1", at["s2"]).at_least == (1, 1)
    assert store.curve("nobody") == store.curve(None, 0)
    assert store.curve().mean_accepted == 1.0


def test_totals_and_timing(opened: Open) -> None:
    book, at = two_requests()
    store = opened(book)
    assert (store.totals().requests, store.totals().steps, store.totals().emitted, store.totals().tau) == (2, 4, 8, 2.0)
    assert (store.totals(at["s1"]).steps, store.totals(at["s1"]).rate) == (1, None)
    timing = store.timing("r1")
    assert (timing.record, timing.step, timing.total_step_us, timing.total_sum_us, timing.counted, timing.steps) == (
        at["s3"],
        2,
        42,
        123,
        3,
        3,
    )
    stages = {stage.name: (stage.step_us, stage.sum_us, stage.steps, stage.share) for stage in timing.stages}
    assert stages["draft"] == (10, 30, 3, 30 / 123)
    assert stages["verify"] == (22, 63, 3, 63 / 123)
    assert stages["build"] == (None, 0, 0, None), "what the source did not time has no share"
    assert store.timing(None, at["s1"]).total_sum_us == 40


def test_text_marks_what_was_accepted_and_what_is_bonus(opened: Open) -> None:
    book, at = two_requests()
    store = opened(book)
    assert [(run.kind, run.text, run.step, run.record) for run in store.text("r1")] == [
        ("prompt", " Hi Hi", None, at["r1"]),
        ("root", "a", 0, at["s1"]),
        ("accepted", "bc", 0, at["s1"]),
        ("bonus", "d", 0, at["s1"]),
        ("bonus", "e", 1, at["s2"]),
        ("accepted", "f", 2, at["s3"]),
        ("bonus", "g", 2, at["s3"]),
    ]
    assert store.text("r1", at["s2"], prompt=False).plain == "abcde"
    assert store.text("nobody").plain == store.text("r1", 0).plain == ""


def test_a_text_with_lost_steps_says_how_much_is_missing(opened: Open) -> None:
    book = Book()
    book.header()
    book.put(Tokens, ids=[1, 2, 3, 4], text=["a", Raw64("4oI="), "c", "d"])  # 2 begins a character
    request(book, "r", [1])
    plain_step(book, "r", 0, 1, 1, [2])  # position 2
    plain_step(book, "r", 5, 7, 3, [4])  # its root stands at 7: 3 to 6 were lost
    plain_step(book, "r", 6, 9, 3, [4])  # 8 was 4, and its root at 9 is no hole but shown
    store = opened(book)
    assert [(run.kind, run.text) for run in store.text("r", prompt=False)] == [
        ("root", "a"),
        ("bonus", ""),
        ("gap", "⟨e282⟩⟨4 tokens missing⟩"),
        ("root", "c"),
        ("bonus", "d"),
        ("root", "c"),
        ("bonus", "d"),
    ]


@pytest.mark.parametrize(("late", "words"), [(True, "⟨earlier text not seen⟩"), (False, "⟨3 tokens missing⟩")])
def test_a_viewer_that_came_late_says_that_text_is_missing(opened: Open, late: bool, words: str) -> None:
    book = Book()
    book.header()
    if not late:
        request(book, "r", [1])
    plain_step(book, "r", 3, 4, 1, [2])
    store = opened(book)
    assert [run.kind for run in store.text("r", prompt=False)] == ["gap", "root", "bonus"]
    assert store.text("r", prompt=False)[0].text == words
    row = store.request("r")
    assert row is not None and (row.record is None) == late


def test_a_step_without_a_path_does_not_claim_what_was_accepted(opened: Open) -> None:
    book = Book()
    book.header()
    request(book, "r", [])
    plain_step(book, "r", 0, 0, 1, [2, 3], path=None, bonus=None)
    plain_step(book, "r", 1, 2, 3, [4, 5], path=None)
    book.put(Step, rid="r", step=2, base=4, root=5)
    store = opened(book)
    assert [run.kind for run in store.text("r")] == ["root", "emitted", "accepted", "bonus"]
    assert [row.accepted for row in store.steps("r")] == [None] * 3
    assert (store.requests()[0].tau, store.requests()[0].emitted) == (2.0, 4), "a step that does not say is not counted"


def test_a_character_that_has_only_begun_is_shown_at_the_end(opened: Open) -> None:
    book = Book()
    book.header()
    book.put(Tokens, ids=[1, 2], text=[Raw64("4oI="), Raw64("rA==")])
    request(book, "r", [])
    first = plain_step(book, "r", 0, 0, 1, [2])
    store = opened(book)
    assert [(run.kind, run.text) for run in store.text("r")] == [("root", ""), ("bonus", "€")]
    plain_step(book, "r", 1, 1, 2, [1])
    store = opened(book)
    assert [(run.kind, run.text) for run in store.text("r")][-2:] == [("bonus", ""), ("tail", "⟨e282⟩")]
    assert store.text("r", first).plain == "€"
    assert store.text("r").written == "€\ufffd"


def test_what_the_model_wrote_is_there_as_it_wrote_it(opened: Open) -> None:
    book = Book()
    book.header()
    book.put(Tokens, ids=[1, 2, 3], text=["a\u00a0\x1b[0m", Raw64("8J8="), Raw64("mIA=")])
    request(book, "r", [])
    plain_step(book, "r", 0, 0, 1, [2, 3])
    runs = opened(book).text("r")
    assert runs.written == "a\u00a0\x1b[0m😀"
    assert runs.plain == "a⟨U+00A0⟩␛[0m😀"


def test_a_title_follows_texts_told_later_and_told_anew(opened: Open, tmp_path: Path) -> None:
    book = Book()
    book.header()
    request(book, "r", [1, 2])
    path = book.write(tmp_path / "growing.jsonl", footer=False)
    store = Store(path, growing=True)
    settle(store)
    assert store.requests()[0].preview == "⟨#1⟩⟨#2⟩"
    with TraceWriter(path, append=True) as writer:
        for seq, text in ((2, "a"), (3, "b")):
            writer.write(Tokens(src="engine/0", seq=seq, t=0, mono=0, ids=[1, 2], text=[text, "!"]))
            settle(store)
            assert store.requests()[0].preview == f"{text}!"
    store.close()


def test_a_redacted_prompt_gives_the_output_as_title(opened: Open) -> None:
    book = Book()
    book.header()
    book.put(Tokens, ids=[1], text=["!"])
    request(book, "r", [], prompt_ids=None, prompt_len=3)
    at = plain_step(book, "r", 0, 3, 1, [1, 1])
    store = opened(book)
    row = store.requests()[0]
    assert (row.preview, row.preview_of) == ("!!!", "output")
    assert (store.requests(at - 1)[0].preview, store.requests(at - 1)[0].preview_of) == ("", "")


def test_facts_state_and_breakpoints_as_of(opened: Open) -> None:
    book = Book()
    book.header()
    first = book.put(Fact, name="engine.state", value={"state": "running", "rid": "r", "step": 3, "reason": None})
    book.put(Fact, name="breakpoints", value=[{"kind": "step", "value": 5}])
    book.put(Fact, name="fault", value={"name": "nan-norm", "what": "a NaN"})
    last = book.put(Fact, name="engine.state", value={"state": "break", "rid": "r", "step": 5, "reason": "step 5"})
    store = opened(book)
    assert store.state(0) == EngineState.unknown()
    assert store.state(first) == EngineState("running", "r", 3, None, first)
    assert store.state() == EngineState("break", "r", 5, "step 5", last, (("step", 5),), "nan-norm")
    assert store.facts(first) == {"engine.state": {"state": "running", "rid": "r", "step": 3, "reason": None}}
    assert list(store.facts()) == ["engine.state", "breakpoints", "fault"]


@pytest.mark.parametrize("value", [None, 3, [], {"state": 7, "step": True}, {"rid": ["x"]}])
def test_a_state_fact_of_any_shape_is_unknown_not_an_error(opened: Open, value: object) -> None:
    book = Book()
    book.header()
    book.put(Fact, name="engine.state", value=value)
    state = opened(book).state()
    assert (state.state, state.rid, state.step) == ("unknown", None, None)


def test_tensors_as_last_told_with_words(opened: Open) -> None:
    book = Book()
    book.header()
    fields = {"name": "draft.target_hidden", "dtype": "float32", "expect": [None, 2880]}
    good = book.put(Tensor, shape=[60, 2880], ok=True, **fields)
    bad = book.put(Tensor, shape=[60, 576], ok=False, **fields)
    store = opened(book)
    (row,) = store.tensors()
    assert (row.record, row.ok, row.changes) == (bad, False, 2)
    assert row.words == "576 given, 2,880 = 5 × 576 expected: one layer given, five expected"
    assert [(r.ok, r.changes) for r in store.tensors(good)] == [(True, 1)]
    assert list(store.anomaly_records()) == [bad]


def test_logs_with_their_gaps_and_nothing_lost(opened: Open) -> None:
    book = Book()
    book.header()
    journal = "journal/x.service"
    book.put(Log, src=journal, message="ready [/INST]\x1b[0m", priority=6, pid=41, unit="x.service")
    book.put(Log, src=journal, message=Raw64("/2E="))
    book.put(Log, src=journal, message=None, partial=True)
    book.put(Gap, src=journal, of=journal, count=3, reason="rate_limited")
    book.put(Gap, of="engine/0", count=None, reason="joined_late")
    store = opened(book)
    assert [(row.kind, row.text) for row in store.logs()] == [
        ("log", "ready [/INST]␛[0m"),
        ("log", "⟨ff⟩a"),
        ("log", ""),
        ("gap", "journal/x.service: 3 records missing: the journal limited the rate"),
    ]
    assert [row.null for row in store.logs()][:3] == [False, False, True]
    assert [row.words for row in store.gaps()] == [
        "journal/x.service: 3 records missing: the journal limited the rate",
        "engine/0: records are missing, nobody knows how many: the viewer came later",
    ]
    assert len(store.logs(2)) == 2
    assert store.counters["engine/0"].unknown == 1


def test_marks_point_at_the_record_they_name(opened: Open) -> None:
    book, at = two_requests()
    mark = book.put(Mark, src="viewer", text="[/INST] here", at=Position("engine/0", at["s2"]))
    book.put(Mark, src="viewer", text="gone", at=Position("engine/0", 99))
    store = opened(book)
    assert [(row.record, row.text, row.target) for row in store.marks()] == [
        (mark, "[/INST] here", at["s2"]),
        (mark + 1, "gone", None),
    ]
    assert len(store.marks(mark)) == 1
    assert store.find("viewer", 0) == mark
    assert store.find("nobody", 0) is None


def test_a_restarted_source_is_found_where_it_said_it_last(opened: Open) -> None:
    book = Book()
    book.header()
    for value in range(3):
        book.put(Fact, name="a", value=value)
    before = len(book.records) - 1
    book.header()
    again = book.put(Fact, name="a", value=2)
    store = opened(book)
    assert [store.find("engine/0", seq) for seq in (1, 3, 7)] == [again, before, None]
    assert store.counters["engine/0"].emitted == 6


def test_a_request_that_comes_again_is_open_again(opened: Open) -> None:
    book, at = two_requests()
    again = request(book, "r1", [20])
    store = opened(book)
    states = {at: store.request("r1", at) for at in (at["s3"], at["f1"], again)}
    assert [row.state for row in states.values() if row] == ["open", "finished", "open"]


def test_probes_and_stacks(opened: Open) -> None:
    book = Book()
    book.header()
    book.put(Probe, src="probe", rung="health", ok=True, ms=2.0)
    last = book.put(Probe, src="probe", rung="health", ok=False, detail="timed out\x07")
    stack = book.put(Stack, src="stack", pid=7, threads=[Thread(id=1, frames=["a"])])
    store = opened(book)
    assert [(row.rung, row.ok, row.detail, row.record) for row in store.probes()] == [
        ("health", False, "timed out␇", last)
    ]
    assert store.stack(stack - 1) is None
    found = store.stack()
    assert found is not None and (found[0], found[1].pid) == (stack, 7)


def test_other_ranks_are_not_counted_twice(opened: Open) -> None:
    book = Book()
    book.header()
    request(book, "r", [])
    for step in range(3):
        for rank in (0, 1):
            plain_step(book, "r", step, step, 1, [1], src=f"engine/{rank}")
    store = opened(book)
    assert (len(store.steps("r")), store.totals().steps) == (3, 3)
    assert store.text("r").plain == "⟨#1⟩" * 4


def test_the_newest_request_is_the_newest_open_one(opened: Open) -> None:
    book, _at = two_requests()
    assert opened(book).newest_rid() == "r2", "r1 had the newest step and is finished"
    book.put(Finish, rid="r2", reason="error", emitted=3, steps=1)
    store = opened(book)
    assert store.newest_rid() == "r1", "none is open: the newest step of all"
    assert [(row.state, row.reason) for row in store.requests()] == [("finished", "stop"), ("error", "error")]
    assert list(store.anomaly_records("r2")) == [len(book.records) - 1]


def test_a_record_knows_its_request(opened: Open) -> None:
    book, at = two_requests()
    check = book.put(Fact, name="replay_check", value={"rid": "r1", "ok": True})
    stranger = book.put(Fact, name="replay_check", value={"rid": "nobody"})
    store = opened(book)
    assert [store.rid_of(i) for i in (at["r2"], at["s3"], at["f1"], check, stranger, 0, -1, 999)] == [
        "r2", "r1", "r1", "r1", None, None, None, None,
    ]  # fmt: skip


def test_damaged_and_unknown_lines_are_shown_as_what_they_are(opened: Open, tmp_path: Path) -> None:
    book, at = two_requests()
    broken = encode(small_step(rid="r1", seq=90, draft=Draft(k=1, ids=[], logprobs=[]))).replace(
        b'"draft":{', b'"draft":{"ids":7,"x":{'
    )
    path = book.write(tmp_path / "x.jsonl", footer=False)
    with path.open("ab") as file:
        file.write(broken.replace(b'"logprobs":[]', b'"logprobs":[]}', 1))
        file.write(b'{"type":"future","src":"engine/0","seq":91,"t":1,"mono":1}\n')
        file.write(b"\xff\x00 not a record\n")
    store = Store(path, use_sidecar=False)
    settle(store)
    n = len(book.records)
    assert store.n == n + 3
    assert store.step(n) is None and store.tree(n).problems[0].startswith("this line cannot be read: ")
    assert store.tree(n + 1).problems == ("this record is a `future`",)
    assert store.tree(n + 2).problems[0].startswith("this line cannot be read: not JSON")
    assert store.tree(-1).problems == ("there is no record -1",)
    assert store.tree(at["r1"]).problems == ("this record is a `request`",)
    store.close()


def test_the_last_step_is_there_before_any_index(tmp_path: Path) -> None:
    book, at = two_requests()
    for i in range(200):
        book.put(Log, src="journal/x", message=str(i))
    path = book.write(tmp_path / "t.jsonl")
    store = Store(path, use_sidecar=False)
    first = store.first_paint()
    assert first is not None and store.n == 0
    assert (first.step.step, first.step.rid, first.tree.root.text) == (2, "r1", "e")
    assert store.record_at(first.offset) is None
    asked = store.first_paint(1)
    assert asked is not None and asked.step.step == 1
    assert store.first_paint(77) is None
    settle(store)
    assert store.record_at(first.offset) == at["s3"]
    assert store.record_at(first.offset + 1) is None
    store.close()


def test_a_trace_without_steps_has_no_first_paint(opened: Open) -> None:
    book = Book()
    book.header()
    store = opened(book)
    assert store.first_paint() is None
    assert (store.newest_rid(), list(store.requests()), store.timing().record) == (None, [], None)
    assert Cursor(store).step_record is None


def test_the_engines_header_counts_even_behind_the_viewers(tmp_path: Path) -> None:
    from tests.unit.session_support import header

    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(header(src="viewer", engine=False))
        writer.write(header())
    store = Store(path)
    assert store.header.src == "viewer"
    settle(store)
    assert store.header.engine is not None and store.header.engine.name == "embedded"
    store.close()


def test_a_cursor_moves_over_a_store(opened: Open) -> None:
    book, at = two_requests()
    cursor = Cursor(opened(book))
    assert (cursor.rid, cursor.step_record) == ("r2", at["q1"])
    cursor.pick("r1")
    cursor.step(-1)
    assert (cursor.step_record, cursor.at) == (at["s2"], at["s2"])
    assert cursor.anomaly(+1) and cursor.step_record == at["s3"]


def test_a_step_that_repeats_nothing_has_a_stable_tree_object(opened: Open) -> None:
    book, at = two_requests()
    store = opened(book)
    assert store.tree(at["s1"]) is store.tree(at["s1"]), "drawing at thirty frames a second builds it once"
    assert isinstance(store.step(at["s1"]), Step)
