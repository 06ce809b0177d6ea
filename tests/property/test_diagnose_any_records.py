"""Whatever comes in: no rule raises, order of asking and unrelated records change nothing, the ranking is total."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ddscope.diagnose import (
    SEVERITIES,
    Diagnosis,
    Evidence,
    Finding,
    RuledOut,
    ranked,
    render_text,
    to_json,
)
from ddscope.diagnose.base import MAX_EVIDENCE
from ddscope.diagnose.detectors import all_detectors
from ddscope.diagnose.ranking import makes_output
from ddscope.diagnose.relations import relate
from ddscope.diagnose.shape_messages import parse
from ddscope.model import Fact, Log, Mark, Position, Probe, Record, Stack, Tokens
from ddscope.trace import decode
from tests.diagnosing import CHECKPOINT, DEPTH_1_ONLY, HEALTHY, NOTHING, Stream, run

# -- records of any content that the format allows -------------------------------------------------------------------

small = st.integers(-2, 6)
ints = st.one_of(small, st.integers(-(2**53) + 1, 2**53 - 1))
numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), small)
rids = st.sampled_from(["r0", "r1"])
MESSAGES = (
    "mat1 and mat2 shapes cannot be multiplied (60x576 and 2880x576)",
    "Decode batch, accept len: 1.00, accept rate: 0.00",
    "The size of tensor a (2048) must match the size of tensor b (4096)",
    "size mismatch for a: copying a param with shape torch.Size([3, 4]) from checkpoint, the shape in current model is "
    "torch.Size([3, 9])",
    "SGLANG_SIMULATE_ACC_LEN=1",
    "Please check if the logprob has nan",
    "The server is fired up and ready to roll!",
)
texts = st.one_of(
    st.sampled_from(MESSAGES),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.fixed_dictionaries({"b64": st.sampled_from(["", "/w==", "bWF0MQ==", "no base64"])}),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), ints, st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


def some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


steps = some(
    {"type": st.just("step"), "rid": rids, "step": small},
    {
        "base": ints,
        "root": ints,
        "tree": some(
            {"budget": small, "tokens": st.lists(small, max_size=5), "parents": st.lists(small, max_size=5)},
            {
                "logprobs": st.lists(numbers, max_size=5),
                "positions": st.lists(ints, max_size=6),
                "mask": st.lists(st.sampled_from(["1", "3", "7", "b", "ff", "0x3", "", "zz", "-1", "1_1"]), max_size=6),
            },
        ),
        "target": some(
            {"ids": st.lists(small, max_size=6)},
            {"logprobs": st.lists(numbers, max_size=6), "gap": st.lists(numbers, max_size=6)},
        ),
        "draft": some(
            {
                "k": small,
                "ids": st.lists(st.lists(small, max_size=2), max_size=3),
                "logprobs": st.lists(st.lists(numbers, max_size=2), max_size=3),
            },
            {"logz": st.lists(numbers, max_size=3), "entropy": st.lists(numbers, max_size=3)},
        ),
        "path": st.lists(small, max_size=5),
        "bonus": ints,
        "emitted": st.lists(ints, max_size=5),
        "flags": some(
            {},
            {
                "nonfinite": st.dictionaries(st.sampled_from(["draft", "target", "x"]), small, max_size=2),
                "sampled": st.booleans(),
                "truncated": st.booleans(),
            },
        ),
    },
)
configs = st.dictionaries(
    st.sampled_from([*CHECKPOINT, "layers", "distinct"]),
    st.one_of(values, small, st.lists(small, max_size=3)),
    max_size=6,
)
checks = some(
    {"rid": rids, "step": small},
    {"root_diff": numbers, "tree_diff": numbers, "tolerance": numbers, "ok": st.booleans(), "rows": values},
)
others = st.one_of(
    some(
        {"type": st.just("request"), "rid": rids, "prompt_len": ints},
        {
            "sampling": st.dictionaries(st.sampled_from(["temperature", "seed"]), values, max_size=2),
            "cached_tokens": ints,
            "prompt_ids": st.lists(small, max_size=5),
        },
    ),
    some({"type": st.just("finish"), "rid": rids, "reason": st.just("stop"), "emitted": ints, "steps": ints}, {}),
    some({"type": st.just("log"), "message": st.one_of(st.none(), texts)}, {"pid": small}),
    some(
        {
            "type": st.just("fact"),
            "name": st.sampled_from(["drafter.checkpoint", "drafter.in_force", "draft.features"]),
        },
        {},
    ).flatmap(lambda fact: st.one_of(configs, values).map(lambda value: fact | {"value": value})),
    some({"type": st.just("fact"), "name": st.just("replay_check"), "value": st.one_of(checks, values)}, {}),
    some({"type": st.just("fact"), "name": st.sampled_from(["engine.error", "env", "fault"]), "value": values}, {}),
    some(
        {
            "type": st.just("fact"),
            "name": st.just("engine.error"),
            "value": some({"message": st.one_of(texts, values)}, {"rid": values}),
        },
        {},
    ),
    some(
        {
            "type": st.just("tensor"),
            "name": st.sampled_from("xy"),
            "shape": st.lists(ints, max_size=3),
            "dtype": st.text(),
        },
        {"expect": st.lists(st.one_of(st.none(), ints), max_size=3), "ok": st.booleans()},
    ),
    some({"type": st.just("tokens"), "ids": st.lists(small, max_size=3), "text": st.lists(texts, max_size=3)}, {}),
    some(
        {"type": st.just("gap"), "of": st.sampled_from(["engine/0", "engine/1", "x"]), "reason": st.text(max_size=3)},
        {"count": st.one_of(st.none(), ints)},
    ).map(lambda gap: {"count": None} | gap),
    some({"type": st.just("control"), "command": st.sampled_from(["set", "x"])}, {"args": st.just({"temperature": 1})}),
    some(
        {
            "type": st.just("header"),
            "format": st.just("ddscope-trace"),
            "version": st.just("1.0"),
            "min_reader": st.just("1.0"),
            "producer": st.just({"name": "p", "version": "1"}),
            "host": st.just("h"),
        },
        {
            "model": some({"target": st.just("t")}, {"vocab_size": ints, "hidden_size": ints}),
            "engine": st.just({"name": "e", "version": "1", "algorithm": "ddtree"}),
        },
    ),
)


def decoded(fields: dict[str, Any], number: int) -> Any:
    common = {"src": "engine/0", "seq": number, "t": number, "mono": number}
    return decode(json.dumps(common | fields).encode())


def records_of(fields: Sequence[dict[str, Any]]) -> list[Any]:
    return [decoded(one, number) for number, one in enumerate(fields)]


any_records = st.lists(st.one_of(steps, steps, others), max_size=25).map(records_of)


def test_most_of_the_arbitrary_records_are_records() -> None:
    """Else the tests below would test nothing."""
    seen: list[bool] = []

    @settings(max_examples=150, database=None)
    @given(any_records)
    def collect(records: list[Any]) -> None:
        seen.extend(isinstance(record, Record) for record in records)

    collect()
    assert sum(seen) > 0.8 * len(seen) > 100


@settings(max_examples=400)
@given(any_records)
def test_no_rule_raises_and_what_they_say_is_whole(records: list[Any]) -> None:
    for detector in all_detectors():  # alone: the net around them would hide an exception
        for finding in run([r for r in records if isinstance(r, Record)], detector):
            assert_whole(finding)
    findings = run(records)
    assert all(finding.id != "diagnose.detector_failed" for finding in findings)
    for finding in findings:
        assert_whole(finding)
    json.dumps([to_json(finding) for finding in findings])
    assert all(c == "\n" or c.isprintable() for c in render_text(findings))


def assert_whole(finding: Finding) -> None:
    assert finding.severity in SEVERITIES
    assert 0 < finding.confidence <= 1
    assert finding.title.endswith(".") and "\n" not in finding.title
    assert finding.next
    assert 0 < len(finding.evidence) <= MAX_EVIDENCE


@settings(max_examples=150)
@given(any_records, st.lists(st.integers(0, 25), max_size=6))
def test_asking_in_between_changes_nothing(records: list[Any], pauses: list[int]) -> None:
    asked = Diagnosis()
    for number, record in enumerate(records):
        asked.observe(record, number)
        if number in pauses:
            asked.findings()
    assert asked.findings() == run(records)


# -- unrelated records -----------------------------------------------------------------------------------------------


def _at(kind: type[Record], **fields: Any) -> Callable[[int], Record]:
    return lambda seq: kind(src="journal/other", seq=seq, t=0, mono=0, **fields)


UNRELATED = (
    _at(Log, message="INFO: 127.0.0.1 - GET /health 200"),
    _at(Log, message="", priority=6),
    _at(Probe, rung="health", ok=True),
    _at(Stack, pid=1, threads=[]),
    _at(Mark, text="look here", at=Position("engine/0", 1)),
    _at(Fact, name="gpu", value={"name": "H200"}),
    _at(Tokens, ids=[40_000], text=["x"]),
)
stories = st.sampled_from(["healthy", "nothing", "named", "flat", "nan", "shape", "replay"])


def story(name: str) -> list[Record]:
    stream = Stream().header()
    stream.drafter({"mask_token_id": 2} if name == "named" else None)
    stream.request()

    def change(fields: dict[str, Any]) -> None:
        if name == "flat":
            fields["tree"]["positions"] = [fields["base"] + n for n in range(len(fields["tree"]["parents"]) + 1)]
        if name == "nan":
            fields["flags"] = {"nonfinite": {"target": 3}}
            fields["target"]["logprobs"] = [None] * len(fields["target"]["ids"])

    if name == "shape":
        stream.tensor("draft.target_hidden", [6, 576], [None, 2880], False)
    if name == "replay":
        stream.replay(9.8, 8.0, 1)
    for accepted in {"nothing": NOTHING, "named": DEPTH_1_ONLY, "healthy": HEALTHY}.get(name, HEALTHY[:20]):
        stream.step(accepted, change=change)
    stream.finish()
    return stream.records


def bare(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without record numbers, which count what stands between."""
    return [
        finding.with_(evidence=tuple(Evidence(e.src, e.seq, None, e.text) for e in finding.evidence))
        for finding in findings
    ]


@settings(max_examples=60, deadline=None)
@given(stories, st.lists(st.tuples(st.integers(0, 130), st.integers(0, len(UNRELATED) - 1)), max_size=12))
def test_unrelated_records_in_between_change_nothing(name: str, places: list[tuple[int, int]]) -> None:
    plain = story(name)
    mixed: list[Record] = list(plain)
    for seq, (place, which) in enumerate(places):
        mixed.insert(min(place, len(mixed)), UNRELATED[which](seq))
    assert bare(run(mixed)) == bare(run(plain))
    assert (run(plain) == []) == (name == "healthy")


# -- the order of findings -------------------------------------------------------------------------------------------

findings_of_any_sort = st.lists(
    st.builds(
        Finding,
        id=st.sampled_from(
            [
                "nan.logits",
                "accept.curve",
                "accept.low_from_start",
                "tree.invalid",
                "output.token_flood",
                "serve.alive_not_serving",
            ]
        ),
        severity=st.sampled_from(SEVERITIES),
        confidence=st.sampled_from([0.25, 0.5, 1.0]),
        title=st.sampled_from(["A.", "B."]),
        kind=st.sampled_from(["", "target", "nothing", "steps", "one_id.nonfinite", "mask_token", "simulated"]),
        rid=st.sampled_from([None, "", "r0"]),
        evidence=st.lists(st.builds(Evidence, st.just("e"), small, st.sampled_from([None, 0, 1]), st.just("t"))).map(
            tuple
        ),
        ruled_out=st.lists(st.builds(RuledOut, st.sampled_from("ab"), st.just("w")), max_size=2).map(tuple),
    ),
    max_size=6,
)


@given(findings_of_any_sort, st.randoms())
def test_the_ranking_does_not_depend_on_the_order_they_came_in(findings: list[Finding], random: Any) -> None:
    shuffled = list(findings)
    random.shuffle(shuffled)
    order = ranked(shuffled)
    assert order == ranked(findings)
    floods = [finding for finding in findings if finding.id == "output.token_flood"]
    # Of two neighbours the second is graver only where the first made a flood and the second is what it stopped in.
    for first, second in pairwise(order):
        graver = SEVERITIES.index(second.severity) > SEVERITIES.index(first.severity)
        assert not graver or (second.id == "serve.alive_not_serving" and makes_output(first, floods))


@given(findings_of_any_sort, st.randoms())
def test_folding_loses_no_finding(findings: list[Finding], random: Any) -> None:
    shuffled = list(findings)
    random.shuffle(shuffled)
    related = relate(shuffled)
    assert related == relate(findings)
    assert len(related) + sum(len(finding.consequences) for finding in related) == len(findings)
    assert bool(related) == bool(findings)


# -- foreign text ----------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            [*MESSAGES, "Expected shape [N, 128]", "got shape=(", "fc.weight shape mismatch", "(" * 50, "x"]
        )
    )
)
def test_messages_in_pieces_are_read_or_left_alone(pieces: list[str]) -> None:
    widths = parse(" ".join(pieces))
    assert widths is None or widths.given != widths.expected
