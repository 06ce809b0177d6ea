"""stats: counts of a small trace whose numbers are known by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddscope.model import Finish, Log, Record, Request, Step
from ddscope.trace import TraceError, TraceWriter, encode, stats
from tests.tracing import Clock, header, step, write_sample


def test_the_sample_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = write_sample(path)
    path.write_bytes(data + b'{"type":"lo')
    got = stats(path)
    assert (got.records, got.size, got.torn_bytes, got.finished, got.damaged) == (20, len(data) + 11, 11, True, 0)
    assert got.types["step"] == 3 and sum(got.types.values()) == 20
    assert (got.steps, got.truncated, got.emitted) == (3, 1, 6)
    assert got.tau == pytest.approx((3 + 1 + 1) / 3)  # the last step accepted one and its bonus was cut off
    assert got.curve == pytest.approx([2 / 3, 1 / 3]) and got.curve_steps == 3
    assert {name: (one.steps, one.total_us, one.mean_us) for name, one in got.stages.items()} == {
        "draft": (3, 300, 100), "build": (3, 60, 20), "mask": (3, 15, 5), "verify": (3, 2700, 900),
        "commit": (3, 30, 10), "total": (3, 3105, 1035),
    }  # fmt: skip
    assert got.sources["engine/0"] == {"emitted": 14, "received": 10, "dropped": 4}
    assert got.dropped == 4
    assert got.gaps == {"cursor_lost": 1, "ring_full": 1}
    (request,) = got.requests
    assert (request.rid, request.prompt_len, request.cached_tokens, request.steps) == ("r1", 2, 0, 3)
    assert (request.emitted, request.reason) == (6, "length")
    assert request.seconds == pytest.approx(0.015)  # records are a millisecond apart: request 4, finish 19
    assert request.tokens_per_s == pytest.approx(6 / 0.015) == got.tokens_per_s
    assert got.seconds == pytest.approx(0.018)


def test_time_in_which_nothing_ran_does_not_count(tmp_path: Path) -> None:
    clock = Clock()
    records: list[Record] = [header(clock)]
    for rid in ("a", "b"):
        records.append(Request(**clock(), rid=rid, prompt_len=1))
        records.append(step(clock, 0, 1, 10, rid=rid))
        records.append(Finish(**clock(), rid=rid, reason="stop", emitted=3, steps=1))
        clock.now += 60_000_000
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_lines(b"".join(map(encode, records)))
    got = stats(tmp_path / "t.jsonl")
    assert got.active_s == pytest.approx(0.004)
    assert got.tokens_per_s == pytest.approx(6 / 0.004)
    assert got.seconds > 60


def test_what_records_do_not_tell_is_none(tmp_path: Path) -> None:
    clock = Clock()
    later = b'{"type":"later","src":"x","seq":%d,"t":1,"mono":1}\n'
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(header(clock))
        writer.write(Step(**clock(), rid="r", step=4))
        writer.write_lines(later % 0 + later % 1 + b"junk\n")
        writer.write(Log(**clock(), message=None))
        writer.close(footer=False)
    got = stats(tmp_path / "t.jsonl")
    assert (got.tau, got.curve, got.curve_steps, got.stages, got.tokens_per_s) == (None, [], 0, {}, None)
    assert (got.unknown_types, got.damaged, got.finished) == ({"later": 2}, 1, False)
    (request,) = got.requests
    assert (request.prompt_len, request.tau, request.reason, request.seconds, request.emitted) == (None,) * 4 + (0,)


def test_overlapping_requests_share_their_time(tmp_path: Path) -> None:
    clock = Clock()
    records: list[Record] = [header(clock)]
    records += [Request(**clock(), rid=rid, prompt_len=1) for rid in "abc"]
    records += [Finish(**clock(), rid=rid, reason="stop", emitted=1, steps=0) for rid in "bca"]
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_lines(b"".join(map(encode, records)))
    got = stats(tmp_path / "t.jsonl")
    assert got.active_s == pytest.approx(0.005)


def test_everything_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_sample(path)
    plain = json.loads(json.dumps(stats(path).to_json()))
    assert plain["stages"]["verify"] == {"steps": 3, "total_us": 2700, "mean_us": 900.0}
    assert plain["requests"][0]["rid"] == "r1"


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"hello\n")
    with pytest.raises(TraceError, match="is not a ddscope trace"):
        stats(path)
