"""`tree.invalid`: which kind of fault the tree, its positions, its mask or its path has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddscope.diagnose.tree_invalid import WORDS, TreeInvalid
from tests.diagnosing import HEALTHY, Stream, ancestors, bushy, depth, mask_rows, only

Fields = dict[str, Any]


def broken(change: Callable[[Fields], None], accepted: list[int] | None = None, **request: Any) -> Stream:
    return Stream().header().run(accepted or HEALTHY, change=change, **request)


def positions(make: Callable[[int, list[int]], list[int]]) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        fields["tree"]["positions"] = make(fields["base"], fields["tree"]["parents"])

    return change


def mask(make: Callable[[list[int], int], list[int]]) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        parents = fields["tree"]["parents"]
        fields["tree"]["mask"] = mask_rows([make(parents, node) for node in range(len(parents) + 1)])

    return change


def siblings(parents: list[int], node: int) -> list[int]:
    return [other for other in range(1, len(parents) + 1) if node and parents[other - 1] == parents[node - 1]]


POSITIONS = {
    "positions.shifted": lambda base, parents: [base + depth(parents, n) + 1 for n in range(len(parents) + 1)],
    "positions.shifted_drafted": lambda base, parents: [
        base + depth(parents, n) + (n > 0) for n in range(len(parents) + 1)
    ],
    "positions.flat": lambda base, parents: [base + n for n in range(len(parents) + 1)],
    "positions.same": lambda base, parents: [base] + [base + 1] * len(parents),
    "positions.wrong": lambda base, parents: [base + 2 * depth(parents, n) for n in range(len(parents) + 1)],
    "positions.lengths": lambda base, parents: [base + depth(parents, n) for n in range(1, len(parents) + 1)],
}
MASKS = {
    "mask.siblings": lambda parents, n: ancestors(parents, n) + siblings(parents, n),
    "mask.lower_triangular": lambda parents, n: list(range(n + 1)),
    "mask.full": lambda parents, n: list(range(len(parents) + 1)),
    "mask.missing": lambda parents, n: [n],
    "mask.wrong": lambda parents, n: [n, (n + 3) % (len(parents) + 1)],
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_are_named_by_how_they_are_wrong(kind: str) -> None:
    finding = only(broken(positions(POSITIONS[kind])).findings())
    assert (finding.id, finding.kind) == ("tree.invalid", kind)
    assert "54 of 54 steps that recorded" in finding.detail
    assert finding.rid == "r0"
    assert any(r.what == "the mask" for r in finding.ruled_out)


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_named_by_how_they_are_wrong(kind: str) -> None:
    finding = only(broken(mask(MASKS[kind])).findings())
    assert (finding.id, finding.kind, finding.severity) == ("tree.invalid", kind, "critical")
    assert any(r.what == "the positions" for r in finding.ruled_out)


def test_a_shift_says_by_how_much() -> None:
    finding = only(broken(positions(POSITIONS["positions.shifted"])).findings())
    assert "(+1)" in finding.title
    assert "node 0 was given position 21, base + depth is 20" in finding.detail


def test_the_first_bad_node_is_named() -> None:
    finding = only(broken(mask(MASKS["mask.siblings"])).findings())
    assert "node 1 sees node 2, which it does not descend from" in finding.detail


def test_a_tree_of_depth_one_leaves_the_kind_of_mask_to_deeper_trees() -> None:
    """There, "sees its earlier siblings" and "sees everything before it" are the same rows."""
    stream = Stream().header()
    stream.request()
    change = mask(MASKS["mask.lower_triangular"])
    for spine in (1, 1, 4, 1):
        stream.step(1, spine=spine, change=change)
    assert only(stream.findings()).kind == "mask.lower_triangular"


def test_steps_that_have_no_kind_in_common_are_simply_wrong() -> None:
    kinds = iter([MASKS["mask.full"], MASKS["mask.missing"]] * 27)
    finding = only(broken(lambda fields: mask(next(kinds))(fields)).findings())
    assert finding.kind == "mask.wrong"


def test_a_chain_passes_flat_positions_and_the_causal_mask() -> None:
    def chain(fields: Fields) -> None:
        fields["tree"] |= {"tokens": [1, 2, 3], "parents": [0, 1, 2]}
        fields["tree"]["positions"] = [fields["base"] + n for n in range(4)]
        fields["tree"]["mask"] = ["1", "3", "7", "f"]
        fields["target"]["ids"] = [50, 60, 70, 80]
        fields |= {"path": [0], "bonus": 50, "emitted": [50]}

    assert broken(chain).findings(TreeInvalid()) == []


def test_two_faults_of_one_tree_are_two_findings() -> None:
    def both(fields: Fields) -> None:
        positions(POSITIONS["positions.flat"])(fields)
        mask(MASKS["mask.siblings"])(fields)

    findings = broken(both).findings()
    assert {f.kind for f in findings} == {"positions.flat", "mask.siblings"}
    assert not any(r.what in ("the mask", "the positions") for f in findings for r in f.ruled_out)


def test_a_shift_of_everything_cannot_be_seen_without_a_base() -> None:
    def change(fields: Fields) -> None:
        positions(POSITIONS["positions.shifted"])(fields)
        fields["base"] = None

    assert [f for f in broken(change).findings() if f.id == "tree.invalid"] == []


def edit_tree(**fields_of_tree: Any) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        fields["tree"] = {"budget": 15, **fields_of_tree}
        fields["path"], fields["target"] = [0], {"ids": [5] * (len(fields_of_tree["tokens"]) + 1)}
        fields["bonus"], fields["emitted"] = 5, [5]

    return change


@pytest.mark.parametrize(
    ("kind", "tree", "words"),
    [
        ("structure.parents", {"tokens": [1, 2], "parents": [2, 0]}, "node 1 has parent 2"),
        ("structure.parents", {"tokens": [1], "parents": [-1]}, "node 1 has parent -1"),
        ("structure.lengths", {"tokens": [1, 2], "parents": [0]}, "2 tokens but 1 parent"),
        (
            "structure.duplicates",
            {"tokens": [8, 9, 8], "parents": [0, 0, 0]},
            "nodes 1 and 3 are the same token 8 under node 0",
        ),
        ("structure.budget", {"budget": 1, "tokens": [8, 9], "parents": [0, 1]}, "2 nodes for a budget of 1"),
    ],
)
def test_structure_is_named(kind: str, tree: dict[str, Any], words: str) -> None:
    finding = only(broken(edit_tree(**tree), [0]).findings())
    assert finding.kind == kind
    assert words in finding.detail


def test_equal_tokens_under_different_parents_are_no_duplicates() -> None:
    assert broken(edit_tree(tokens=[8, 8, 8], parents=[0, 1, 2]), [0]).findings() == []


def path_change(**change: Any) -> Callable[[Fields], None]:
    """Applied to steps of accepted length 2: path [0, 1, 3]."""

    def apply(fields: Fields) -> None:
        for name, value in change.items():
            fields[name] = value(fields) if callable(value) else value

    return apply


def first_tokens(fields: Fields, nodes: list[int], bonus: int) -> list[int]:
    return [*(fields["tree"]["tokens"][n - 1] for n in nodes), bonus]


def test_a_path_that_jumps_is_no_path() -> None:
    finding = only(broken(path_change(path=[0, 3]), [2]).findings())
    assert finding.kind == "path.broken"
    assert "node 3 of the path 0, 3 is no child of node 0" in finding.detail


@pytest.mark.parametrize("path", [[1], [0, 99], [0, -1], []])
def test_a_path_outside_the_tree_is_no_path(path: list[int]) -> None:
    assert only(broken(path_change(path=path), [2]).findings()).kind == "path.broken"


def test_a_token_that_was_accepted_against_the_target_is_named() -> None:
    def change(fields: Fields) -> None:  # the sibling of the target's choice
        fields["path"] = [0, 2]
        fields["emitted"] = first_tokens(fields, [2], fields["bonus"])

    finding = only(broken(change, [2]).findings())
    assert (finding.kind, finding.severity) == ("path.taken", "critical")


def test_a_choice_that_was_in_the_tree_and_not_accepted_is_named() -> None:
    def change(fields: Fields) -> None:
        fields["path"] = [0, 1]
        fields["bonus"] = fields["target"]["ids"][1]
        fields["emitted"] = first_tokens(fields, [1], fields["bonus"])

    finding = only(broken(change, [2]).findings())
    assert (finding.kind, finding.severity) == ("path.not_taken", "warning")


def test_a_step_that_ended_the_text_is_not_asked_why_it_went_no_further() -> None:
    def change(fields: Fields) -> None:
        fields["path"] = [0, 1]
        fields["emitted"] = first_tokens(fields, [], fields["tree"]["tokens"][0])
        fields["flags"] = {"sampled": False, "truncated": True}

    assert broken(change, [2]).findings() == []


def test_a_bonus_from_another_row_is_named() -> None:
    def change(fields: Fields) -> None:
        fields["bonus"] = fields["target"]["ids"][-1]
        fields["emitted"] = [*fields["emitted"][:-1], fields["bonus"]]

    assert only(broken(change, [2]).findings()).kind == "path.bonus"


def test_committing_other_tokens_than_the_path_is_named() -> None:
    finding = only(broken(path_change(emitted=[1, 2, 3]), [2]).findings())
    assert (finding.kind, finding.severity) == ("path.emitted", "critical")


def test_a_request_at_temperature_zero_is_greedy_where_steps_do_not_say() -> None:
    def change(fields: Fields) -> None:
        fields["flags"] = None
        fields["bonus"] = fields["target"]["ids"][-1]
        fields["emitted"] = [*fields["emitted"][:-1], fields["bonus"]]

    assert only(broken(change, [2]).findings()).kind == "path.bonus"
    assert broken(change, [2], temperature=0.7).findings() == []


def test_a_temperature_that_was_changed_on_the_way_makes_no_step_greedy() -> None:
    from ddscope.model import Control

    def change(fields: Fields) -> None:
        fields["flags"] = None
        fields["bonus"] = fields["target"]["ids"][-1]
        fields["emitted"] = [*fields["emitted"][:-1], fields["bonus"]]

    stream = Stream().header()
    stream.request()
    stream.add(Control, src="viewer", command="set", args={"temperature": 1.0})
    stream.step(2, change=change)
    assert stream.findings() == []


def test_an_argmax_over_nan_is_not_asked_whether_it_was_followed() -> None:
    def change(fields: Fields) -> None:
        fields["flags"] = {"sampled": False, "nonfinite": {"target": 5}}
        fields["bonus"] = 0
        fields["emitted"] = [*fields["emitted"][:-1], 0]

    assert broken(change, [2] * 3).findings(TreeInvalid()) == []


def test_evidence_points_at_the_first_bad_steps() -> None:
    stream = broken(positions(POSITIONS["positions.flat"]))
    finding = only(stream.findings())
    first = next(number for number, record in enumerate(stream.records) if record.type == "step")
    assert [e.record for e in finding.evidence] == list(range(first, first + 8))
    assert finding.evidence[0].seq == stream.records[first].seq
    assert finding.evidence[0].text.startswith("step 0: ")


def test_a_fault_that_comes_and_goes_is_counted() -> None:
    def some(fields: Fields) -> None:
        if fields["step"] % 3 == 0:
            positions(POSITIONS["positions.flat"])(fields)

    assert "18 of 54 steps" in only(broken(some).findings()).detail


def test_every_kind_has_words_that_say_what_to_do() -> None:
    for kind, (severity, title, todo) in WORDS.items():
        assert severity in ("warning", "high", "critical"), kind
        assert title.endswith(".") and todo, kind


def test_bushy_trees_have_siblings_to_tell_faults_by() -> None:
    assert bushy(2) == [0, 0, 1, 1]
