"""Pictures of the whole workbench as it was looked at and found good: three sizes, three themes, without colour.

`pytest tests/tui/test_shell_snapshots.py --snapshot-update` makes new ones; look at them before committing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from ddscope.session import Session
from tests.tui.shell_support import app_of, replayed, settled, utc

Compare = Callable[..., bool]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The session of every picture."""
    monkeypatch.setenv("TZ", "UTC")
    utc()
    with replayed(tmp_path) as made:
        yield made


def pressing(*keys: str) -> Callable[[Pilot[None]], object]:
    """Wait until all is on the screen, then press keys."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await pilot.pause()

    return run


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_workbench_at_its_sizes(snap_compare: Compare, session: Session, size: tuple[int, int]) -> None:
    assert snap_compare(app_of(session), terminal_size=size, run_before=pressing("left", "left"))


@pytest.mark.parametrize("theme", ["light", "high-contrast"])
def test_the_workbench_in_other_themes(snap_compare: Compare, session: Session, theme: str) -> None:
    assert snap_compare(
        app_of(session, theme=theme), terminal_size=(120, 40), run_before=pressing("left_square_bracket")
    )


def test_the_workbench_without_colour(snap_compare: Compare, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(app_of(session), terminal_size=(120, 40), run_before=pressing("left"))


def test_a_finding_that_is_open(snap_compare: Compare, session: Session) -> None:
    assert snap_compare(app_of(session), terminal_size=(120, 40), run_before=pressing("2", "enter"))


def test_the_journal_maximised_with_a_traceback_open(snap_compare: Compare, session: Session) -> None:
    keys = ("1", "z", *["pageup"] * 3, *["down"] * 4, "enter")
    assert snap_compare(app_of(session), terminal_size=(120, 40), run_before=pressing(*keys))


@pytest.mark.parametrize("tab", ["3", "4", "5", "6"])
def test_the_other_tabs(snap_compare: Compare, session: Session, tab: str) -> None:
    assert snap_compare(app_of(session), terminal_size=(120, 40), run_before=pressing(tab))


@pytest.mark.parametrize("key", ["question_mark", "y", "g", "M", "apostrophe"])
def test_the_dialogs_on_a_small_screen(snap_compare: Compare, session: Session, key: str) -> None:
    assert snap_compare(app_of(session), terminal_size=(80, 24), run_before=pressing(key))
