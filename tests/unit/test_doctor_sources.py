"""Comparing two versions of a Python file: functions, enum members, predicates. Parsed, never imported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope.remote.doctor.enums import compare, enums, true_for
from ddscope.remote.doctor.sources import diff_functions
from tests.integration.environments.venvs import KEEPS, MOVES, SPEC_INFO


def patched(*swaps: tuple[str, str]) -> str:
    text = SPEC_INFO
    for was, now in swaps:
        text = text.replace(was, now)
    return text


def changed(was: str, now: str) -> list[tuple[str, str]]:
    found = diff_functions(was, now)
    assert found is not None
    return [(one.name, one.change) for one in found]


def test_a_changed_method_is_named_with_its_class() -> None:
    assert changed(SPEC_INFO, patched(MOVES[1])) == [("SpeculativeAlgorithm.is_dflash", "changed")]


def test_comments_layout_and_docstrings_are_no_change() -> None:
    now = SPEC_INFO.replace('"""What there is."""', '"""Something else."""').replace("auto()\n", "auto()  # note\n")
    assert changed(SPEC_INFO, now) == []


def test_a_changed_default_and_a_changed_decorator_are_changes() -> None:
    was = "def f(a=1):\n    return a\n\n\n@x\ndef g():\n    pass\n"
    assert changed(was, was.replace("a=1", "a=2").replace("@x", "@y")) == [("f", "changed"), ("g", "changed")]


def test_added_and_removed_functions_are_told_apart() -> None:
    assert changed("def f(): pass\n", "def g(): pass\n") == [("g", "added"), ("f", "removed")]


def test_functions_of_one_name_are_compared_in_order() -> None:
    was = "if 1:\n    pass\ndef f(): return 1\ndef f(): return 2\n"
    assert changed(was, was.replace("return 2", "return 3")) == [("f'", "changed")]


def test_what_cannot_be_parsed_has_no_functions() -> None:
    assert diff_functions("def f(:\n", "x = 1\n") is None
    assert enums("def f(:\n") == {} == true_for("def f(:\n", "E")


def test_a_member_in_the_middle_moves_those_after_it() -> None:
    change = compare(enums(SPEC_INFO), enums(patched(*MOVES)))[0]
    assert change.moved == (("EAGLE", "2", "3"), ("STANDALONE", "3", "4"), ("NONE", "4", "5"))
    assert (change.added, change.removed, change.kept) == (("DDTREE",), (), 1)


def test_a_member_at_the_end_moves_none() -> None:
    change = compare(enums(SPEC_INFO), enums(patched(*KEEPS)))[0]
    assert (change.moved, change.added, change.kept) == ((), ("DDTREE",), 4)


@pytest.mark.filterwarnings("ignore:In 3.13")
def test_values_count_as_enum_counts_them() -> None:
    source = (
        "import enum\nfrom enum import *\n"
        "class A(enum.IntEnum):\n    X = 5\n    Y = enum.auto()\n    Z = X\n    W = auto()\n"
        "class F(Flag):\n    X = auto()\n    Y = auto()\n    Z = auto()\n"
        "class S(StrEnum):\n    Left = auto()\n"
    )
    space: dict[str, object] = {}
    exec(source, space)
    for name, members in enums(source).items():
        real = space[name].__members__  # type: ignore[attr-defined]
        assert members == {member: str(value.value) for member, value in real.items()}


@pytest.mark.filterwarnings("ignore:In 3.13")
@given(st.lists(st.one_of(st.just("auto()"), st.integers(0, 50).map(str)), min_size=1, max_size=8))
def test_any_enum_of_numbers_reads_as_python_runs_it(values: list[str]) -> None:
    source = "from enum import IntEnum, auto\nclass E(IntEnum):\n" + "".join(
        f"    M{index} = {value}\n" for index, value in enumerate(values)
    )
    space: dict[str, object] = {}
    exec(source, space)
    real = space["E"].__members__  # type: ignore[attr-defined]
    assert enums(source)["E"] == {name: str(member.value) for name, member in real.items()}


def test_a_value_that_the_file_does_not_say_is_not_called_moved() -> None:
    was, now = "class E(Enum):\n    A = make()\n    B = auto()\n", "class E(Enum):\n    A = 1\n    B = auto()\n"
    assert enums(was)["E"] == {"A": None, "B": None}
    assert compare(enums(was), enums(now))[0].moved == ()


def test_predicates_are_evaluated_for_every_member() -> None:
    answers = true_for(patched(*MOVES), "SpeculativeAlgorithm")
    assert answers["is_dflash"] == ["DFLASH", "DDTREE"] == answers["is_dflash_family"]
    assert answers["is_eagle"] == ["EAGLE"]


def test_a_predicate_that_does_more_is_left_out() -> None:
    source = (
        SPEC_INFO + "\n\nclass E(Enum):\n    A = 1\n\n    def is_a(self):\n        return os.environ['A'] == self\n"
    )
    assert true_for(source, "E") == {}


def test_predicates_that_ask_each_other_for_ever_end() -> None:
    source = (
        "class E(Enum):\n    A = 1\n    def is_a(self): return self.is_b()\n    def is_b(self): return self.is_a()\n"
    )
    assert true_for(source, "E") == {}
