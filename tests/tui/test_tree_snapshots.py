"""Pictures of the tree as it was looked at and found good, in every theme and without colour.

`pytest tests/tui/test_tree_snapshots.py --snapshot-update` makes new ones; look at them before committing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ddscope.session.views import TreeView
from ddscope.tui.widgets.tree import DraftTree
from tests.tui.trees import Host, make_tree, real_trees

Compare = Callable[..., bool]


def picture(view: TreeView, theme: str = "ddscope-dark", *, no_color: bool = False, **state: Any) -> Host:
    return Host(DraftTree(), theme, no_color=no_color, view=view, **state)


def hostile() -> TreeView:
    """Tokens that are markup, escapes, wide, zero-width, right to left, or very long."""
    texts: dict[int, str | bytes] = {
        0: "[/INST]",
        1: "[bold red]",
        2: "\x1b[31mred",
        3: "漢字かな",
        4: "\u202eright to left",
        5: "👩\u200d👩\u200d👧",
        6: "\t\n",
        7: "long" * 2_500,
        8: b"\xff\xfe",
        9: "e\u0301\u0302\u0303\u0304\u0305",
        10: "\ufe0f",
        11: "",
        12: "한국",
    }
    return make_tree([0, 1, 2, 2, 3, 0, 0, 1, 8, 9, 1, 6], texts=texts, path=(0, 1, 2), bonus=3)


def bushy() -> TreeView:
    """300 nodes, most of them unlikely."""
    parents = [0, 0, 0, *[1 + i % 3 for i in range(30)], *[4 + i % 30 for i in range(267)]]
    lp = [math.log(0.6), math.log(0.2), math.log(0.1), *[math.log(0.5 / (1 + i)) for i in range(30)]]
    return make_tree(parents, logprobs=lp + [math.log(0.02)] * 267, path=(0, 1, 4))


@pytest.mark.parametrize("theme", ["dark", "light", "contrast"])
def test_the_real_step_in_every_theme(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(picture(real_trees()[24], f"ddscope-{theme}"), terminal_size=(90, 24))


def test_the_real_step_without_colour(snap_compare: Compare) -> None:
    assert snap_compare(picture(real_trees()[24], no_color=True), terminal_size=(90, 24), press=["left", "down"])


def test_the_real_step_held_before_its_commit_with_probabilities(snap_compare: Compare) -> None:
    app = picture(real_trees()[6], show_probabilities=True, stopped="accepted = 0")
    assert snap_compare(app, terminal_size=(100, 30))


def test_the_real_step_as_an_outline(snap_compare: Compare) -> None:
    assert snap_compare(picture(real_trees()[24], outline=True), terminal_size=(110, 40))


def test_a_small_screen(snap_compare: Compare) -> None:
    assert snap_compare(picture(real_trees()[22]), terminal_size=(50, 12))


def test_a_large_tree_with_folds(snap_compare: Compare) -> None:
    assert snap_compare(picture(bushy(), show_probabilities=True), terminal_size=(100, 40))


def test_hostile_tokens(snap_compare: Compare) -> None:
    assert snap_compare(picture(hostile()), terminal_size=(100, 20))


def test_a_broken_record(snap_compare: Compare) -> None:
    view = make_tree([0, 1, 9, 2], path=(0, 1, 4), positions=[10, 11, 12, 13, 99], mask=["1", "3", "7", "9", "1f"])
    assert snap_compare(picture(view), terminal_size=(90, 16))
