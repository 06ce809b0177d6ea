"""The workbench on a host: the headline, the ladder, stacks, clocks; foreign words are never markup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddscope.model import Fact, Gap, Probe, Record, Stack, Thread
from ddscope.tui.foreign import hang, safe, wrap
from ddscope.tui.widgets.curve import DepthCurve
from ddscope.tui.widgets.node import NodeInspector
from ddscope.tui.widgets.pane import LinePane
from ddscope.tui.widgets.requests import RequestList
from ddscope.tui.widgets.stacks import Stacks
from ddscope.tui.widgets.steps import StepList
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.title import TitleBar
from ddscope.tui.widgets.tree import DraftTree
from tests.tracing import Clock, header
from tests.tui.shell_support import app_of, bench_of, log, replayed, screen_text, settled, shown, until, utc
from tests.tui.test_attached import attached

PY = "/usr/lib/python3.11/threading.py"
SG = "/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py"
SERVER = {
    "host": "ct129", "unit": "sglang-qwen.service", "kind": "sglang", "pid": 4100, "port": 30000, "algorithm": "DFLASH",
    "packages": {"sglang": "0.5.23", "torch": "2.13.0"},
}  # fmt: skip


def probe(clock: Clock, rung: str, ok: bool, detail: str, src: str = "probe") -> Probe:
    return Probe(**clock(src), rung=rung, ok=ok, detail=detail, ms=2.0)


def threads(moved: bool = False) -> list[Thread]:
    line = 812 if moved else 811
    return [
        Thread(id=3, name="watchdog", active=False, frames=[f"Event.wait ({PY}:629)", f"watch ({SG}:1)"]),
        Thread(id=1, name="MainThread", frames=[f"all_reduce (/x/distributed.py:{line})", f"run_batch ({SG}:{line})"]),
        Thread(id=2, name="copy", gil=True, active=True, frames=[f"copy_[/] ({SG}:99)"]),
    ]


def dump(clock: Clock) -> Stack:
    return Stack(**clock("stack"), pid=4101, process="sglang::scheduler_TP0", mode="py-spy", threads=threads())


def stalled(clock: Clock) -> list[Record]:
    """A server that lives and does not serve."""
    return [
        Fact(**clock("probe"), name="host.server", value=SERVER),
        probe(clock, "unit", True, "sglang-qwen.service is active (running) since 2026-11-30 12:00:00"),
        probe(clock, "process", True, "pid 4100 since 2026-11-30 12:00:00, 3 processes"),
        probe(clock, "port", True, "127.0.0.1:30000 takes connections"),
        probe(clock, "health", True, "/health answers 200"),
        probe(clock, "generate", False, "no answer for 23 s to a request for 4 tokens, sent at 2026-11-30 14:02:11"),
        Fact(**clock("probe"), name="host.clock", value={"host": "ct129", "offset_us": 1_800_000, "rtt_us": 900}),
        log(clock, "[2026-11-30 14:02:00] INFO Decode batch, #running-req: 1", src="journal/sglang-qwen.service"),
        dump(clock),
        dump(clock),
    ]  # fmt: skip


async def test_the_lowest_rung_that_fails_is_in_the_title_and_the_ladder_where_the_tree_would_be(
    tmp_path: Path,
) -> None:
    clock = Clock()
    with watched(tmp_path) as live:
        live.feed(*stalled(clock))
        async with shown(live.session, size=(170, 48)) as pilot:
            await until(pilot, lambda: "no answer for 23 s" in screen_text(pilot), "the headline")
            text = screen_text(pilot)
            first = text.splitlines()[0]
            assert "ct129 · sglang-qwen.service" in first and "✗ generate: no answer for 23 s" in first
            assert "its clock is 1.8 s ahead" in first and "DFLASH" in first
            assert "✓ health    /health answers 200" in text and "✗ generate  no answer for 23 s" in text
            assert "the server is alive, and does not generate" in text
            live.feed(probe(clock, "generate", True, "4 tokens in 80 ms: ' 4, 5'"))
            await until(pilot, lambda: not bench_of(pilot).query_one(TitleBar).view.ladder, "the recovery")
            assert "runs without hooks of ddscope" in screen_text(pilot)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("stands", [True, False], ids=["stands", "serves"])
async def test_what_is_missing_is_said_in_full_once_and_fits_everywhere(
    tmp_path: Path, size: tuple[int, int], stands: bool
) -> None:
    clock = Clock()
    with watched(tmp_path) as live:
        live.feed(*stalled(clock))
        if not stands:
            live.feed(probe(clock, "generate", True, "4 tokens in 80 ms: ' 4, 5'"))
        async with shown(live.session, size=size) as pilot:
            said = "does not generate. The findings" if stands else "runs without hooks"
            await until(
                pilot, lambda: said in " ".join(bench_of(pilot).query_one(DraftTree).empty_text().split()), said
            )
            bench = bench_of(pilot)
            few = "generate fails" if stands else "the server has no hooks"
            for kind, what in (
                (RequestList, "requests"),
                (StepList, "steps"),
                (GeneratedText, "text"),
                (NodeInspector, "node"),
                (DepthCurve, "curve"),
            ):
                await until(pilot, lambda k=kind, w=what: bench.query_one(k).empty_text() == f"No {w}: {few}.", what)  # type: ignore[misc]
            for pane in bench.query(LinePane):
                if pane.is_on_screen and pane.size.height and (words := pane.empty_text()):
                    lines = hang(safe(words), max(pane.scrollable_size.width - 2, 8))
                    assert len(lines) <= pane.size.height, (pane, lines)


def test_a_line_in_columns_goes_on_below_its_last_one() -> None:
    assert hang("✓ health    /health answers 200 and more\nplain words here", 24) == [
        "✓ health    /health", "            answers 200", "            and more", "plain words here",
    ]  # fmt: skip
    assert hang("a very long first column indeed  and more", 20) == wrap(
        "a very long first column indeed  and more", 20
    )


async def test_going_back_in_time_shows_the_ladder_of_then(tmp_path: Path) -> None:
    clock = Clock()
    records = [header(clock), *stalled(clock), probe(clock, "generate", True, "4 tokens in 80 ms")]
    with replayed(tmp_path, records) as session:
        async with shown(session) as pilot:
            await settled(pilot)
            assert session.store.hosts()[0].failing is None
            failing = session.store.hosts(len(records) - 2)[0].failing
            assert failing is not None and failing.rung == "generate"
            assert bench_of(pilot).query_one(TitleBar).view.ladder == ""


async def test_stacks_begin_with_what_holds_the_gil_and_fold_what_is_idle(tmp_path: Path) -> None:
    clock = Clock()
    with replayed(tmp_path, [header(clock), *stalled(clock)]) as session:
        async with shown(session, size=(170, 50)) as pilot:
            bench = await settled(pilot)
            await pilot.press("5")
            await settled(pilot)
            pane = bench.query_one(Stacks)
            lines = [pane.entry_line(n, 160).text for n in range(pane.entry_count())]
            assert lines[0].startswith("pid 4101 sglang::scheduler_TP0  3 threads at ")
            assert "copy" in lines[1] and "GIL" in lines[1] and "copy_[/]" in lines[1]
            assert lines[2].split()[:3] == ["▸", "MainThread", "run_batch"]
            assert "in all_reduce (/x/distributed.py:811)" in lines[2] and "before" in lines[2]
            assert lines[3].strip() == "▸ 1 idle thread: watchdog"
            assert "copy_[/]" in screen_text(pilot), "foreign words are no markup"
            pane.select(2)
            await pilot.press("enter")
            assert "all_reduce (/x/distributed.py:811)" in screen_text(pilot) and pane.is_open(2)


async def test_an_open_thread_stays_open_in_the_next_dump(tmp_path: Path) -> None:
    clock = Clock()
    with watched(tmp_path) as live:
        live.feed(*stalled(clock))
        async with shown(live.session) as pilot:
            pane = bench_of(pilot).query_one(Stacks)
            await until(pilot, lambda: pane.entry_count() == 4, "the stacks")
            pane.set_open(2, True)
            live.feed(Stack(**clock("stack"), pid=4101, threads=threads(moved=True)))
            await until(pilot, lambda: "812" in pane.entry_line(2, 160).text, "the next dump")
            assert pane.is_open(2) and " before" not in pane.entry_line(2, 160).text, "it moved"


async def test_the_key_asks_for_stacks_and_says_so_when_nobody_can_be_asked(tmp_path: Path) -> None:
    with watched(tmp_path) as live:
        live.feed(*stalled(Clock())[:3])
        async with shown(live.session) as pilot:
            await until(pilot, lambda: live.session.store.n >= 3, "the records")
            await pilot.press("D")
            assert live.session.hosts[0].asked == 1  # type: ignore[attr-defined]
            assert bench_of(pilot).current == "stacks"
            assert "No stacks were taken yet. D takes them now" in screen_text(pilot)
            live.feed(
                Fact(**Clock()("stack"), name="stack.refused", value={"host": "ct129", "why": "py-spy is not there"})
            )
            await until(pilot, lambda: "No stacks: py-spy is not there." in screen_text(pilot), "why")


async def test_a_host_that_is_lost_is_in_the_title(tmp_path: Path) -> None:
    with watched(tmp_path) as live:
        live.feed(*stalled(Clock())[:3])
        async with shown(live.session) as pilot:
            await until(pilot, lambda: live.session.store.n >= 3, "the records")
            live.session.hosts[0].watch.state = "lost"  # type: ignore[union-attr]
            live.session.hosts[0].watch.reason = "The connection to ct129 was lost."  # type: ignore[union-attr]
            clock = Clock()
            live.feed(Gap(**clock("x"), of="x", count=None, reason="disconnected"))
            await until(pilot, lambda: "ct129 lost" in screen_text(pilot).splitlines()[0], "the loss")
            assert "The connection to ct129 was lost." in screen_text(pilot)


async def test_the_details_of_a_host_show_every_rung_its_packages_and_clock(tmp_path: Path) -> None:
    clock = Clock()
    with replayed(tmp_path, [header(clock), *stalled(clock)]) as session:
        async with shown(session, size=(140, 46)) as pilot:
            await settled(pilot)
            await pilot.press("H")
            await pilot.pause()
            text = screen_text(pilot)
            for words in ("✓ unit", "✗ generate", "sglang 0.5.23, torch 2.13.0", "1,800.0 ms ahead of this one"):
                assert words in text


async def test_hostile_words_of_a_host_do_not_reach_the_terminal(tmp_path: Path) -> None:
    clock = Clock()
    bad = "\x1b[2J[/b][red]\x07 \u202e evil"
    records = [
        header(clock),
        Fact(**clock("probe"), name="host.server", value={"host": bad, "unit": bad, "packages": {bad: bad}}),
        probe(clock, bad, False, bad),
        Stack(**clock("stack"), pid=1, process=bad, threads=[Thread(id=1, name=bad, frames=[bad])]),
    ]
    with replayed(tmp_path, records) as session:
        async with shown(session) as pilot:
            await settled(pilot)
            for key in ("5", "H"):
                await pilot.press(key)
                await pilot.pause()
                text = screen_text(pilot)
                assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and "[/b]" in text


class watched:
    """A live session on a host that is there in name only: what it asks is counted."""

    def __init__(self, folder: Path) -> None:
        self._inner = attached(folder, "0")

    def __enter__(self) -> Any:
        live = self._inner.__enter__()
        live.session._servers.members.clear()
        host = SimpleNamespace(
            name="ct129",
            asked=0,
            watch=SimpleNamespace(state="connected", reason=""),
            leave=lambda: None,
            close=lambda: None,
        )

        def ask() -> bool:
            host.asked += 1
            return True

        host.ask_stacks = ask
        live.session._hosts.append(host)
        return live

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


@pytest.fixture
def _stalled_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    utc()
    with watched(tmp_path) as live:
        live.feed(*stalled(Clock()))
        assert live.session.wait_for(lambda store: store.n >= 10, 20)
        yield live.session


def test_a_server_that_is_alive_and_does_not_serve(snap_compare: Callable[..., bool], _stalled_session: Any) -> None:
    async def ready(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("5")
        await settled(pilot)
        pilot.app.clear_notifications()  # how long one stays is not what is shown here
        await pilot.pause()

    assert snap_compare(app_of(_stalled_session), terminal_size=(150, 44), run_before=ready)
