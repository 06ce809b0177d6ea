"""How the screen begins: the first paint waits for no index, imports wait for a screen, errors for nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddscope.session import Session
from ddscope.tui.widgets.node import NodeInspector
from ddscope.tui.widgets.steps import StepList
from ddscope.tui.widgets.tree import DraftTree
from tests.tui.shell_support import app_of, bench_of, screen_lines, settled, until, write_trace


@pytest.mark.parametrize(("at", "step"), [(None, 5), (3, 3)])
async def test_the_tree_is_there_before_any_record_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | None, step: int
) -> None:
    session = Session.replay(write_trace(tmp_path / "t.jsonl"), at=at, use_sidecar=False)
    start = session.start
    monkeypatch.setattr(session, "start", lambda: None)
    app = app_of(session)
    async with app.run_test(size=(140, 46)) as pilot:
        await until(pilot, lambda: len(app.screen_stack) > 1 and bench_of(pilot).query_one(DraftTree).view is not None)
        bench = bench_of(pilot)
        view = bench.query_one(DraftTree).view
        assert session.store.n == 0 and view is not None and view.step == step
        assert bench.query_one(NodeInspector).node is not None
        await until(pilot, lambda: "indexing" in screen_lines(pilot)[0])
        assert "0%" in screen_lines(pilot)[0]
        assert "the trace is being indexed" in bench.query_one(StepList).empty_text()
        start()
        await settled(pilot)
        shown = bench.query_one(DraftTree).view
        assert shown is not None and (shown.rid, shown.step) == ("r2", step)
        assert "indexing" not in screen_lines(pilot)[0]
    session.close()


async def test_keys_pressed_while_indexing_work_on_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.replay(write_trace(tmp_path / "t.jsonl"), use_sidecar=False)
    start = session.start
    monkeypatch.setattr(session, "start", lambda: None)
    app = app_of(session)
    async with app.run_test(size=(140, 46)) as pilot:
        await until(pilot, lambda: len(app.screen_stack) > 1)
        await pilot.press("left", "space", "m", "y", "g", "right_square_bracket", "z", "end")
        start()
        bench = await settled(pilot)
        assert bench.cursor.rid == "r2"
    session.close()


@pytest.mark.parametrize(
    ("module", "absent"),
    [("ddscope.tui", ["textual", "rich", "torch", "numpy"]), ("ddscope.tui.app", ["torch", "numpy", "safetensors"])],
)
def test_what_is_imported_when(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_trace_without_anything_says_so_in_every_pane(tmp_path: Path) -> None:
    from tests.tracing import Clock, header

    with Session.replay(write_trace(tmp_path / "t.jsonl", [header(Clock())]), use_sidecar=False) as session:
        app = app_of(session)
        async with app.run_test(size=(140, 46)) as pilot:
            bench = await settled(pilot)
            assert "This trace has no steps" in bench.query_one(DraftTree).empty_text()
            await pilot.press(
                "left", "right", "home", "end", "space", "left_square_bracket", "right_curly_bracket", "g"
            )
            assert bench.is_running
