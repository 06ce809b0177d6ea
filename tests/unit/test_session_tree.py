"""Verdicts and words of a tree view, and what it says of trees that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from ddscope.model import Draft, Flags, Step, Target, Tree
from ddscope.session import TokenTable, TreeView, Verdict, tree_view
from ddscope.session.tree import PROBLEM_LIMIT, build_shape
from tests.unit.session_support import small_step


def view_of(step: Step) -> TreeView:
    tokens = TokenTable()
    tokens.add(range(10, 60), [f" w{i}" for i in range(10, 60)])
    return tree_view(step, tokens, 5)


def words(view: TreeView) -> dict[int, tuple[Verdict, str]]:
    return {node.index: (node.verdict, node.words) for node in view.nodes}


def test_every_node_has_a_verdict_in_words() -> None:
    assert words(view_of(small_step())) == {
        0: (Verdict.ROOT, "the root: the previous bonus token"),
        1: (Verdict.ACCEPTED, "accepted"),
        2: (Verdict.LAST, "accepted, last on the path"),
        3: (Verdict.REJECTED, "rejected: the target chose ␣w50 here"),
        4: (Verdict.SIBLING, "sibling of accepted node 1: the target chose ␣w11 here"),
        5: (Verdict.REJECTED, "rejected: the target chose ␣w50 here"),
        6: (Verdict.NOT_REACHED, "not reached: its parent was rejected"),
        7: (Verdict.SIBLING, "sibling of accepted node 2: the target chose ␣w12 here"),
    }


def test_a_sampled_step_says_drew() -> None:
    assert view_of(small_step(flags=Flags(sampled=True))).nodes[3].words == "rejected: the target drew ␣w50 here"


def test_shape_ranks_and_probabilities() -> None:
    view = view_of(small_step())
    assert view.problems == ()
    assert [node.depth for node in view.nodes] == [0, 1, 2, 3, 1, 3, 2, 2]
    assert [node.children for node in view.nodes] == [(1, 4), (2, 7), (3, 5), (), (6,), (), (), ()]
    assert [(node.rank, node.rank_of) for node in view.nodes] == [
        (None, ""), (0, "draft"), (0, "draft"), (0, "draft"), (1, "draft"), (1, "draft"), (2, "draft"), (1, "draft"),
    ]  # fmt: skip
    assert view.nodes[5].path_logprob == pytest.approx(-0.1 - 0.2 - 1.5)
    assert (view.root.leaves, view.root.size, view.depth) == (4, 8, 3)
    assert all(node.mask_ok and node.position_ok for node in view.nodes)
    assert view.ancestors(5) == (0, 1, 2, 5)
    assert (view.accepted, view.emitted, view.path) == (2, (11, 12, 50), (0, 1, 2))


def test_ranks_without_candidates_are_among_siblings() -> None:
    view = view_of(small_step(draft=None))
    assert [node.rank for node in view.nodes[1:]] == [0, 0, 0, 1, 1, 0, 1]
    assert {node.rank_of for node in view.nodes[1:]} == {"siblings"}


def test_node_log_probabilities_come_from_the_candidates_when_the_tree_has_none() -> None:
    tree = small_step().tree
    assert tree is not None
    view = view_of(small_step(tree=Tree(budget=7, tokens=tree.tokens, parents=tree.parents)))
    assert view.nodes[5].logprob == -1.5


def test_the_target_is_told_at_every_node_and_its_next_choice_on_the_path() -> None:
    view = view_of(small_step())
    assert [(n.target.token, n.target.logprob) for n in view.nodes[:3] if n.target] == [
        (11, -0.01),
        (12, -0.02),
        (50, -0.3),
    ]
    assert [n.runner_up.token if n.runner_up else None for n in view.nodes] == [
        14,
        17,
        13,
        None,
        None,
        None,
        None,
        None,
    ]
    assert view.nodes[2].gap == 0.7
    assert [n.agrees for n in view.nodes] == [None, True, True, False, False, False, True, False]


def test_a_node_that_was_not_reached_still_says_whether_the_target_agreed() -> None:
    target = Target(ids=[11, 12, 50, 1, 17, 2, 3, 4])
    assert view_of(small_step(target=target)).nodes[6].agrees is False
    assert view_of(small_step(target=Target(ids=[11, 12]))).nodes[6].agrees is None


NO_CHILD = "no drafted child matches; "
OUTSIDE = "the target's token was the drafter's rank {} at this depth, outside the tree"
SHORT_BLOCK = Draft(k=1, ids=[[11], [12]], logprobs=[[-0.1], [-0.2]])
BARE = {"tree": Tree(budget=0, tokens=[], parents=[]), "path": [0], "draft": None, "target": None}
BONUS_WORDS = [
    ({}, NO_CHILD + OUTSIDE.format(2)),
    (
        {"bonus": 51, "target": None},
        NO_CHILD + "the target's token is not among the drafter's 3 candidates at this depth",
    ),
    ({"draft": None}, NO_CHILD + "what else the drafter proposed is not in the trace"),
    ({"draft": SHORT_BLOCK}, NO_CHILD + "the block ends at depth 2"),
    ({"path": [0, 1, 2, 3], "bonus": 81, "target": None}, "nothing in the tree follows; " + OUTSIDE.format(1)),
    ({"path": None}, "the bonus; the source did not say where the path ends"),
    (BARE, "plain decoding: nothing was drafted"),
]


@pytest.mark.parametrize(("changes", "expected"), BONUS_WORDS)
def test_the_bonus_says_where_the_drafter_had_it(changes: dict[str, Any], expected: str) -> None:
    bonus = view_of(small_step(**changes)).bonus
    assert bonus is not None and bonus.words == expected


def test_the_bonus_knows_its_place() -> None:
    bonus = view_of(small_step()).bonus
    assert bonus is not None
    assert (bonus.parent, bonus.depth, bonus.text, bonus.logprob) == (2, 3, "␣w50", -0.3)
    assert (bonus.draft_rank, bonus.draft_logprob, bonus.draft_k) == (2, -4.0, 3)
    assert bonus.runner_up is not None and bonus.runner_up.token == 13


def test_a_step_cut_by_the_end_of_the_text_says_what_was_not_committed() -> None:
    view = view_of(small_step(emitted=[11], flags=Flags(truncated=True)))
    assert view.nodes[1].committed is True
    assert (view.nodes[2].committed, view.nodes[2].words) == (
        False,
        "accepted, last on the path; the text ended before it",
    )
    assert view.bonus is not None and view.bonus.committed is False
    assert view.problems == ()


def test_nothing_accepted_is_said_at_the_root() -> None:
    view = view_of(
        small_step(path=[0], bonus=11, emitted=[11], target=None, tree=Tree(budget=1, tokens=[14], parents=[0]))
    )
    assert view.root.words == "the root, and the end of the path: nothing was accepted"
    assert view.nodes[1].words == "rejected: the target chose ␣w11 here"


def test_without_a_path_every_verdict_is_unknown() -> None:
    view = view_of(small_step(path=None))
    assert {node.verdict for node in view.nodes[1:]} == {Verdict.UNKNOWN}
    assert (view.path_known, view.accepted) == (False, None)


def test_without_target_and_bonus_a_rejection_has_no_reason() -> None:
    view = view_of(small_step(target=None, bonus=None))
    assert view.nodes[3].words == "rejected: the source did not say what the target chose here"
    assert view.nodes[4].words == "sibling of accepted node 1: the target chose ␣w11 here", "the path itself tells it"
    assert view.bonus is None and view.nodes[1].target is None


def test_a_bare_step_is_a_root() -> None:
    view = view_of(Step(src="e", seq=0, t=0, mono=0, rid="r", step=0))
    assert (len(view.nodes), view.root.text, view.has_tree, view.problems) == (1, "⟨?⟩", False, ())


PROBLEMS = [
    ({"path": [0, 1, 9]}, "the path names node 9, which is not in the tree"),
    ({"path": [1, 2]}, "the path does not begin at the root"),
    ({"path": []}, "the path does not begin at the root"),
    ({"path": [0, 2]}, "the path goes from node 0 to node 2, which is not its child"),
    ({"path": [0, 1, 1]}, "the path names node 1 twice"),
    ({"path": [0, 4], "bonus": 16}, "node 4 is on the path, but the target chose ␣w11 at its parent"),
    ({"bonus": 13}, "the bonus is ␣w13, but the target chose ␣w50 at the path's end"),
    ({"bonus": 13, "target": None}, "the bonus ␣w13 is drafted node 3, yet the path ends before it"),
    ({"base": 99}, "node 0 was given position 100, expected 99 (8 nodes in all)"),
]


@pytest.mark.parametrize(("changes", "problem"), PROBLEMS)
def test_what_cannot_be_true_is_listed(changes: dict[str, Any], problem: str) -> None:
    assert problem in view_of(small_step(**changes)).problems


def changed_tree(**changes: Any) -> Step:
    tree = small_step().tree
    assert tree is not None
    fields = {name: getattr(tree, name) for name in tree.__struct_fields__}
    return small_step(tree=Tree(**(fields | changes)))


TREE_PROBLEMS = [
    ({"parents": [0, 1, 2, 0, 2, 4]}, "6 parents for 7 nodes: expected 7"),
    ({"logprobs": [-1.0]}, "1 draft log-probabilities for 7 nodes: expected 7"),
    ({"budget": 3}, "7 nodes, but the budget is 3"),
    ({"parents": [0, 1, 2, 0, 2, 40, 1]}, "node 6: its parent 40 is not a node of this tree"),
    ({"parents": [0, 1, 2, 0, 2, -1, 1]}, "node 6: its parent -1 is not a node of this tree"),
    ({"parents": [0, 1, 2, 7, 2, 4, 1]}, "node 4: its parent 7 comes after it"),
    ({"parents": [0, 1, 2, 6, 2, 4, 1]}, "node 4: its parents lead back to itself"),
    (
        {"mask": ["01", "03", "07", "0f", "13", "27", "51", "83"]},
        "node 4 does not see exactly its ancestors and itself",
    ),
    ({"mask": ["01", "03", "07", "zz", "11", "27", "51", ""]}, "2 mask rows are not hexadecimal numbers of 8 bits"),
    ({"positions": [100, 101, 102, 104, 101, 103, 102, 102]}, "node 3 was given position 104, expected 103"),
]


@pytest.mark.parametrize(("changes", "problem"), TREE_PROBLEMS)
def test_a_broken_tree_shows_what_it_can_and_says_what_is_wrong(changes: dict[str, Any], problem: str) -> None:
    view = view_of(changed_tree(**changes))
    assert problem in view.problems
    assert len(view.nodes) == 8


def test_a_node_that_hangs_nowhere_keeps_its_children_and_says_so() -> None:
    view = view_of(changed_tree(parents=[0, 1, 2, 40, 2, 4, 1]))
    assert view.orphans == (4,)
    assert (view.nodes[4].depth, view.nodes[4].children, view.nodes[6].depth) == (1, (6,), 2)
    assert (view.nodes[4].verdict, view.nodes[4].words) == (
        Verdict.UNKNOWN,
        "unknown: its place in the tree is invalid",
    )


def test_many_problems_are_counted_not_listed() -> None:
    view = view_of(small_step(path=[0, *range(20, 60)]))  # 40 strange nodes, and a bonus that does not fit
    assert len(view.problems) == PROBLEM_LIMIT + 1
    assert view.problems[-1] == f"{41 - PROBLEM_LIMIT} more problems like these"


def test_an_empty_path_tells_nothing() -> None:
    view = view_of(small_step(path=[]))
    assert (view.path_known, view.accepted, view.nodes[1].verdict) == (False, None, Verdict.UNKNOWN)


@pytest.mark.parametrize("parents", ["chain", "circle", "backwards"])
def test_a_huge_broken_tree_is_shown_whole(parents: str) -> None:
    n = 20_000
    links = {"chain": range(n), "circle": [n, *range(1, n)], "backwards": [*range(2, n + 1), 0]}[parents]
    tree = Tree(budget=n, tokens=[1] * n, parents=list(links), mask=["1"] * (n + 1))
    view = view_of(small_step(tree=tree, path=list(range(n)), draft=None, target=None))
    assert len(view.nodes) == n + 1


def test_a_circle_below_a_sound_tree_is_cut_once() -> None:
    problems: list[str] = []
    parent, depth, orphan = build_shape(5, [0, 3, 4, 2, 4], problems)
    assert problems == [
        "node 2: its parent 3 comes after it",
        "node 3: its parent 4 comes after it",
        "node 2: its parents lead back to itself",
    ]
    assert parent == [None, 0, None, 4, 2, 4]
    assert depth == [0, 1, 1, 3, 2, 3]
    assert orphan == [False, False, True, False, False, False]
