"""One registry: what is bound, listed, hinted, written down and done is the same set of actions."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from ddscope.tui.actions import BY_ID, DEFAULT_KEYS, GROUPS, HINTS, PANE_HINTS, REGISTRY, Keys, Need, available
from ddscope.tui.app import Actions, DdscopeApp
from ddscope.tui.keysdoc import keys_page
from ddscope.tui.screens.help import help_lines
from ddscope.tui.screens.workbench import Workbench
from ddscope.tui.theme import palette
from ddscope.tui.widgets.lines import LineView
from ddscope.tui.widgets.pane import LinePane
from ddscope.tui.widgets.tree import DraftTree
from tests.tui.shell_support import bench_of, living, replayed, shown

HOMES = {"": Workbench, "app": DdscopeApp, "list": LineView, "tree": DraftTree}


def test_every_action_is_done_by_somebody() -> None:
    missing = [action.id for action in REGISTRY if not hasattr(HOMES[action.scope], f"action_{action.id}")]
    assert missing == []


def test_no_action_of_the_workbench_is_left_out_of_the_registry() -> None:
    classes = [Workbench, *(base for base in Workbench.__mro__ if base.__module__.startswith("ddscope.tui"))]
    done = {name.removeprefix("action_") for cls in classes for name in vars(cls) if name.startswith("action_")}
    assert done == {action.id for action in REGISTRY if action.scope == ""}


def test_ids_are_unique_and_a_key_does_one_thing_in_its_place() -> None:
    assert max(Counter(action.id for action in REGISTRY).values()) == 1
    used = Counter((action.scope, key) for action in REGISTRY for key in action.keys)
    assert [place for place, count in used.items() if count > 1] == []
    app_keys = {key for action in REGISTRY if action.scope == "app" for key in action.keys}
    assert not app_keys & {key for action in REGISTRY if action.scope != "app" for key in action.keys}


def test_every_action_belongs_to_a_group_and_says_what_it_does_in_the_help_column() -> None:
    for action in REGISTRY:
        assert action.group in GROUPS
        assert action.title[0].isupper() and not action.title.endswith(".")
        assert len(action.title) <= 40, action.id  # the help has two columns at 100 cells


def test_hints_name_actions_that_exist() -> None:
    named = {action for hint in (*HINTS, *chain(*PANE_HINTS.values())) for action in hint.actions}
    assert named <= set(BY_ID)
    assert [hint.actions for hint in HINTS[-2:]] == [("help",), ("command_palette",)]


def test_keys_that_are_not_built_do_nothing_and_are_not_shown() -> None:
    bound = {key for action in REGISTRY for key in action.keys}
    assert not bound & {"d", "w"}


def test_the_page_of_keys_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "keys.md"
    assert page.read_text(encoding="utf-8") == keys_page(), "python -m ddscope.tui.keysdoc > docs/keys.md"
    for action in REGISTRY:
        assert f"`{action.id}`" in keys_page()


@pytest.mark.parametrize("width", [60, 100, 140])
def test_the_help_lists_exactly_what_can_be_done(width: int) -> None:
    for offers in (frozenset({Need.REPLAY, Need.FILE}), frozenset({Need.LIVE, Need.FILE, Need.CONTROL})):
        text = "\n".join(line.text for line in help_lines(DEFAULT_KEYS, offers, palette("ddscope-dark"), width))
        for action in REGISTRY:
            assert (action.title in text) == (action in available(offers)), action.id


async def test_bindings_are_those_of_the_registry_and_no_engine_key_is_bound_on_a_recording(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            bound = {binding.action for _, binding in bench._bindings}
            wanted = {action.id for action in available(bench.offers) if action.scope == ""}
            assert bound == wanted
            assert "engine_pause" not in bound and "slower" in bound


async def test_every_pane_takes_the_keys_of_its_scope_also_those_of_a_keymap(tmp_path: Path) -> None:
    keys = Keys({"line_down": ("x",), "screen_down": ("pagedown", "x")})
    with replayed(tmp_path) as session:
        async with shown(session, keys=keys) as pilot:
            panes = {pane.id: pane for pane in bench_of(pilot).query(LinePane)}
            assert {"requests", "steps", "tree", "text", "node", "journal", "findings"} <= panes.keys()
            for pane in panes.values():
                actions = [a for a in REGISTRY if a.scope == pane.KEYS and hasattr(pane, f"action_{a.id}")]
                assert actions, pane.id
                bound = {(key, binding.action) for key, binding in pane._bindings}
                assert bound == {(key, action.id) for action in actions for key in keys.of(action)}, pane.id
            assert {pane.KEYS for pane in panes.values()} == {"list", "tree"}


async def test_a_screenful_of_a_tree_that_is_longer_than_its_pane(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=(100, 14)) as pilot:
            bench = bench_of(pilot)
            bench.show_pane("tree")
            tree = bench.query_one(DraftTree)
            tree.outline = True
            await pilot.press("circumflex_accent", "pagedown")
            await pilot.pause()
            down = tree.scroll_offset.y
            assert down > 0
            await pilot.press("pageup")
            await pilot.pause()
            assert tree.scroll_offset.y < down


async def test_a_live_engine_brings_its_keys(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            bound = {binding.action for _, binding in bench_of(pilot)._bindings}
            assert {"engine_pause", "prompt", "breakpoints"} <= bound and "slower" not in bound
            assert "e pause engine" in "".join(f"{hint.keys} {hint.word} " for hint in bench_of(pilot).hints)


async def test_the_palette_lists_every_action_with_its_keys_and_runs_it(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            listed = [hit.text async for hit in Actions(bench).discover()]
            wanted = [action.title for action in available(bench.offers) if bench.target_of(action) is not None]
            assert listed == wanted
            await pilot.press("ctrl+p")
            await pilot.press(*"first step")
            await pilot.app.workers.wait_for_complete()
            await pilot.press("enter")
            await pilot.pause()
            assert bench.cursor.step_record == session.store.step_records("r2")[0]


async def test_every_bound_key_can_be_pressed_on_a_recording_without_harm(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            for scope in ("", "list", "tree"):
                for action in available(bench.offers):
                    for key in action.keys if action.scope == scope else ():
                        await pilot.press(key)
                        while pilot.app.screen is not bench:
                            await pilot.press("escape")
                            await pilot.pause()
            assert bench.is_running
