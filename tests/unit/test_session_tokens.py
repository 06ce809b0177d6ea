"""Token text: joined over borders, visible, never markup, never lost."""

from __future__ import annotations

import pytest

from ddscope.model import Raw64
from ddscope.session import TokenTable
from ddscope.session.tokens import marked, preview, visible


@pytest.fixture
def table() -> TokenTable:
    tokens = TokenTable()
    tokens.add(
        [0, 1, 2, 3, 4, 5, 6],
        ["", " hash", "\n\n", Raw64("8J8="), Raw64("mIA="), "[/INST]", "\x1b[31m\u202e\t"],  # 3 + 4 = 😀
    )
    return tokens


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (0, "⟨#0 empty⟩"),
        (1, "␣hash"),
        (2, "⏎⏎"),
        (3, "⟨f09f⟩"),
        (4, "⟨9880⟩"),
        (5, "[/INST]"),
        (6, "␛[31m⟨U+202E⟩⇥"),
        (9, "⟨#9⟩"),
        (-1, "⟨#-1⟩"),
    ],
)
def test_a_token_is_one_visible_line(table: TokenTable, token: int, shown: str) -> None:
    assert table.display(token) == shown


def test_characters_split_over_tokens_are_joined(table: TokenTable) -> None:
    assert table.join([1, 3, 4, 1]) == " hash😀 hash"
    assert table.join([3]) == "⟨f09f⟩"
    assert table.join([3, 1]) == "⟨f09f⟩ hash"
    assert table.join([3, 9, 4]) == "⟨f09f⟩⟨#9⟩⟨9880⟩", "an unknown token may hold anything, so nothing joins across it"


def test_a_begun_character_is_handed_on(table: TokenTable) -> None:
    text, begun = table.decode([1, 3])
    assert (text, begun) == (" hash", b"\xf0\x9f")
    assert table.decode([4], begun) == ("😀", b"")
    assert table.carry(reversed([1, 3, 0])) == b"\xf0\x9f", "an empty token breaks nothing"


def test_an_id_told_anew_shows_its_new_text(table: TokenTable) -> None:
    assert table.display(1) == "␣hash"
    before = table.version, table.retold
    table.add([1], [" hush"])
    assert table.display(1) == "␣hush" and (table.version, table.retold) == (before[0] + 1, before[1] + 1)
    table.add([1, 8], [" hush"])
    assert (table.version, table.text(8)) == (before[0] + 1, None), "lists of different length give what they share"


def test_a_combining_mark_does_not_sit_on_its_neighbour() -> None:
    assert marked("\u0301x") == "◌\u0301x"


def test_spaces_that_only_look_like_one_are_named() -> None:
    assert visible("a\u00a0b c\n") == "a⟨U+00A0⟩b c\n"


CHATML = (
    "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nWhat is a\nhash table?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        (CHATML, "What is a hash table?"),
        ("<s>[INST] Name three rivers [/INST]", "Name three rivers"),
        ("<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "Hi"),
        ("plain words", "plain words"),
        ("", ""),
        ("<|im_start|>", "<|im_start|>"),
        ("x" * 200, "x" * 79 + "…"),
    ],
)
def test_a_title_is_what_somebody_wrote(prompt: str, title: str) -> None:
    assert preview(prompt) == title
