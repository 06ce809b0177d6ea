"""One time cursor: any pane moves it, all panes follow; LIVE and PAUSED say so and keep what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from ddscope.model import Request
from ddscope.tui.screens.workbench import Workbench
from ddscope.tui.widgets.curve import DepthCurve
from ddscope.tui.widgets.findings import Findings
from ddscope.tui.widgets.node import NodeInspector
from ddscope.tui.widgets.requests import RequestList
from ddscope.tui.widgets.steps import StepList
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.timing import StageTimes
from ddscope.tui.widgets.title import TitleBar
from ddscope.tui.widgets.tree import DraftTree
from tests.tui.shell_support import (
    Live,
    bench_of,
    is_settled,
    living,
    log,
    replayed,
    screen_lines,
    screen_text,
    settled,
    shown,
    steps_of,
    until,
)


def title(pilot: Pilot[None]) -> str:
    """The first line of the screen."""
    return screen_lines(pilot)[0]


def assert_all_show(bench: Workbench, rid: str, step: int) -> None:
    """Every pane stands at this step."""
    record = bench.store.step_records(rid)[step]
    tree = bench.query_one(DraftTree)
    assert tree.view is not None
    assert (tree.view.rid, tree.view.step, tree.view.record) == (rid, step, record)
    assert bench.query_one(StepList).cursor == record
    assert {row.rid for row in bench.query_one(StepList).rows} == {rid}
    assert bench.query_one(RequestList).cursor == rid
    assert bench.query_one(GeneratedText).cursor == record
    texts = [run.step for run in bench.query_one(GeneratedText).runs if run.step is not None]
    assert max(texts) == step
    assert bench.query_one(NodeInspector).view is tree.view
    assert bench.query_one(DepthCurve).curve.n == step + 1
    assert bench.query_one(StageTimes).timing.step == step
    assert bench.journal.moment is not None and bench.journal.moment.words == f"step {step}"
    assert bench.query_one(TitleBar).view.step == step


async def test_a_replay_opens_at_its_end_and_says_so(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            assert_all_show(bench_of(pilot), "r2", 5)
            assert "■ END" in title(pilot) and "step 5/5" in title(pilot)


@pytest.mark.parametrize(("back", "forward"), [("left", "right"), ("h", "l"), ("comma", "full_stop")])
async def test_stepping_moves_every_pane_and_pauses(tmp_path: Path, back: str, forward: str) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.press(back, back)
            assert_all_show(bench, "r2", 3)
            assert "❚❚ PAUSED" in title(pilot)
            await pilot.press(forward)
            assert_all_show(bench, "r2", 4)
            await pilot.press("end")
            assert_all_show(bench, "r2", 5)
            assert bench.cursor.is_live and "■ END" in title(pilot)


async def test_a_step_chosen_in_the_list_moves_every_pane(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.click(StepList, offset=(4, 3))  # border, heading, then step 1 at row 3
            await pilot.pause()
            assert_all_show(bench, "r2", 1)


async def test_a_request_chosen_in_the_list_moves_every_pane(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.click(RequestList, offset=(4, 2))
            await pilot.pause()
            assert_all_show(bench, "r1", 11)
            await pilot.press("right_curly_bracket")
            assert bench.cursor.rid == "r2"


async def test_text_that_is_clicked_moves_every_pane(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            bench.query_one(GeneratedText).post_message(
                GeneratedText.TokenSelected(2, session.store.step_records("r2")[2])
            )
            await pilot.pause()
            assert_all_show(bench, "r2", 2)


async def test_evidence_of_a_finding_is_jumped_to(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            findings = bench.query_one(Findings)
            await pilot.press("2")
            place = next(n for n, finding in enumerate(findings.findings) if "nan" in finding.id)
            findings.select(place)
            await pilot.press("enter")
            assert findings.is_open(place)
            lines = range(findings.line_of(place), findings.line_count())
            jump = next(y for y in lines if findings.locate(y)[1] and findings.content_at(y).target is not None)
            findings.select(jump)
            await pilot.press("enter")
            await pilot.pause()
            assert_all_show(bench, "r2", 2)


async def test_anomalies_are_jumped_to_in_this_request_and_then_in_any(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("left_square_bracket")
            assert_all_show(bench, "r2", 2)
            await pilot.press("left_square_bracket")
            assert_all_show(bench, "r1", 8)
            await pilot.press("left_square_bracket")
            assert_all_show(bench, "r1", 3)
            await pilot.press("left_square_bracket")
            assert_all_show(bench, "r1", 3)
            assert "No anomaly before this moment" in " ".join(n.message for n in pilot.app._notifications)
            await pilot.press("right_square_bracket")
            assert_all_show(bench, "r1", 8)


async def test_going_to_a_step_by_its_number(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            await pilot.press("g", "9", "enter")
            await pilot.pause()
            assert "Request r2 has the steps 0 to 5." in screen_text(pilot)
            await pilot.press("backspace", "4", "enter")
            await pilot.pause()
            assert_all_show(bench_of(pilot), "r2", 4)


async def test_the_first_step_and_back_beyond_it(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            await pilot.press("home")
            assert_all_show(bench_of(pilot), "r2", 0)
            await pilot.press("left")
            assert_all_show(bench_of(pilot), "r2", 0)
            assert [note.message for note in pilot.app._notifications] == ["This is the first step of the request."]


async def test_at_opens_at_the_step_that_was_asked_for(tmp_path: Path) -> None:
    from ddscope.session import Session
    from tests.tui.shell_support import write_trace

    with Session.replay(write_trace(tmp_path / "t.jsonl"), at=3, use_sidecar=False) as session:
        async with shown(session) as pilot:
            assert_all_show(bench_of(pilot), "r2", 3)
            assert "❚❚ PAUSED" in title(pilot)


# live -------------------------------------------------------------------------------------------------------------


def open_request(live: Live, accepted: list[int], rid: str = "r1") -> None:
    """A request with some steps arrives."""
    live.feed(Request(**live.clock(), rid=rid, prompt_len=4, prompt_ids=[5, 1, 2, 9], sampling={"temperature": 0.0}))
    live.feed(*steps_of(live.clock, rid, accepted))


async def test_live_follows_the_newest_step(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            assert "○ WAITING" in title(pilot)
            open_request(live, [2, 1])
            await until(pilot, lambda: live.session.store.totals().steps == 2)
            bench = await settled(pilot)
            assert_all_show(bench, "r1", 1)
            assert "● LIVE" in title(pilot)


async def test_paused_means_that_nothing_moves_and_what_comes_is_counted(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        open_request(live, [2, 1, 3])
        async with shown(live.session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("space")
            before = screen_lines(pilot)
            open_request(live, [1] * 9, "r2")
            await until(pilot, lambda: live.session.store.totals().steps == 12)
            await until(pilot, lambda: is_settled(bench))
            after = screen_lines(pilot)
            assert "PAUSED +12" in after[0]
            tabs = next(n for n, line in enumerate(after) if "Journal" in line)
            changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            assert set(changed) <= {0, tabs}, "only the count in the title moves"
            await pilot.press("f")
            assert_all_show(bench, "r2", 8)
            assert "● LIVE" in title(pilot) and "+12" not in title(pilot)


async def test_moving_back_while_live_pauses_and_end_follows_again(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        open_request(live, [2, 1, 3])
        async with shown(live.session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("left")
            assert_all_show(bench, "r1", 1)
            live.feed(*list(steps_of(live.clock, "r9", [1]))[:1])
            await until(pilot, lambda: live.session.store.totals().steps == 4)
            await settled(pilot)
            assert_all_show(bench, "r1", 1)
            await pilot.press("end")
            assert_all_show(bench, "r9", 0)


async def test_a_filter_set_while_paused_filters_at_once_and_time_stays(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        open_request(live, [2, 1, 3, 1])
        live.feed(*(log(live.clock, f"INFO line {n} of the log") for n in range(30)))
        live.feed(log(live.clock, "ERROR the one that matters"))
        async with shown(live.session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("space")
            moment = bench.journal.moment
            live.feed(log(live.clock, "ERROR after the hold"))
            await until(pilot, lambda: len(live.session.store.logs()) == 33)
            await pilot.press("P", "P", "P")
            assert bench.journal.entries.filter.priority == 3
            lines = [bench.journal.content_at(y).text for y in range(bench.journal.line_count())]
            assert sum("the one that matters" in line for line in lines) == 1
            assert not any("INFO line" in line or "after the hold" in line for line in lines)
            assert not bench.cursor.is_live and bench.journal.moment == moment
            await pilot.press("ampersand", *"nothing", "enter")
            await pilot.pause()
            assert "filter error and above" in screen_text(pilot)
            await pilot.press("escape")
            assert not bench.journal.entries.filter.active


# playing ----------------------------------------------------------------------------------------------------------


class PlayersClock:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_playing_shows_each_step_at_its_time_times_the_speed(tmp_path: Path) -> None:
    clock = PlayersClock()
    with replayed(tmp_path) as session:
        async with shown(session, clock=clock) as pilot:
            bench = bench_of(pilot)
            await pilot.press("home", "space")
            assert "▶ PLAY ×1" in title(pilot)
            rows = session.store.steps("r2")
            for step in range(1, 6):
                clock.now += (rows[step].t - rows[step - 1].t) / 1e6
                await until(pilot, lambda step=step: bench.query_one(TitleBar).view.step == step)  # type: ignore[misc]
                assert_all_show(bench, "r2", step)
            await until(pilot, lambda: not bench.playback.playing)
            assert "❚❚ PAUSED" in title(pilot)


async def test_space_stops_playing_and_speed_changes(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, clock=PlayersClock()) as pilot:
            bench = bench_of(pilot)
            await pilot.press("home", "space", "greater_than_sign")
            assert "▶ PLAY ×2" in title(pilot)
            await pilot.press("space")
            assert not bench.playback.playing and "❚❚ PAUSED" in title(pilot)


async def test_speed_on_the_command_line_plays_the_whole_recording(tmp_path: Path) -> None:
    clock = PlayersClock()
    with replayed(tmp_path) as session:
        async with shown(session, clock=clock, speed=2.0) as pilot:
            bench = bench_of(pilot)
            await until(pilot, lambda: bench.playback.playing)
            assert bench.cursor.rid == "r1" and bench.query_one(TitleBar).view.step == 0
            clock.now += 1000.0
            await until(pilot, lambda: bench.cursor.rid == "r2")
            clock.now += 1000.0
            await until(pilot, lambda: not bench.playback.playing)
            assert_all_show(bench, "r2", 5)
