"""The drawing of a draft tree, as a sentence and as an outline: nothing is lost, nothing overlaps, lines join."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddscope.model import Auto
from ddscope.session.views import TreeView
from ddscope.tui import foreign
from ddscope.tui.theme import palette
from ddscope.tui.widgets.tree_fold import BONUS, Folding, fold
from ddscope.tui.widgets.tree_layout import TreeLayout, sentence
from ddscope.tui.widgets.tree_outline import outline
from ddscope.tui.widgets.tree_paint import Painter, foot, notes
from tests.tui.tree_hostile import trees
from tests.tui.trees import make_tree, real_trees

DARK = palette("ddscope-dark")
ALL = Folding(None)

foldings = st.builds(
    Folding,
    st.one_of(st.none(), st.integers(1, 30)),
    st.frozensets(st.integers(-1, 70), max_size=3),
    st.frozensets(st.integers(-1, 70), max_size=3),
    st.frozensets(st.integers(-1, 70), max_size=3),
)


def drawn(view: TreeView, layout: TreeLayout) -> list[str]:
    painter = Painter(view, layout, DARK, 0, None, {})
    return ["".join(text for text, _ in painter.row(row)) for row in range(len(layout.rows))]


def cells_of(text: str) -> list[str]:
    """A character for each cell; the second cell of a wide one is empty."""
    out: list[str] = []
    for char in text:
        width = foreign.cells(char)
        out += [char, ""][:width] if width else []
    return out


@given(trees(), foldings)
@settings(max_examples=120, deadline=None)
def test_every_node_is_drawn_once_or_counted_in_one_fold(view: TreeView, folding: Folding) -> None:
    shown = fold(view, folding)
    assert len(shown.nodes) == len(set(shown.nodes))
    assert len(shown.nodes) + sum(shown.hidden.values()) == len(view.nodes)
    for parent, count in shown.hidden.items():
        assert shown.entries[parent][-1] == ~parent and count > 0
    for layout in (sentence(view, shown, room=80), outline(view, shown)):
        keys = [spot.key for row in layout.rows for spot in row]
        assert len(keys) == len(set(keys))
        assert {key for key in keys if 0 <= key < BONUS} == set(shown.nodes)
        folds = {key: spot.text for row in layout.rows for spot in row if (key := spot.key) < 0}
        assert folds.keys() == {~parent for parent in shown.hidden}
        for key, text in folds.items():
            count = shown.hidden[~key]
            assert text == f"⋯ {count:,} node{'s' if count > 1 else ''}"


@given(trees(), foldings, st.integers(0, 120), st.booleans())
@settings(max_examples=120, deadline=None)
def test_nothing_overlaps_and_every_text_stands_where_the_layout_says(
    view: TreeView, folding: Folding, room: int, probabilities: bool
) -> None:
    shown = fold(view, folding)
    for layout in (sentence(view, shown, room=room, probabilities=probabilities), outline(view, shown)):
        for number, row in enumerate(layout.rows):
            parts = [(wire.x, foreign.cells(wire.text)) for wire in layout.wires(number) if wire.text]
            parts += [(spot.x, spot.end - spot.x) for spot in row]
            end = 0
            for x, width in sorted(part for part in parts if part[1]):
                assert x >= end
                end = x + width
            assert end <= layout.width


@given(trees(), foldings)
@settings(max_examples=120, deadline=None)
def test_what_is_drawn_can_neither_move_the_cursor_nor_hide(view: TreeView, folding: Folding) -> None:
    shown = fold(view, folding)
    for layout in (sentence(view, shown, room=60), outline(view, shown)):
        texts = drawn(view, layout)
        texts += ["".join(t for t, _ in line) for line in foot(view, "why\x1b[31m\n", DARK, 60)]
        for text in texts:
            bad = [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
            assert not bad, bad


@given(trees(valid=True))
@settings(max_examples=120, deadline=None)
def test_the_first_row_is_the_path_and_the_bonus(view: TreeView) -> None:
    layout = sentence(view, fold(view, Folding(3)))
    keys = [spot.key for spot in layout.rows[0]]
    want = [*view.path, *([BONUS] if view.bonus is not None else [])]
    assert keys[: len(want)] == want
    assert [spot.x for spot in layout.rows[0]] == sorted(spot.x for spot in layout.rows[0])


@given(trees(valid=True, most=40), st.booleans())
@settings(max_examples=120, deadline=None)
def test_lines_join_all_the_way_from_a_node_to_each_of_its_children(view: TreeView, outlined: bool) -> None:
    shown = fold(view, ALL)
    layout: TreeLayout = outline(view, shown) if outlined else sentence(view, shown)
    grid = [cells_of(text) for text in drawn(view, layout)]
    for parent, keys in layout.shown.entries.items():
        here = layout.spots[parent]
        x = layout.branch[parent]
        for key in keys:
            spot = layout.spots[key]
            if spot.row == here.row:
                assert all(cell in "─━┬┯" for cell in grid[here.row][here.end : x + 2 - (key == BONUS)])
                continue
            for row in range(here.row + 1, spot.row):
                assert grid[row][x] in "│├"
            assert grid[spot.row][x] in "├└"
            assert "".join(grid[spot.row][x + 1 : x + 3]) == "─ " and spot.x == x + 3


@given(trees(valid=True))
@settings(max_examples=100, deadline=None)
def test_a_tree_takes_as_many_rows_as_it_has_leaves(view: TreeView) -> None:
    layout = sentence(view, fold(view, ALL))
    last = view.nodes[view.path[-1]]
    beside = 1 if view.bonus is not None and last.children else 0  # the bonus is one more leaf there
    assert len(layout.rows) == view.root.leaves + beside


@given(trees(valid=True, most=120), st.integers(4, 30))
@settings(max_examples=120, deadline=None)
def test_folding_keeps_the_likeliest_and_about_the_asked_for_rows(view: TreeView, rows: int) -> None:
    shown = fold(view, Folding(rows))
    layout = sentence(view, shown)
    forced = len(fold(view, Folding(1)).nodes)
    assert len(layout.rows) <= rows or len(shown.nodes) == forced
    assert set(view.path) <= set(shown.nodes)
    for parent in shown.hidden:
        away = [node for c in view.nodes[parent].children if (node := view.nodes[c]).index not in set(shown.nodes)]
        beside = [view.nodes[k] for k in shown.entries[parent] if 0 <= k < BONUS and not view.nodes[k].on_path]
        hidden, seen = (
            [lp for n in group if (lp := n.path_logprob) is not None and lp == lp] for group in (away, beside)
        )
        assert not hidden or not seen or min(seen) >= max(hidden)


def test_the_real_step_reads_as_a_sentence() -> None:
    view = real_trees()[24]
    text = drawn(view, sentence(view, fold(view, Folding(40)), room=80))
    assert text[0].rstrip() == "␣table━┯━ ,━━━━━━━━━━┯━ ␣the━━━ ␣hash━┯◆ ␣code"
    assert len(text) == 19
    assert text[-1].strip() == "└─ ␣table"


def test_a_fold_opens_at_its_parent_and_closes_again() -> None:
    view = make_tree([0] * 50, logprobs=[math.log(0.5)] + [math.log(0.01)] * 49, path=(0, 1))
    folded = fold(view, Folding(10))
    assert folded.hidden[0] == 50 - len(folded.nodes) + 1
    assert not fold(view, Folding(10, opened=frozenset({0}))).hidden
    closed = fold(view, Folding(10, closed=frozenset({0})))
    assert closed.nodes == [0, 1] and closed.hidden == {0: 49}


def test_a_fold_of_one_leaf_is_the_leaf() -> None:
    view = make_tree([0, 0, 0], path=(0,))  # with the bonus four rows
    assert fold(view, Folding(2)).hidden == {0: 3}
    assert fold(view, Folding(3)).hidden == {0: 2}
    assert fold(view, Folding(4)).hidden == {}


def test_revealing_a_node_opens_the_way_to_it_and_no_more() -> None:
    view = make_tree([0] * 30 + [30, 31], path=(0,))
    shown = fold(view, Folding(5, reveal=frozenset({32})))
    assert {30, 31, 32} <= set(shown.nodes)
    assert shown.hidden[0] > 20


def test_unlikely_branches_fold_only_in_trees_that_are_large() -> None:
    lp = [math.log(0.9)] * 10 + [math.log(1e-5)] * 5
    small = make_tree([0] * 15, logprobs=lp, path=(0,))
    assert not fold(small, Folding(40)).hidden
    large = make_tree([0] * 30, logprobs=lp * 2, path=(0,))
    assert fold(large, Folding(60)).hidden == {0: 10}


def test_wide_tokens_are_elided_before_the_tree_gets_wider_than_its_room() -> None:
    view = make_tree([0, 1, 2], texts={1: "a" * 30, 2: "b" * 30, 3: "c"}, path=(0, 1, 2))
    roomy = sentence(view, fold(view, ALL))
    tight = sentence(view, fold(view, ALL), room=60)
    assert roomy.spots[1].text == "a" * 30
    assert tight.width <= 60 < roomy.width
    assert tight.spots[1].text.startswith("aaa") and "…" in tight.spots[1].text and tight.spots[1].text.endswith("aaa")


def test_columns_stay_where_they_were_when_that_is_nearly_right() -> None:
    first = sentence(make := make_tree([0, 1], texts={1: "abcdefgh"}, path=(0, 1)), fold(make, ALL))
    second = sentence(make := make_tree([0, 1], texts={1: "abc"}, path=(0, 1)), fold(make, ALL), previous=first.widths)
    third = sentence(
        make := make_tree([0, 1], texts={1: "abc" * 5}, path=(0, 1)), fold(make, ALL), previous=first.widths
    )
    assert second.columns == first.columns
    assert third.columns[2] > first.columns[2]


@given(trees(valid=True))
@settings(max_examples=100, deadline=None)
def test_every_node_can_be_reached_with_the_arrow_keys(view: TreeView) -> None:
    layout = sentence(view, fold(view, Folding(8)))
    reached, todo = {0}, [0]
    while todo:
        key = todo.pop()
        moves = [layout.parent_of(key), layout.child_of(key), layout.vertical(key, -1), layout.vertical(key, +1)]
        for after in moves:
            if after is not None and after not in reached:
                reached.add(after)
                todo.append(after)
    assert reached == set(layout.spots) - {BONUS}


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (make_tree([]), "Nothing was drafted"),
        (make_tree([], auto=Auto(most=63, emitted=1.0, us=9)), "likely enough to pay"),
        (make_tree([0, 0], path=None), "did not say what was accepted"),
        (make_tree([0, 9]), "parent 9 is not a node"),
        (make_tree([0, 1], path=(0, 1, 2), truncated=True), "ended inside this step"),
    ],
)
def test_an_odd_tree_says_in_words_what_is_odd(view: TreeView, words: str) -> None:
    assert any(words in text for text, _ in notes(view))


def test_a_wrong_mask_or_position_is_marked_at_the_node() -> None:
    view = make_tree([0, 1], path=(0, 1), positions=[10, 11, 99], mask=["1", "3", "7"])
    layout = sentence(view, fold(view, ALL))
    assert layout.spots[2].alarm == " !" and layout.spots[1].alarm == ""
    assert "!" in "".join(text for text, _ in foot(view, "", DARK, 60)[0])
