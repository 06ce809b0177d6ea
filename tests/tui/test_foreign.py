"""Foreign text: nothing in it acts on the terminal, nothing disappears, widths hold."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ddscope.tui import foreign
from tests.tui.tree_hostile import HOSTILE, texts


@settings(deadline=None, max_examples=200)
@given(texts)
def test_safe_text_has_no_character_that_acts_hides_or_attaches_to_a_neighbour(text: str) -> None:
    shown = foreign.safe(text)
    for char in shown:
        assert char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    for line in shown.split("\n"):
        assert not line or not unicodedata.category(line[0]).startswith("M")


@settings(deadline=None, max_examples=200)
@given(texts)
def test_making_text_safe_twice_changes_nothing(text: str) -> None:
    assert foreign.safe(foreign.safe(text)) == foreign.safe(text)


@settings(deadline=None, max_examples=200)
@given(texts)
def test_a_token_is_one_line_without_spaces(text: str) -> None:
    assert not any(char.isspace() and char != "\u3000" and ord(char) < 0x80 for char in foreign.token(text))
    assert bool(foreign.token(text)) == bool(text)


@settings(deadline=None, max_examples=200)
@given(texts, st.integers(0, 40))
def test_cutting_never_exceeds_the_width_and_marks_what_was_cut(text: str, width: int) -> None:
    shown = foreign.token(text)
    for cut in (foreign.elide(shown, width), foreign.cut(shown, width)):
        assert foreign.cells(cut) <= width
        if cell_len(shown) <= width:
            assert cut == shown
        elif width:
            assert foreign.ELLIPSIS in cut


@settings(deadline=None, max_examples=200)
@given(texts, st.integers(1, 40))
def test_wrapping_loses_nothing_but_spaces_at_breaks(text: str, width: int) -> None:
    shown = foreign.safe(text)
    lines = foreign.wrap(shown, width)
    assert "".join("".join(lines).split()) == "".join(shown.split())
    for line in lines:
        assert foreign.cells(line) <= max(width, 2)


@pytest.mark.parametrize("text", [text for text in HOSTILE if len(text) < 100])
def test_content_is_never_markup(text: str) -> None:
    assert foreign.content(text).plain == foreign.safe(text)
    assert not foreign.content(text).spans


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[/INST]", "[/INST]"),
        ("\x1b[31m", "␛[31m"),
        ("a\tb", "a⇥b"),
        ("\u202e", "⟨U+202E⟩"),
        ("\ufe0f", "⟨U+FE0F⟩"),
        ("❤\ufe0f", "❤"),
        ("\u0301", "◌\u0301"),
        ("e" + "\u0301" * 10, "e\u0301\u0301\u0301⟨+7 marks⟩"),
    ],
)
def test_what_odd_characters_look_like(text: str, shown: str) -> None:
    assert foreign.safe(text) == shown


def test_a_long_token_keeps_both_ends() -> None:
    assert foreign.elide("abcdefghij", 7) == "abc…hij"
    assert foreign.elide("漢字漢字漢字", 6) == "漢…字"
