"""A tree view is total: whatever a Step holds within its types, there is a view, and the view is a tree."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ddscope.model import Step, Tree
from ddscope.session import TokenTable, TreeView, Verdict, tree_view
from tests.unit.session_support import small, steps


def table(texts: dict[int, bytes]) -> TokenTable:
    tokens = TokenTable()
    tokens.add(list(texts), [text.decode("utf-8", "replace") for text in texts.values()])
    return tokens


def assert_is_a_tree(view: TreeView, step: Step) -> None:
    n = len(step.tree.tokens) if step.tree is not None else 0
    assert [node.index for node in view.nodes] == list(range(n + 1)), "every node of the record is shown, in order"
    reached = set()
    stack = [0, *view.orphans]
    while stack:
        index = stack.pop()
        assert index not in reached, "a node has one place"
        reached.add(index)
        for child in view.nodes[index].children:
            assert view.nodes[child].parent == index
            assert view.nodes[child].depth == view.nodes[index].depth + 1
            stack.append(child)
    assert reached == set(range(n + 1)), "every node hangs below the root or an orphan"
    assert view.root.leaves + sum(view.nodes[i].leaves for i in view.orphans) == sum(not v.children for v in view.nodes)
    assert view.root.size + sum(view.nodes[i].size for i in view.orphans) == n + 1
    assert all(view.nodes[i].parent is None and view.nodes[i].depth == 1 for i in view.orphans)


@given(steps(), st.dictionaries(small, st.binary(max_size=3), max_size=6))
def test_any_step_has_a_view_with_words_for_every_node(step: Step, texts: dict[int, bytes]) -> None:
    view = tree_view(step, table(texts), 3)
    assert_is_a_tree(view, step)
    for node in view.nodes:
        assert node.words and node.text
        assert node.p is None or 0 <= node.p <= 1
        assert node.path_p is None or 0 <= node.path_p <= 1
        assert view.ancestors(node.index)[-1] == node.index
        assert (node.verdict is Verdict.UNKNOWN) or step.path is not None or node.index == 0
    assert (view.bonus is None) == (step.bonus is None)


@given(st.integers(0, 12).flatmap(lambda n: st.tuples(*(st.integers(0, i) for i in range(n)))), st.data())
def test_a_sound_tree_has_no_problems_and_the_verdicts_follow_from_the_path(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    n = len(parents)
    path = [0]
    while children := [i + 1 for i, parent in enumerate(parents) if parent == path[-1]]:
        child = data.draw(st.sampled_from([0, *children]))
        if child == 0:
            break
        path.append(child)
    # A token names its node, so siblings differ and the bonus (n + 1) is nowhere in the tree.
    step = Step(
        src="engine/0",
        seq=0,
        t=0,
        mono=0,
        rid="r",
        step=0,
        root=0,
        tree=Tree(budget=n, tokens=list(range(1, n + 1)), parents=list(parents), logprobs=[-0.5] * n),
        path=path,
        bonus=n + 1,
        emitted=[*path[1:], n + 1],
    )
    view = tree_view(step, TokenTable(), 0)
    assert view.problems == ()
    assert view.accepted == len(path) - 1
    for node in view.nodes[1:]:
        above = view.nodes[node.parent or 0]
        if node.index in path:
            expected = Verdict.LAST if node.index == path[-1] else Verdict.ACCEPTED
        elif above.index not in path:
            expected = Verdict.NOT_REACHED
        else:
            expected = Verdict.REJECTED if above.index == path[-1] else Verdict.SIBLING
        assert node.verdict is expected
        assert node.path_logprob is not None and math.isclose(node.path_logprob, -0.5 * node.depth)
