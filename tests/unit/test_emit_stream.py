"""The stream: seq, tokens before their use, losses in place, what a late viewer gets. No threads: see `Pumped`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ddscope_hooks.emit import Later
from ddscope_hooks.emit.keep import Keep
from tests.unit.emit_support import Pumped, RawViewer, step


@pytest.fixture
def pumped() -> Iterator[Pumped]:
    p = Pumped(ring=64, token_text=lambda ids: [f"<{i}>" for i in ids])
    yield p
    p.close()


def viewer(p: Pumped, hello: dict[str, Any] | None = None) -> RawViewer:
    return RawViewer(p.join(hello)[1])


def types(v: RawViewer) -> list[str]:
    v.read()
    return [r["type"] for r in v.books.records]


def test_the_header_is_seq_0_and_says_what_every_header_says(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.pump()
    assert types(v) == ["header"]
    header = v.books.records[0]
    assert header["seq"] == 0 and header["format"] == "ddscope-trace" and header["version"] == "1.0"
    assert header["engine"]["name"] == "test" and header["host"] and header["producer"]["name"] == "ddscope_hooks"


def test_a_token_is_told_once_and_before_the_record_that_uses_it(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.emit("request", {"rid": "a", "prompt_len": 2, "prompt_ids": [3, 1]})
    pumped.emit("step", {"rid": "a", "step": 0, "root": 3, "tree": {"budget": 1, "tokens": [1], "parents": [0]}})
    pumped.emit(
        "step", {"rid": "a", "step": 1, "root": 4, "target": {"ids": [1, 9]}, "draft": {"k": 1, "ids": [[8], [3]]}}
    )
    pumped.pump()
    assert types(v) == ["header", "tokens", "request", "step", "tokens", "step"]
    assert [(r["ids"], r["text"]) for r in v.books.of("tokens")] == [
        ([1, 3], ["<1>", "<3>"]),
        ([4, 8, 9], ["<4>", "<8>", "<9>"]),
    ]


def test_every_token_id_of_a_step_is_told(pumped: Pumped) -> None:
    v = viewer(pumped)
    fields = step(1, nodes=20)
    fields["target"]["topk"] = {"ids": [[501, 502]], "logprobs": [[-1.0, -2.0]]}
    pumped.emit("step", fields)
    pumped.pump()
    v.read()
    told = set(v.books.of("tokens")[0]["ids"])
    used = (
        {i for row in fields["draft"]["ids"] for i in row}
        | set(fields["tree"]["tokens"])
        | set(fields["target"]["ids"])
    )
    assert told == used | {501, 502, fields["root"], fields["bonus"], *fields["emitted"]}


def test_padding_below_zero_is_no_token(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.emit("step", {"rid": "a", "step": 0, "root": 3, "draft": {"k": 2, "ids": [[-1, 5]]}, "bonus": None})
    pumped.pump()
    v.read()
    assert v.books.of("tokens")[0]["ids"] == [3, 5]


def test_tokens_told_by_the_caller_are_not_told_again(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.emit("tokens", {"ids": [3], "text": ["mine"]})
    pumped.emit("step", {"rid": "a", "step": 0, "root": 3})
    pumped.pump()
    assert types(v) == ["header", "tokens", "step"]


def _raises(ids: Sequence[int]) -> list[str]:
    raise KeyError("no tokenizer")


@pytest.mark.parametrize(
    "token_text", [_raises, lambda ids: ["too few"], lambda ids: [None for _ in ids], lambda ids: None]
)
def test_a_token_text_that_fails_costs_no_record_and_is_reported_once(token_text: Any) -> None:
    p = Pumped(token_text=token_text)
    v = viewer(p)
    for n in range(3):
        p.emit("step", {"rid": "a", "step": n, "root": n, "bonus": n + 1})
    p.pump()
    p.pump()
    assert types(v) == ["header", "step", "step", "step", "gap", "fact"]
    assert v.books.records[-1]["value"]["tap"] == "token_text"
    assert p.emitter.counters.dropped == 0
    p.close()


def test_a_record_that_cannot_be_encoded_is_a_gap_of_one_in_its_place(pumped: Pumped) -> None:
    v = viewer(pumped)
    for value in (1, object(), 2, object()):
        pumped.emit("fact", {"name": "n", "value": value})
    pumped.pump()
    pumped.pump()
    v.read()
    shape = [(r["type"], r.get("value", r.get("count"))) for r in v.books.records[1:5]]
    assert shape == [("fact", 1), ("gap", 1), ("fact", 2), ("gap", 1)]
    faults = [r for r in v.books.of("fact") if r["name"] == "hook.fault"]
    assert [f["value"]["tap"] for f in faults] == ["encode fact"], "reported once"
    assert pumped.emitter.counters.dropped == 2


def test_what_the_ring_lost_is_a_gap_in_its_place(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.pump()
    for n in range(70):
        pumped.emit("mark", {"n": n})
    pumped.pump()
    pumped.emit("mark", {"n": 70})
    pumped.pump()
    v.read()
    assert [r["n"] for r in v.books.of("mark")] == [*range(64), 70]
    assert v.books.gaps() == [(70, 6, "ring_full")]
    assert pumped.emitter.counters.emitted == 72 and pumped.emitter.counters.dropped == 6


def test_a_tap_that_leaves_records_out_says_so_with_a_gap_of_its_own(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.emit("gap", {"of": "engine/0", "count": 5, "reason": "rate_limited"})
    pumped.emit("gap", {"of": "engine/0", "count": -5, "reason": "rate_limited"})
    pumped.emit("gap", {"of": "journal/x", "count": 5, "reason": "rate_limited"})  # another source's: a record of ours
    pumped.emit("mark", {})
    pumped.pump()
    v.read()
    assert v.books.gaps()[0] == (5, 5, "rate_limited")
    assert v.books.emitted["engine/0"] == 9 and v.books.of("mark")[0]["seq"] == 8
    assert pumped.emitter.counters.dropped == 6


def test_a_viewer_that_comes_late_gets_what_it_needs_and_a_gap_for_the_rest(pumped: Pumped) -> None:
    pumped.emit("fact", {"name": "versions", "value": 1})  # 1, replaced by 3
    pumped.emit("fact", {"name": "other", "value": 1})  # 2
    pumped.emit("fact", {"name": "versions", "value": 2})  # 3
    pumped.emit("request", {"rid": "done", "prompt_len": 1, "prompt_ids": [5]})  # tokens 4, request 5
    pumped.emit("request", {"rid": "open", "prompt_len": 1, "prompt_ids": [5]})  # 6
    pumped.emit("step", {"rid": "done", "step": 0})  # 7, nobody watches
    pumped.emit("finish", {"rid": "done", "reason": "stop", "emitted": 1, "steps": 1})  # 8
    pumped.emit("tensor", {"name": "hidden", "shape": [1], "dtype": "float32"})  # 9
    pumped.emit("step", {"rid": "open", "step": 0})  # 10
    pumped.pump()
    v = viewer(pumped)
    pumped.pump()
    pumped.emit("step", {"rid": "open", "step": 1})  # 11
    pumped.pump()
    v.read()
    got = [
        (r["seq"], r["type"], r.get("count") or r.get("value") or r.get("rid") or r.get("name"))
        for r in v.books.records
    ]
    assert got[1:] == [
        (1, "gap", 1), (2, "fact", 1), (3, "fact", 2), (4, "tokens", None), (5, "gap", 1), (6, "request", "open"),
        (8, "gap", 2), (9, "tensor", "hidden"), (10, "gap", 1), (11, "step", "open"),
    ]  # fmt: skip
    assert {r["reason"] for r in v.books.of("gap")} == {"joined_late"}


def test_a_viewer_that_comes_back_gets_only_what_it_lacks_and_the_end_of_its_requests(pumped: Pumped) -> None:
    pumped.emit("fact", {"name": "a", "value": 1})
    first = viewer(pumped)
    pumped.emit("request", {"rid": "x", "prompt_len": 1})
    pumped.pump()
    first.read()
    seen = first.books.emitted["engine/0"]
    first.close()
    pumped.emit("request", {"rid": "y", "prompt_len": 1})
    pumped.emit("finish", {"rid": "y", "reason": "stop", "emitted": 1, "steps": 1})
    pumped.emit("step", {"rid": "x", "step": 0})
    pumped.emit("finish", {"rid": "x", "reason": "stop", "emitted": 1, "steps": 1})
    pumped.pump()
    second = viewer(pumped, {"header": pumped.emitter._header_hash, "seq": seen - 1})
    second.books = first.books
    pumped.pump()
    second.read()
    assert [(r["type"], r.get("count") or r.get("rid")) for r in second.books.records[3:]] == [
        ("gap", 3),
        ("finish", "x"),
    ]
    assert second.books.gaps()[0][2] == "disconnected"
    assert pumped.emitter._stream.feeds[-1].counters(7).before == seen


@pytest.mark.parametrize(
    "hello", [{"header": "another", "seq": 2}, {"header": None, "seq": 2}, {"header": "", "seq": 10**9}]
)
def test_a_hello_from_elsewhere_is_served_from_the_beginning(pumped: Pumped, hello: dict[str, Any]) -> None:
    v = viewer(pumped, hello)
    ahead = viewer(pumped, {"header": pumped.emitter._header_hash, "seq": 10**9})
    pumped.pump()
    assert types(v) == types(ahead) == ["header"]


def test_faults_of_several_taps_are_all_there_for_a_late_viewer(pumped: Pumped) -> None:
    for tap in ("a", "b", "a"):
        assert pumped.emitter.fault(tap, ValueError(tap)) is True
    pumped.pump()
    v = viewer(pumped)
    pumped.pump()
    v.read()
    assert [r["value"] for r in v.books.of("fact")] == [{"tap": t, "error": f"ValueError: {t}"} for t in ("a", "b")]


def test_a_reported_fault_is_a_gap_of_unknown_size_that_covers_nothing(pumped: Pumped) -> None:
    v = viewer(pumped)
    try:
        raise ZeroDivisionError("in the hook")
    except ZeroDivisionError as error:
        pumped.emitter.fault("tap", error)
    pumped.pump()
    v.read()
    assert v.books.gaps() == [(1, None, "hook_fault")]
    assert "ZeroDivisionError: in the hook (test_emit_stream.py:" in v.books.records[-1]["value"]["error"]


def test_what_is_kept_is_bounded_by_bytes_and_tokens_stay() -> None:
    keep = Keep(max_bytes=1000)
    keep.note("header", {}, 0, b"h" * 100)
    keep.note("tokens", {}, 1, b"t" * 100)
    for n in range(50):
        keep.note("request", {"rid": n}, 2 + n, b"r" * 100)
    kept = [seq for seq, _ in keep.between(0, 1000)]
    assert kept[:2] == [0, 1] and kept[-1] == 51 and keep.bytes <= 1000
    keep.note("request", {"rid": "big"}, 100, b"r" * 5000)
    assert [seq for seq, _ in keep.between(0, 1000)] == [0, 1, 100], "the newest stays: it is being written"


def test_a_viewer_that_catches_up_with_the_end_of_a_request_gets_its_beginning(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.pump()
    feed = pumped.emitter._stream.feeds[0]
    accepts, feed._accepts = feed._accepts, lambda size: False  # type: ignore[method-assign]
    pumped.emit("request", {"rid": "a", "prompt_len": 1})
    pumped.emit("step", {"rid": "a", "step": 0})
    pumped.pump()
    feed._accepts = accepts  # type: ignore[method-assign]
    pumped.emit("finish", {"rid": "a", "reason": "stop", "emitted": 1, "steps": 1})
    pumped.pump()
    assert types(v) == ["header", "request", "gap", "finish"]


def test_a_slow_viewer_gets_the_tokens_and_requests_that_its_gap_swallowed() -> None:
    p = Pumped(queue_bytes=20_000, token_text=lambda ids: [f"<{i}>" for i in ids])
    _, theirs = p.join(buffer=1)
    p.pump()
    told: set[int] = set()
    for n in range(200):
        p.emit("request", {"rid": f"r{n}", "prompt_len": 1, "prompt_ids": [n]})
        p.emit("step", {**step(n, nodes=8, depths=1), "rid": f"r{n}"})
        if n % 2:
            p.emit("finish", {"rid": f"r{n}", "reason": "stop", "emitted": 1, "steps": 1})
        p.pump()
    v = RawViewer(theirs)
    for _ in range(2000):
        v.read()
        p.pump()
        if v.books.emitted.get("engine/0") == p.emitter.counters.emitted:
            break
    assert any(reason == "ring_full" for _, _, reason in v.books.gaps())
    for record in v.books.records:
        if record["type"] == "tokens":
            told.update(record["ids"])
        elif record["type"] == "step":
            assert {record["root"], *record["tree"]["tokens"]} <= told, "a step whose tokens were never told"
    opened, closed = ({r["rid"] for r in v.books.of(t)} for t in ("request", "finish"))
    assert closed <= opened
    assert {f"r{n}" for n in range(0, 200, 2)} <= opened - closed, "open requests"
    assert opened - closed == {f"r{n}" for n in range(0, 200, 2)}, "a request that finished must not stay open"
    v.close()
    p.close()


def test_records_made_later_are_numbered_in_place_with_their_tokens(pumped: Pumped) -> None:
    v = viewer(pumped)
    pumped.emit("fact", {"name": "before", "value": 1})
    wrote: list[int] = []
    pumped.emitter.emit_later(Later(2, lambda: [("step", step(0, rid=rid)) for rid in "ab"], wrote.append))
    pumped.emit("fact", {"name": "after", "value": 1})
    pumped.pump()
    v.read()
    got = [(r["type"], r.get("rid") or r.get("name")) for r in v.books.records if r["type"] != "tokens"]
    assert got == [("header", None), ("fact", "before"), ("step", "a"), ("step", "b"), ("fact", "after")]
    assert any(r["type"] == "tokens" for r in v.books.records)
    assert wrote and wrote[0] > 100


@pytest.mark.parametrize("made", [0, 1, 3, None])
def test_records_made_later_count_as_announced_whatever_becomes_of_them(pumped: Pumped, made: int | None) -> None:
    """Too few, too many, and an exception in the middle (None)."""
    v = viewer(pumped)

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
        for i in range(1 if made is None else made):
            yield "step", step(i)
        if made is None:
            raise RuntimeError("broken")

    pumped.emitter.emit_later(Later(2, records))
    pumped.emit("fact", {"name": "after", "value": 1})
    pumped.pump()
    pumped.pump()  # the report of the fault
    v.read()
    assert sum(r["type"] == "step" for r in v.books.records) == min(2, 1 if made is None else made)
    gaps = [r for r in v.books.records if r["type"] == "gap" and r["count"]]
    assert sum(g["count"] for g in gaps) == max(0, 2 - (1 if made is None else made))
    assert any(r["type"] == "fact" and r["name"] == "after" for r in v.books.records)
    faults = [r for r in v.books.records if r["type"] == "fact" and r["name"] == "hook.fault"]
    assert bool(faults) == (made in (3, None))


def test_a_full_ring_counts_what_is_made_later_by_its_records(pumped: Pumped) -> None:
    v = viewer(pumped)
    for i in range(64):
        pumped.emit("fact", {"name": f"f{i}", "value": i})
    pumped.emitter.emit_later(Later(7, list))
    pumped.pump()
    pumped.emit("fact", {"name": "after", "value": 1})
    pumped.pump()
    v.read()
    assert [r["count"] for r in v.books.records if r["type"] == "gap"] == [7]


def test_records_made_later_are_not_made_while_nobody_watches(pumped: Pumped) -> None:
    def records() -> list[tuple[str, dict[str, Any]]]:
        raise AssertionError("made for nobody")

    before = pumped.emitter.counters.emitted
    pumped.emitter.emit_later(Later(5, records))
    pumped.pump()
    assert pumped.emitter.counters.emitted == before + 5


def test_records_made_later_tell_their_ids_at_once(pumped: Pumped) -> None:
    """One `tokens` record for all of them, before the first; ids that are no tokens are left out; told once."""
    v = viewer(pumped)

    def steps() -> Iterator[tuple[str, dict[str, Any]]]:
        for i in range(3):
            yield "step", {"rid": "r", "step": i, "emitted": [i]}

    pumped.emitter.emit_later(Later(3, steps, None, lambda: [2, 0, 1, 0, -1]))
    pumped.emitter.emit_later(Later(3, steps, None, lambda: [0, 1, 2, 7]))
    pumped.pump()
    v.read()
    assert [r["type"] for r in v.books.records[1:]] == ["tokens", *["step"] * 3, "tokens", *["step"] * 3]
    assert [r["ids"] for r in v.books.of("tokens")] == [[0, 1, 2], [7]]


def test_kept_records_and_losses_keep_their_place_among_those_made_later(pumped: Pumped) -> None:
    v = viewer(pumped)

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
        yield "step", {"rid": "r", "step": 0}
        yield "fact", {"name": "n", "value": 1}
        yield "step", {"rid": "r", "step": 1, "emitted": object()}
        yield "step", {"rid": "r", "step": 2}

    pumped.emitter.emit_later(Later(4, records, None, list))
    pumped.pump()
    v.read()
    told = [(r["type"], r.get("step")) for r in v.books.records[1:5]]
    assert told == [("step", 0), ("fact", None), ("gap", None), ("step", 2)]
    late = viewer(pumped)
    pumped.pump()
    assert any(r["type"] == "fact" and r["name"] == "n" for r in (late.read(), late.books.records)[1])


def test_a_slow_viewer_loses_passes_as_a_whole_and_the_books_hold() -> None:
    p = Pumped(ring=4096, queue_bytes=3000)
    v = viewer(p)
    for n in range(200):
        p.emitter.emit_later(
            Later(4, lambda n=n: [("step", {"rid": "r", "step": 4 * n + i}) for i in range(4)], None, list)
        )
        if n % 10 == 9:
            p.pump()
        if n % 50 == 49:
            v.read()
    p.pump()
    v.read()
    p.pump()
    v.read()  # checks the books at every record
    steps = [r["step"] for r in v.books.of("step")]
    assert 0 < len(steps) < 800 and len(steps) % 4 == 0
    assert sum(g[1] or 0 for g in v.books.gaps()) + len(steps) == 800
    p.close()
