"""NodeInspector and DepthCurve: what is known of a node and why, and how deep trees are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from ddscope.session.views import Curve, TreeView
from ddscope.tui import foreign
from ddscope.tui.theme import palette
from ddscope.tui.widgets.curve import DepthCurve, large_curve, share_bar, small_curve
from ddscope.tui.widgets.node import NodeInspector, inspect, number
from tests.tui.tree_hostile import trees
from tests.tui.trees import Host, lines_of, make_tree, real_trees

DARK = palette("ddscope-dark")
REAL = Curve(33, (30, 20, 7, 3, 3, 1))


def said(view: TreeView, index: int, width: int = 200, entropy: float | None = None) -> str:
    lines = inspect(view, view.nodes[index], entropy, width, DARK)
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_the_last_accepted_node_of_the_real_step() -> None:
    view = real_trees()[24]
    text = said(view, view.path[-1], entropy=1.5)
    for part in (
        "node       8  depth 3  rank 0",
        "token      15345  '␣hash'",
        "draft p    0.529",
        "path p     0.041",
        "entropy    1.50 nats at depth 3",
        "target     '␣code'  0.939",
        "runner-up  '␣function'  0.016",
        "logits to runner-up",
        "verdict    accepted, last on the path",
        "The target chose ␣code here: no drafted child matches",
        "So it is the bonus token.",
    ):
        assert part in text, text


def test_every_kind_of_node_has_a_sentence() -> None:
    view = real_trees()[24]
    inner, root = view.path[1], 0
    assert f"drafted node {view.path[2]} is that token: accepted." in said(view, inner)
    assert "The target chose , here" in said(view, root)
    sibling = next(node.index for node in view.nodes if node.words.startswith("sibling"))
    assert "After node" in said(view, sibling) and "not " in said(view, sibling)
    far = next(node.index for node in view.nodes if node.words.startswith("not reached"))
    assert "Its branch ended at node" in said(view, far) and "would have chosen" in said(view, far)


def test_what_the_source_did_not_tell_is_not_made_up() -> None:
    view = make_tree([0, 1], path=None, bonus=None, logprobs=[None, None])
    text = said(view, 2)
    assert "draft p    not told" in text and "target " not in text and "told neither" in text
    assert "did not say which were accepted" in said(view, 0)


def test_a_wrong_position_and_a_wrong_mask_are_said_with_what_was_expected() -> None:
    view = make_tree([0, 1], path=(0, 1), positions=[10, 11, 99], mask=["1", "3", "5"])
    text = said(view, 2)
    assert "99, expected 12" in text and "wrong mask" in text


@settings(deadline=None, max_examples=150)
@given(trees(), st.data(), st.integers(10, 60))
def test_any_node_of_any_tree_can_be_inspected_and_fits(view: TreeView, data: st.DataObject, width: int) -> None:
    index = data.draw(st.integers(0, len(view.nodes) - 1))
    for line in inspect(view, view.nodes[index], None, width, DARK):
        assert sum(foreign.cells(text) for text, _ in line) <= width
        assert all(foreign.safe(text) == text or text.startswith("\u0301") for text, _ in line)


def test_small_probabilities_keep_digits_that_say_something() -> None:
    assert [number(p) for p in (None, 1.0, 0.5286, 0.0412, 0.00012, 1e-9, 0.0)] == [
        "not told", "1.000", "0.529", "0.041", "0.00012", "1.0e-09", "0.000",
    ]  # fmt: skip


async def at(pilot: Pilot[None]) -> Any:
    await pilot.pause()
    return pilot.app.pane  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [(30, 40), (20, 60), (60, 30)])
async def test_the_pane_wraps_and_draws_the_curve_below(size: tuple[int, int]) -> None:
    view = real_trees()[24]
    app = Host(NodeInspector(), view=view, node=view.nodes[8], curve=REAL)
    async with app.run_test(size=size) as pilot:
        pane = await at(pilot)
        text = " ".join(" ".join(lines_of(pane)).split())
        assert "≥ depth)" in text and "0.03" in text and "accepted, last on the path" in text


async def test_a_huge_token_can_be_read_by_scrolling() -> None:
    view = make_tree([0], texts={1: "ab" * 5_000}, path=(0, 1))
    async with Host(NodeInspector(), view=view, node=view.nodes[1]).run_test(size=(40, 20)) as pilot:
        pane = await at(pilot)
        assert pane.virtual_size.height > 10_000 // 40
        await pilot.press("pagedown", "down")
        assert lines_of(pane)[0].strip().startswith(("ab", "ba"))


async def test_without_a_node_the_pane_says_what_to_do() -> None:
    async with Host(NodeInspector(), view=real_trees()[24]).run_test(size=(40, 20)) as pilot:
        assert "click one in the tree" in " ".join(" ".join(lines_of(await at(pilot))).split())


def test_the_small_curve_has_a_bar_and_a_number_a_depth() -> None:
    lines = ["".join(text for text, _ in line) for line in small_curve(REAL, 30, DARK)]
    assert lines[0].startswith("P(accepted ≥ depth)") and len(lines) == 7
    assert lines[1].endswith(" 0.91") and lines[6].endswith(" 0.03")
    assert lines[1].count("█") > lines[2].count("█") > lines[6].count("█")
    assert not small_curve(Curve.empty(), 30, DARK)


def test_the_large_curve_compares_with_the_run_and_tells_the_share_of_those_that_came_so_far() -> None:
    run = Curve(120, (100, 70, 30, 10, 4, 2, 1))
    lines = ["".join(text for text, _ in line) for line in large_curve(REAL, run, 100, DARK)]
    assert "33 steps, mean accepted 1.94" in lines[0] and "120 steps" in lines[0]
    assert lines[2].split()[:4] == ["1", "0.91", "30/33", "0.91"]
    assert lines[4].split()[:4] == ["2", "0.61", "20/33", "0.67"]
    assert lines[3].split()[:2] == ["run", "0.83"]
    assert len(lines) == 2 + 2 * 7


def test_a_small_share_is_still_a_hair() -> None:
    assert share_bar(0.001, 20) == "▏" and share_bar(0.0, 20) == "" and share_bar(1.0, 5) == "█████"


async def test_the_curve_pane_draws_both_forms_and_says_why_it_is_empty() -> None:
    app = Host(DepthCurve(), curve=REAL)
    async with app.run_test(size=(90, 20)) as pilot:
        pane = await at(pilot)
        assert "of reached" in lines_of(pane)[1]
        pane.compact = True
        await pilot.pause()
        assert lines_of(pane)[0].startswith("P(accepted ≥ depth)")
        pane.curve = Curve.empty()
        await pilot.pause()
        assert any("No curve yet" in line for line in lines_of(pane))


async def test_nothing_accepted_at_all_is_said() -> None:
    async with Host(DepthCurve(), curve=Curve(7, ())).run_test(size=(90, 12)) as pilot:
        assert any("No drafted token was accepted" in line for line in lines_of(await at(pilot)))
