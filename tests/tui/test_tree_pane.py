"""DraftTree on a screen: keys, mouse, folds, breakpoint mark, what is outside the pane, odd trees, themes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from ddscope.session.views import TreeView
from ddscope.tui.widgets.tree import DraftTree
from ddscope.tui.widgets.tree_fold import BONUS
from tests.tui.trees import Host, lines_of, make_tree, real_trees

STEP = 24  # "table" → ", the hash", then the bonus "code"


def host(view: TreeView | None, *, theme: str = "ddscope-dark", no_color: bool = False, **state: Any) -> Host:
    return Host(DraftTree(), theme, no_color=no_color, view=view, **state)


async def at(pilot: Pilot[None]) -> DraftTree:
    await pilot.pause()
    pane = pilot.app.query_one(DraftTree)
    assert isinstance(pane, DraftTree)
    return pane


async def test_a_new_step_puts_the_cursor_on_the_last_node_of_the_path() -> None:
    async with host(real_trees()[STEP]).run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)
        assert pane.cursor == real_trees()[STEP].path[-1]
        assert lines_of(pane)[1].startswith("␣table━┯━ ,━")


async def test_arrow_keys_walk_the_tree_and_tell_the_node() -> None:
    app = host(real_trees()[STEP])
    async with app.run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)
        view = real_trees()[STEP]
        await pilot.press("left")
        assert pane.cursor == view.path[-2]
        await pilot.press("l")
        assert pane.cursor == view.path[-1]
        await pilot.press("circumflex_accent")
        assert pane.cursor == 0
        await pilot.press("right", "j")
        assert view.nodes[pane.cursor].depth == 1 and not view.nodes[pane.cursor].on_path
        await pilot.press("k")
        assert pane.cursor == view.path[1]
        await pilot.press("dollar_sign")
        assert pane.cursor == view.path[-1]
        await pilot.pause()
        assert [message.index for message in app.told if isinstance(message, DraftTree.NodeSelected)][-1] == view.path[
            -1
        ]


async def test_the_cursor_stays_when_there_is_nothing_further() -> None:
    async with host(make_tree([0], path=(0,))).run_test() as pilot:
        pane = await at(pilot)
        await pilot.press("left", "up", "up")
        assert pane.cursor == 0
        await pilot.press("right", "right", "down")
        assert pane.cursor == 1


async def test_a_click_selects_a_node_and_on_the_bonus_the_end_of_the_path() -> None:
    async with host(real_trees()[STEP]).run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)
        spots = pane.drawing().spots
        target = spots[real_trees()[STEP].root.children[-1]]
        await pilot.click(pane, offset=(target.x + 1 + 1, target.row + 1 + 1))
        assert pane.cursor == target.key
        bonus = spots[BONUS]
        await pilot.click(pane, offset=(bonus.x + 1, bonus.row + 2))
        assert pane.cursor == bonus.parent
        before = pane.cursor
        await pilot.click(pane, offset=(70, 20))
        assert pane.cursor == before


async def test_the_mouse_tells_what_it_is_over_and_that_it_left() -> None:
    app = host(real_trees()[STEP])
    async with app.run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)
        spot = pane.drawing().spots[1]
        await pilot.hover(pane, offset=(spot.x + 1, spot.row + 2))
        await pilot.pause()
        await pilot.hover(pane, offset=(80, 22))
        await pilot.pause()
        assert [m.index for m in app.told if isinstance(m, DraftTree.NodeHovered)] == [1, None]


def bushy() -> TreeView:
    return make_tree([0] * 300, logprobs=[math.log(0.5)] + [math.log(0.001)] * 299, path=(0, 1))


async def test_a_fold_says_how_many_nodes_it_holds_and_opens_by_key() -> None:
    async with host(bushy()).run_test(size=(80, 24)) as pilot:
        pane = await at(pilot)
        hidden = pane.drawing().shown.hidden[0]
        assert 200 < hidden < 300
        await pilot.press("circumflex_accent", "enter")
        assert not pane.drawing().shown.hidden
        await pilot.press("enter")
        assert pane.drawing().shown.hidden[0] == 299
        assert any("⋯ 299 nodes" in line for line in lines_of(pane))


async def test_a_fold_is_a_place_to_go_to_and_opens_by_click() -> None:
    async with host(bushy()).run_test(size=(80, 24)) as pilot:
        pane = await at(pilot)
        await pilot.press("circumflex_accent", "right")
        for _ in range(100):
            await pilot.press("down")
        assert pane.cursor == 0  # the fold hangs from the root
        hidden = pane.drawing().shown.hidden[0]
        assert any(f"⋯ {hidden} nodes" in line for line in lines_of(pane))
        fold = pane.drawing().spots[~0]
        y = fold.row + 1 - pane.scroll_offset.y
        await pilot.click(pane, offset=(fold.x + 2, y + 1))
        assert not pane.drawing().shown.hidden


async def test_all_folds_open_and_close_with_one_key() -> None:
    async with host(bushy()).run_test(size=(80, 24)) as pilot:
        pane = await at(pilot)
        await pilot.press("asterisk")
        assert not pane.drawing().shown.hidden
        await pilot.press("asterisk")
        assert pane.drawing().shown.hidden


async def test_selecting_a_folded_node_from_outside_brings_it_out_and_on_the_screen() -> None:
    async with host(bushy()).run_test(size=(80, 24)) as pilot:
        pane = await at(pilot)
        assert 300 not in pane.drawing().spots
        pane.cursor = 300
        await pilot.pause()
        spot = pane.drawing().spots[300]
        assert any(spot.text in line for line in lines_of(pane))


async def test_a_tree_larger_than_the_pane_says_what_is_outside_and_scrolls_there() -> None:
    chain = make_tree([*range(40)], path=(0,))
    async with host(chain).run_test(size=(60, 12)) as pilot:
        pane = await at(pilot)
        assert "deeper →" in lines_of(pane)[0]
        for _ in range(40):
            await pilot.press("right")
        assert pane.cursor == 40
        assert "← " in lines_of(pane)[0] and "deeper" not in lines_of(pane)[0]
        assert any("t40" in line for line in lines_of(pane))


async def test_the_path_stays_on_the_first_row_from_step_to_step() -> None:
    async with host(real_trees()[0]).run_test(size=(90, 12)) as pilot:
        pane = await at(pilot)
        for step, view in real_trees().items():
            pane.view = view
            await pilot.pause()
            line = lines_of(pane)[1]
            assert line.startswith(view.root.text), step
            assert [spot.key for spot in pane.drawing().rows[0]][: len(view.path)] == list(view.path)
            await pilot.press("down", "down")


async def test_the_same_step_read_again_keeps_cursor_and_folds() -> None:
    async with host(bushy()).run_test(size=(80, 24)) as pilot:
        pane = await at(pilot)
        await pilot.press("circumflex_accent", "enter")
        pane.view = bushy()
        await pilot.pause()
        assert pane.cursor == 0 and not pane.drawing().shown.hidden


async def test_a_step_that_is_held_before_its_commit_is_marked() -> None:
    async with host(real_trees()[STEP], stopped="accepted = 0 \x1b[31m[/b]").run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)
        assert lines_of(pane)[-1].startswith(" ■ STOPPED BEFORE COMMIT  accepted = 0 ␛[31m[/b]")
        pane.stopped = ""
        await pilot.pause()
        assert not any("STOPPED" in line for line in lines_of(pane))


async def test_the_last_row_is_not_hidden_by_the_mark() -> None:
    view = make_tree([0] * 30, path=(0,))
    async with host(view, stopped="step 3").run_test(size=(60, 12)) as pilot:
        pane = await at(pilot)
        pane.cursor = 30
        await pilot.pause()
        lines = lines_of(pane)
        assert "STOPPED" in lines[-1]
        assert any("t30" in line for line in lines[:-1])


async def test_probabilities_appear_and_go() -> None:
    async with host(real_trees()[STEP]).run_test(size=(100, 26)) as pilot:
        pane = await at(pilot)
        pane.show_probabilities = True
        await pilot.pause()
        assert "␣hash .53" in lines_of(pane)[1] and "␣code .94" in lines_of(pane)[1]
        pane.show_probabilities = False
        await pilot.pause()
        assert ".53" not in lines_of(pane)[1]


async def test_the_outline_gives_the_verdict_of_every_node_in_words() -> None:
    async with host(real_trees()[STEP], outline=True).run_test(size=(120, 40)) as pilot:
        pane = await at(pilot)
        lines = lines_of(pane)
        assert "verdict" in lines[0]
        assert "✓ ," in lines[2] and "accepted" in lines[2]
        assert any("◆ ␣code" in line and "bonus" in line for line in lines)
        assert sum("not reached" in line or "sibling of" in line or "rejected" in line for line in lines) == 31 - 3


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lambda: None, "No step under the time cursor"),
        (lambda: make_tree([]), "Nothing was drafted"),
        (lambda: make_tree([0, 0], path=None), "did not say what was accepted"),
        (lambda: make_tree([5, 0], path=(0,)), "! node 1: its parent 5 is not a node of this tree"),
        (lambda: make_tree([2, 1], path=(0,)), "lead back to itself"),
    ],
)
async def test_a_pane_with_little_to_show_says_why(view: Callable[[], TreeView | None], words: str) -> None:
    async with host(view()).run_test(size=(90, 20)) as pilot:
        pane = await at(pilot)
        assert words in " ".join(" ".join(lines_of(pane)).split())


async def test_the_reason_for_an_empty_pane_may_be_given_and_may_be_hostile() -> None:
    async with host(None, empty_reason="pid [/4100] \x1b[2J runs no request").run_test(size=(60, 12)) as pilot:
        pane = await at(pilot)
        assert "pid [/4100] ␛[2J runs no request" in " ".join(" ".join(lines_of(pane)).split())


async def test_markup_in_tokens_and_request_names_is_drawn_as_it_is() -> None:
    view = make_tree([0, 1], texts={0: "[/INST]", 1: "[bold]x[/bold]", 2: "\x1b[31m"}, path=(0, 1))
    async with host(view).run_test(size=(80, 12)) as pilot:
        pane = await at(pilot)
        text = lines_of(pane)[1] + lines_of(pane)[2]
        assert "[/INST]" in text and "[bold]x[/bold]" in text and "␛[31m" in text


async def test_without_colour_the_verdicts_differ_in_weight_line_and_mark() -> None:
    async with host(real_trees()[STEP], no_color=True, cursor=0).run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)
        pane.cursor = real_trees()[STEP].root.children[-1]
        await pilot.pause()
        first = list(pane.render_line(1))
        styles = {segment.text.strip(): segment.style for segment in first if segment.text.strip()}
        text = pane.render_line(1).text
        assert "━" in text and "◆" in text
        second = {segment.text.strip(): segment.style for segment in pane.render_line(2)}
        rejected = second["␣hash"]
        assert rejected is not None and not rejected.bold
        accepted = styles["␣hash"]
        assert accepted is not None and accepted.bold
        root = styles["␣table"]
        assert root is not None and root.underline


async def test_a_tree_of_1024_nodes_is_drawn_from_a_layout_made_once() -> None:
    view = make_tree([i // 3 for i in range(1024)], path=(0, 1, 4))
    async with host(view).run_test(size=(120, 40)) as pilot:
        pane = await at(pilot)
        layout = pane.drawing()
        assert len(layout.rows) <= 100
        await pilot.press("down", "up", "left", "right")
        pane.refresh()
        await pilot.pause()
        assert pane.drawing() is layout


async def test_another_theme_recolours_the_tree_and_its_foot() -> None:
    app = host(real_trees()[STEP], stopped="step 24")
    async with app.run_test(size=(90, 26)) as pilot:
        pane = await at(pilot)

        def inks() -> set[str]:
            lines = (pane.render_line(y) for y in range(pane.scrollable_size.height))
            return {str(s.style.color) for line in lines for s in line if s.style is not None and s.text.strip()}

        dark = inks()
        app.theme = "ddscope-light"
        await pilot.pause()
        assert dark.isdisjoint(inks())
