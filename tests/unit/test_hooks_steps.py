"""Trees and steps from host arrays as a server gives them: links, masks, chains, padding, cuts, what is missing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope.model import Step
from ddscope.trace.stepcheck import step_problems
from ddscope_hooks.taps import trees
from ddscope_hooks.taps.steps import Pass, Row, step

LINKS = {"next": [1, 3, -1, -1], "sibling": [-1, 2, -1, -1]}
PARTS: dict[str, Any] = {
    "draft": [5, 10, 11, 12],
    "positions": [20, 21, 21, 22],
    "mask": [1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1],
    "accept_index": [0, 1, 3, -1],
    "target": [10, 12, 40, 41],
    "best": [1.0, 2.0, 3.0, 4.0],
    **LINKS,
}


def run(**changes: Any) -> Pass:
    return Pass(**{"algorithm": "eagle", "size": 1, "rank": 0, "n": 4, **changes})


def row(**changes: Any) -> Row:
    values = {"slot": 0, "rid": "r", "step": 0, "base": 20, "root": 5, "run": [10, 12, 41], "emitted": [10, 12, 41],
              "length": 3, "sampled": False}  # fmt: skip
    return Row(**{**values, **changes})


def checked(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, after the record's own types and invariants."""
    record = {"type": "step", "src": "engine/0", "seq": 0, "t": 0, "mono": 0, **fields}
    assert list(step_problems(msgspec.convert(record, Step))) == []
    return fields


def test_a_tree_with_a_path_by_nodes() -> None:
    fields = checked(step(run(), row(), PARTS))
    assert fields["tree"] == {
        "budget": 3, "tokens": [10, 11, 12], "parents": [0, 0, 1], "positions": [20, 21, 21, 22],
        "mask": ["1", "3", "5", "b"],
    }  # fmt: skip
    assert fields["root"] == 5 and fields["path"] == [0, 1, 3] and fields["bonus"] == 41
    assert fields["emitted"] == [10, 12, 41] and fields["target"] == {"ids": [10, 12, 40, 41]}
    assert fields["batch"] == [0, 1] and fields["algorithm"] == "eagle"
    assert fields["flags"] == {"sampled": False}


def test_the_second_request_of_a_batch_has_its_own_part_and_node_numbers() -> None:
    other = {"draft": [9, 9, 9, 9], "positions": [7] * 4, "mask": [1] * 16, "accept_index": [4, 5, 7, -1],
             "target": [1, 1, 1, 1], "best": [math.nan] * 4, "next": [-1] * 4, "sibling": [-1] * 4}  # fmt: skip
    both = {name: other[name] + PARTS[name] for name in PARTS}
    both["accept_index"] = [0, -1, -1, -1, 4, 5, 7, -1]
    fields = checked(step(run(size=2), row(slot=1), both))
    assert fields["path"] == [0, 1, 3] and fields["tree"]["tokens"] == [10, 11, 12]
    assert fields["batch"] == [1, 2] and "nonfinite" not in fields["flags"]


def test_padding_that_hangs_nowhere_is_left_out_and_the_path_renumbered() -> None:
    parts = {**PARTS, "next": [2, -1, 3, -1], "sibling": [-1, -1, -1, -1], "draft": [5, 0, 10, 12],
             "accept_index": [0, 2, 3, -1], "mask": [1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1],
             "positions": [20, 20, 21, 22]}  # fmt: skip
    fields = checked(step(run(), row(), parts))
    assert fields["tree"]["tokens"] == [10, 12] and fields["tree"]["parents"] == [0, 1]
    assert fields["tree"]["budget"] == 3 and fields["path"] == [0, 1, 2]
    assert fields["tree"]["mask"] == ["1", "3", "7"] and fields["target"]["ids"] == [10, 40, 41]


def test_nodes_that_only_fill_the_tree_up_are_left_out_where_the_source_says_so() -> None:
    sees = ({0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 1, 5})
    parts = {"draft": [5, 10, 0, 0, 0, 12], "next": [1, 5, -1, -1, -1, -1], "sibling": [-1, 2, 3, 4, -1, -1],
             "accept_index": [0, 1, 5, -1], "target": [10, 12, 1, 1, 1, 41],
             "mask": [int(j in seen) for seen in sees for j in range(6)]}  # fmt: skip
    fields = checked(step(run(n=6, padded=True), row(), parts))
    assert fields["tree"]["tokens"] == [10, 0, 12] and fields["tree"]["parents"] == [0, 0, 1]
    assert (
        fields["path"] == [0, 1, 3] and fields["tree"]["budget"] == 5 and fields["tree"]["mask"] == ["1", "3", "5", "b"]
    )
    assert step(run(n=6), row(), parts)["tree"]["tokens"] == [
        10,
        0,
        0,
        0,
        12,
    ]  # elsewhere a repetition is a fault to show


def test_without_node_numbers_the_path_is_found_by_its_tokens() -> None:
    parts = {name: values for name, values in PARTS.items() if name != "accept_index"}
    assert checked(step(run(), row(), parts))["path"] == [0, 1, 3]
    lost = step(run(), row(run=[99, 98, 97], emitted=[99, 98, 97]), parts)
    assert "path" not in lost and lost["tree"]["tokens"] == [10, 11, 12]


def test_without_links_the_mask_tells_the_parents() -> None:
    parts = {name: values for name, values in PARTS.items() if name not in LINKS}
    assert checked(step(run(), row(), parts))["tree"]["parents"] == [0, 0, 1]


def test_a_chain_needs_no_links() -> None:
    parts = {"draft": [5, 10, 12, 99], "positions": [20, 21, 22, 23]}
    fields = checked(step(run(chain=True), row(), parts))
    assert fields["tree"]["parents"] == [0, 1, 2] and fields["path"] == [0, 1, 2] and "target" not in fields


def test_a_verify_that_does_not_say_how_its_nodes_hang_has_no_tree() -> None:
    fields = checked(step(run(), row(), {"draft": [5, 10, 11, 12], "target": [1, 2, 3, 4]}))
    assert not {"tree", "path", "target"} & fields.keys() and fields["emitted"] == [10, 12, 41]


def test_a_part_of_another_size_than_the_batch_is_not_used() -> None:
    fields = checked(step(run(size=2), row(), PARTS))
    assert "tree" not in fields


def test_the_last_block_is_cut_where_the_text_ends() -> None:
    fields = checked(step(run(), row(emitted=[10]), PARTS))
    assert fields["emitted"] == [10] and fields["path"] == [0, 1, 3] and fields["bonus"] == 41
    assert fields["flags"]["truncated"] is True


def test_a_run_that_a_grammar_cut_has_no_bonus() -> None:
    fields = checked(step(run(), row(run=[10], emitted=[10]), PARTS))
    assert "bonus" not in fields and fields["path"] == [0, 1, 3]


def test_plain_decoding_is_a_tree_of_no_nodes() -> None:
    fields = checked(step(run(n=1, algorithm="autoregressive"), row(run=[7], emitted=[7], length=1), {"best": [1.0]}))
    assert fields["tree"] == {"budget": 0, "tokens": [], "parents": []}
    assert fields["path"] == [0] and fields["bonus"] == 7 and fields["target"] == {"ids": [7]} and fields["root"] == 5


def test_a_sampled_step_shows_no_choice_of_the_target_unless_top_k_is_asked_for() -> None:
    assert "target" not in checked(step(run(), row(sampled=True), PARTS))
    top = {"topk_values": [1.0, 0.5] * 4, "topk_ids": [10, 1, 12, 1, 40, 1, 41, 1], "lse": [2.0] * 4}
    fields = checked(step(run(topk=2), row(sampled=True), {**PARTS, **top}))
    assert fields["target"]["topk"] == {"ids": [[10, 1], [12, 1], [41, 1]], "logprobs": [[-1.0, -1.5]] * 3}
    assert fields["target"]["logprobs"] == [-1.0] * 4 and fields["target"]["gap"] == [0.5] * 4


def test_logits_that_are_not_finite_are_counted_and_null() -> None:
    assert step(run(), row(), {**PARTS, "best": [math.nan, 1.0, math.inf, 1.0]})["flags"]["nonfinite"] == {"target": 2}
    top = {"topk_values": [math.nan, 0.5] * 4, "topk_ids": [0, 1] * 4, "lse": [math.nan] * 4}
    fields = checked(step(run(topk=2), row(), {**PARTS, **top}))
    assert fields["target"]["logprobs"] == [None] * 4 and fields["target"]["topk"]["logprobs"][0] == [None, None]


def test_a_rank_that_leaves_the_tree_to_the_first_still_counts() -> None:
    fields = checked(step(run(tree=False, n=0, rank=1), row(), {}))
    assert fields["emitted"] == [10, 12, 41] and fields["rank"] == 1 and "tree" not in fields


def test_with_ids_redacted_nothing_is_left_that_a_tokenizer_could_read() -> None:
    fields = checked(step(run(redact="ids", topk=0), row(), PARTS))
    assert not {"tree", "target", "root", "bonus", "emitted", "draft"} & fields.keys()
    assert fields["path"] == [0, 1, 3] and fields["base"] == 20


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    """Parents of a tree: −1 for the root and for padding."""
    n = draw(st.integers(1, 24))
    return [-1] + [draw(st.integers(-1, i - 1)) for i in range(1, n)]


@given(forests())
def test_links_and_masks_give_back_the_tree_they_were_made_of(parents: list[int]) -> None:
    n = len(parents)
    kept = trees.reachable(parents)
    child, sibling = [-1] * n, [-1] * n
    for i in range(n - 1, 0, -1):
        if parents[i] >= 0:
            child[parents[i]], sibling[i] = i, child[parents[i]]
    found = trees.parents_of_links(child, sibling)
    assert [found[i] for i in kept] == [parents[i] for i in kept]
    rows = []
    for i in range(n):
        above, seen = i, {i}
        while parents[above] >= 0:
            above = parents[above]
            seen.add(above)
        rows += [int(j in seen) for j in range(n)]
    assert trees.parents_of_mask(rows, n) == parents


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=12), st.lists(st.integers(-3, 12), min_size=12, max_size=12))
def test_links_that_are_garbage_end_and_never_loop(child: list[int], sibling: list[int]) -> None:
    parents = trees.parents_of_links(child, sibling[: len(child)])
    kept = trees.reachable(parents)
    assert kept[0] == 0 and all(parents[i] in kept and parents[i] < i for i in kept[1:])


@pytest.mark.parametrize("name", [name for name in PARTS if name not in ("next", "sibling")])
def test_any_part_may_be_missing(name: str) -> None:
    checked(step(run(), row(), {other: values for other, values in PARTS.items() if other != name}))
