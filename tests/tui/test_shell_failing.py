"""A defect of the screen costs the person a sentence, not a traceback, and the recording nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddscope.tui.failing import keep_failure
from tests.tui.shell_support import app_of, living, settled


def test_the_traceback_is_kept_in_a_file_and_the_sentence_says_where(tmp_path: Path) -> None:
    try:
        raise KeyError("[/b]\x1b[31m")
    except KeyError as error:
        said = keep_failure(error, tmp_path / "r.jsonl", tmp_path / "state")
    assert said.startswith("The screen of ddscope failed (KeyError: '[/b]\\x1b[31m').")
    assert f"The recording is kept in {tmp_path / 'r.jsonl'}." in said
    assert "\n" not in said and "\x1b" not in said
    assert "test_shell_failing.py" in (tmp_path / "state" / "screen-failure.txt").read_text()


def test_a_folder_that_cannot_be_written_is_said_too(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, no folder")
    said = keep_failure(ValueError("x"), tmp_path / "r.jsonl", tmp_path / "state")
    assert "could not be written" in said and "The recording is kept in" in said


async def test_a_failing_pane_ends_the_screen_with_the_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    with living(tmp_path) as live:
        app = app_of(live.session)
        with pytest.raises(ZeroDivisionError):  # the pilot raises what ended the app
            async with app.run_test() as pilot:
                bench = await settled(pilot)
                monkeypatch.setattr(bench, "action_zoom", lambda: 1 // 0)
                await pilot.press("z")
                await pilot.pause()
        assert app.return_code == 1
        said = capsys.readouterr().err
        assert said.startswith("The screen of ddscope failed (ZeroDivisionError") and "Traceback" not in said
        assert (tmp_path / "xdg" / "ddscope" / "screen-failure.txt").exists()
        assert live.session.store.trace.header().format == "ddscope-trace"
