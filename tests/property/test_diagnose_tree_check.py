"""The check of a tree against one written another way: sound trees pass, and every single change is seen."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ddscope.diagnose.tree_check import audit
from ddscope.model import Step, Target, Tree
from tests.diagnosing import ancestors, depth, sound_mask, sound_positions

BASE = 100


@st.composite
def trees(draw: st.DrawFn, least: int = 0) -> list[int]:
    """Parents of a tree of up to 40 nodes."""
    size = draw(st.integers(least, 40))
    return [draw(st.integers(0, node)) for node in range(size)]


def step(
    parents: list[int],
    positions: list[int] | None = None,
    mask: list[str] | None = None,
    leaf: int = 0,
    tokens: list[int] | None = None,
) -> Step:
    """A greedy step that accepts the path to `leaf`."""
    tokens = [1000 + node for node in range(len(parents))] if tokens is None else tokens
    path = ancestors(parents, leaf)[::-1]
    choices = [5000 + node for node in range(len(parents) + 1)]
    for above, node in pairwise(path):
        choices[above] = tokens[node - 1]
    bonus = choices[leaf]
    return Step(
        src="engine/0",
        seq=0,
        t=0,
        mono=0,
        rid="r",
        step=0,
        base=BASE,
        tree=Tree(budget=64, tokens=tokens, parents=parents, positions=positions, mask=mask),
        target=Target(ids=choices),
        path=path,
        bonus=bonus,
        emitted=[*(tokens[node - 1] for node in path[1:]), bonus],
    )


def kinds(of: Step) -> set[str]:
    result = audit(of, greedy=True)
    assert result is not None
    return {kind for found in result.problems for kind in found.kinds}


@given(trees(), st.data())
def test_sound_trees_pass(parents: list[int], data: st.DataObject) -> None:
    leaf = data.draw(st.integers(0, len(parents)))
    result = audit(step(parents, sound_positions(BASE, parents), sound_mask(parents), leaf), greedy=True)
    assert result is not None
    assert result.problems == []
    assert result.positions and result.mask and result.greedy_path


@given(trees(), st.data())
def test_every_flipped_bit_of_the_mask_is_seen(parents: list[int], data: st.DataObject) -> None:
    mask = sound_mask(parents)
    row = data.draw(st.integers(0, len(parents)))
    bit = data.draw(st.integers(0, len(parents)))
    mask[row] = format(int(mask[row], 16) ^ (1 << bit), "x")
    found = kinds(step(parents, mask=mask))
    assert found and all(kind.startswith("mask.") for kind in found)
    if bit in ancestors(parents, row):
        assert found == {"mask.missing"}


@given(trees(), st.data())
def test_every_moved_position_is_seen(parents: list[int], data: st.DataObject) -> None:
    positions = sound_positions(BASE, parents)
    node = data.draw(st.integers(0, len(parents)))
    positions[node] += data.draw(st.integers(-3, 3).filter(bool))
    found = kinds(step(parents, positions))
    assert found and all(kind.startswith("positions.") for kind in found)


@given(trees(1), st.integers(-5, 5).filter(bool))
def test_a_shift_of_all_positions_is_called_one(parents: list[int], by: int) -> None:
    assert "positions.shifted" in kinds(step(parents, [position + by for position in sound_positions(BASE, parents)]))


@given(trees(1))
def test_flat_positions_are_called_flat_unless_the_tree_is_a_chain(parents: list[int]) -> None:
    found = kinds(step(parents, list(range(BASE, BASE + len(parents) + 1))))
    is_chain = all(depth(parents, node) == node for node in range(len(parents) + 1))
    assert ("positions.flat" in found) != is_chain


@given(trees(2))
def test_the_causal_mask_is_called_so_unless_it_is_the_sound_one(parents: list[int]) -> None:
    causal = [format((1 << (node + 1)) - 1, "x") for node in range(len(parents) + 1)]
    found = kinds(step(parents, mask=causal))
    assert ("mask.lower_triangular" in found) == (causal != sound_mask(parents))


@given(trees(1), st.data())
def test_a_parent_that_does_not_come_first_is_seen(parents: list[int], data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(parents) - 1))
    parents[node] = data.draw(st.one_of(st.integers(node + 1, 60), st.integers(-9, -1)))
    sound = [0] * len(parents)
    of = step(sound)
    tree = Tree(budget=64, tokens=of.tree.tokens if of.tree else [], parents=parents)
    assert kinds(Step(src="e", seq=0, t=0, mono=0, rid="r", step=0, tree=tree, path=[0])) == {"structure.parents"}


@given(trees(2), st.data())
def test_siblings_with_one_token_are_seen_and_cousins_are_not(parents: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(parents) - 2))
    second = data.draw(st.integers(first + 1, len(parents) - 1))
    tokens = [1000 + node for node in range(len(parents))]
    tokens[second] = tokens[first]
    expected = {"structure.duplicates"} if parents[first] == parents[second] else set()
    assert kinds(step(parents, tokens=tokens)) == expected
