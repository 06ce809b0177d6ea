"""Copies, bookmarks, notes: what is taken is what is under the cursor, and marks are kept as records."""

from __future__ import annotations

from pathlib import Path

from ddscope.model import Mark
from ddscope.session import Session
from ddscope.tui.widgets.steps import StepList
from tests.tui.shell_support import bench_of, living, log, replayed, screen_text, settled, shown, steps_of, until


async def test_each_letter_copies_its_thing(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("left")
            record = bench.cursor.step_record
            assert record is not None
            copied = {}
            for letter in "tipsor":
                await pilot.press("y", letter)
                await pilot.pause()
                copied[letter] = pilot.app.clipboard
            view = session.store.tree(record)
            node = view.nodes[view.path[-1]]
            assert node.token is not None
            assert copied["t"] == (session.store.tokens.text(node.token) or b"").decode()
            assert copied["i"] == str(node.token)
            assert copied["p"].startswith("0:") and copied["p"].endswith(f"{node.index}:{node.text}")
            assert copied["s"].encode() == session.store.trace.raw(record)
            assert copied["o"] and "INST" not in copied["r"] and copied["r"] == "r2"


async def test_the_line_of_the_focused_list_comes_first_and_enter_takes_it(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            journal = bench_of(pilot).journal
            await pilot.press("1")
            journal.select(0)
            await pilot.press("y", "enter")
            await pilot.pause()
            assert pilot.app.clipboard == "WARNING torchcodec is not installed, video input is off"


async def test_a_bookmark_and_a_note_beside_a_recording_are_listed_and_jumped_to(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("home", "m", "right", "right", "M", *"odd [b] here", "enter")
            await settled(pilot)
            marks = session.store.marks()
            assert [mark.text for mark in marks] == ["bookmark", "odd [b] here"]
            steps = session.store.step_records("r2")
            assert [mark.target for mark in marks] == [steps[0], steps[2]]
            assert bench.query_one(StepList).marked == frozenset({steps[0], steps[2]})
            await pilot.press("end", "apostrophe")
            await pilot.pause()
            assert "odd [b] here" in screen_text(pilot) and "r2 step 2" in screen_text(pilot)
            await pilot.press("down", "enter")
            await pilot.pause()
            assert bench.cursor.record == steps[2]
    with Session.replay(tmp_path / "trace.jsonl", use_sidecar=False) as again:
        again.wait_for(lambda store: store.settled, 30)
        assert [mark.text for mark in again.store.marks()] == ["bookmark", "odd [b] here"]


async def test_a_mark_in_a_live_session_is_a_record_of_its_trace(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.feed(*steps_of(live.clock, "r1", [1, 2]))
        async with shown(live.session) as pilot:
            await pilot.press("left", "m")
            await until(pilot, lambda: len(live.session.store.marks()) == 1)
            store = live.session.store
            number = store.marks()[0].record
            assert number is not None and isinstance(store.record(number), Mark)
            assert store.marks()[0].target == store.step_records("r1")[0]


async def test_without_marks_the_list_says_how_to_make_one(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=(80, 24)) as pilot:
            await pilot.press("apostrophe")
            await pilot.pause()
            assert "m bookmarks the moment under the cursor" in screen_text(pilot)


async def test_nothing_to_copy_and_nothing_to_mark_is_said(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await pilot.press("y")
            assert [note.message for note in pilot.app._notifications] == ["There is nothing under the cursor to copy."]
            live.feed(log(live.clock, "INFO x"))
