"""The user's keymap file: what it may say, what is said when it is wrong, what it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope.tui import keymap
from ddscope.tui.actions import BY_ID, DEFAULT_KEYS, REGISTRY, Keys
from ddscope.tui.keymap import KeymapError, load_keymap, parse_keymap, settle
from tests.tui.shell_support import bench_of, replayed, screen_text, shown, until


def test_a_missing_file_changes_nothing(tmp_path: Path) -> None:
    assert load_keymap(tmp_path / "none.toml") == Keys({})


def test_the_file_is_looked_for_where_xdg_says() -> None:
    assert keymap.keymap_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/ddscope/keymap.toml")
    assert keymap.keymap_path({"HOME": "/home/u"}) == Path("/home/u/.config/ddscope/keymap.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[keys\n", "is not TOML"),
        ('go_live = "x"', 'has "go_live" at its top'),
        ("keys = 3", "keys must be a table"),
        ('[keys]\ngo_lve = "x"', 'did you mean "go_live"?'),
        ('[keys]\nxyzzy = "x"', "does not exist, see the help screen"),
        ("[keys]\ngo_live = 3", "needs a key or a list of keys"),
        ('[keys]\ngo_live = "hyper+x"', "no keyboard sends"),
        ('[keys]\ngo_live = "nokey"', "no keyboard sends"),
        ('[keys]\ngo_live = ""', "no keyboard sends"),
        ('[keys]\ngo_live = "x"\nhold = ["x"]', 'gives the key "x" to both "go_live" and "hold"'),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keymap.toml"
    path.write_text(text)
    with pytest.raises(KeymapError) as caught:
        load_keymap(path)
    sentence = str(caught.value)
    assert said in sentence and str(path) in sentence
    assert "\n" not in sentence and sentence[-1] in ".?"


def test_bytes_that_are_no_text_are_said_too(tmp_path: Path) -> None:
    path = tmp_path / "keymap.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(KeymapError, match="cannot be read: it is not UTF-8"):
        load_keymap(path)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("x", "x"), ("X", "X"), ("?", "question_mark"), ("/", "slash"), ("^e", "ctrl+e"), ("ctrl+e", "ctrl+e"),
        ("+", "plus"), ("-", "minus"), ("f5", "f5"), ("pagedown", "pagedown"), ("shift+tab", "shift+tab"),
        ("left_square_bracket", "left_square_bracket"),
    ],
)  # fmt: skip
def test_keys_may_be_written_as_printed_or_as_named(written: str, key: str) -> None:
    assert parse_keymap({"keys": {"go_live": written}}).of("go_live") == (key,)


def test_a_key_that_is_given_away_leaves_its_old_action_only() -> None:
    keys = settle(parse_keymap({"keys": {"show_stacks": ["h", "f"]}}))
    assert keys.of("show_stacks") == ("h", "f")
    assert keys.of("step_back") == ("left", "comma") and keys.of("go_live") == ("end",)
    assert keys.of("to_parent") == ("left", "h")  # the tree's own keys are another place


@given(st.dictionaries(st.sampled_from(sorted(BY_ID)), st.lists(st.sampled_from("abcxyzABC123?/+"), max_size=3)))
def test_after_settling_no_key_does_two_things_in_one_place(table: dict[str, list[str]]) -> None:
    try:
        keys = settle(parse_keymap({"keys": table}))
    except KeymapError:
        return
    for scope in {action.scope for action in REGISTRY}:
        used = [key for action in REGISTRY if action.scope == scope for key in dict.fromkeys(keys.of(action))]
        assert len(used) == len(set(used))


@given(st.text())
def test_any_file_is_a_keymap_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        load_keymap(path)
    except KeymapError as problem:
        assert str(problem)


async def test_the_users_keys_work_and_the_old_ones_do_not(tmp_path: Path) -> None:
    keys = settle(parse_keymap({"keys": {"show_findings": "ctrl+f", "line_down": "J", "to_root": "0", "quit": []}}))
    with replayed(tmp_path) as session:
        async with shown(session, keys=keys) as pilot:
            bench = bench_of(pilot)
            assert bench.deck_tab == "journal"
            await pilot.press("2")
            assert bench.deck_tab == "journal"
            await pilot.press("ctrl+f")
            assert bench.deck_tab == "findings" and bench.current == "findings"
            findings = bench.query_one("#findings")
            await pilot.press("j")
            assert findings.selected == 0  # type: ignore[attr-defined]
            bench.show_pane("tree")
            await pilot.press("0")
            assert bench.query_one("#tree").cursor == 0  # type: ignore[attr-defined]
            await pilot.press("question_mark")
            await pilot.pause()
            assert "^f" in screen_text(pilot)
            await pilot.press("escape", "q")
            assert bench.is_running


async def test_a_keymap_that_cannot_be_used_is_said_on_the_screen(tmp_path: Path) -> None:
    said = 'Keymap k.toml names the action "[/b]", which does not exist, see the help screen.'
    with replayed(tmp_path) as session:
        async with shown(session, notices=(said,)) as pilot:
            assert [note.message for note in pilot.app._notifications] == [said]
            await until(pilot, lambda: '"[/b]"' in screen_text(pilot), "the sentence on the screen")
            assert bench_of(pilot).keys == DEFAULT_KEYS
