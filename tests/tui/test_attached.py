"""The workbench on servers that are not ours: what it says of them, what keys send, why a pane is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from ddscope.model import Engine, Fact, Header, Request, Step, Tokens
from ddscope.session import Session
from ddscope.tui.screens.ask import Ask
from ddscope.tui.screens.details import ServerDetails
from ddscope.tui.screens.sampling import SamplingSettings
from ddscope.tui.widgets.curve import DepthCurve
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.title import TitleBar
from ddscope.tui.widgets.tree import DraftTree
from tests.tracing import Clock, header
from tests.tui.shell_support import (
    HOSTILE,
    WORDS,
    FakeEngine,
    Live,
    app_of,
    bench_of,
    living,
    replayed,
    screen_text,
    settled,
    shown,
    steps_of,
    until,
    utc,
)

TAPS = [
    {
        "tap": "universal",
        "live": True,
        "target": "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
    },
    {"tap": "ngram", "live": False, "why": "no such function", "target": "sglang.srt.speculative.ngram_worker.x"},
    {"tap": "dflash", "live": False, "why": "not for EAGLE3"},
]


class FakeServers(FakeEngine):
    """Stands where `Servers` stands: as many sockets as it is told, nobody behind them."""

    gone_s = None

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.members = [FakeMember(Path(f"/run/ddscope/{name}.sock")) for name in names]


class FakeMember(FakeEngine):
    """One socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


class Attached(Live):
    """A live session on servers that a test feeds."""

    def __init__(self, session: Session, servers: FakeServers) -> None:
        super().__init__(session, servers)
        self.servers = servers

    def head(self, rank: int = 0, algorithm: str = "EAGLE3") -> None:
        """A rank's header."""
        made = header(Clock(), engine=Engine(name="sglang", version="0.5.23", algorithm=algorithm, config={"tp": rank}))
        common = self.clock(f"engine/{rank}")
        self.feed(Header(**{**{f: getattr(made, f) for f in made.__struct_fields__}, **common}))

    def hooks(self, rank: int = 0, taps: Any = TAPS, control: bool = True, **sampling: Any) -> None:
        """What the hooks of a rank tell when they are loaded."""
        src = f"engine/{rank}"
        told = {"every": 1, "rid": "", "max_bytes_per_s": 0, "control": control} | sampling
        self.feed(
            Fact(**self.clock(src), name="hooks.taps", value=taps),
            Fact(**self.clock(src), name="hooks.sampling", value=told),
            Fact(**self.clock(src), name="versions", value={"sglang": "0.5.23", "torch": "2.13.0"}),
        )

    def tokens(self) -> None:
        """Texts of all tokens."""
        self.feed(Tokens(**self.clock(), ids=list(range(1, len(WORDS) + 1)), text=list(WORDS)))

    def request(self, accepted: list[int]) -> None:
        """A request with whole trees."""
        self.feed(
            Request(**self.clock(), rid="r1", prompt_len=4, prompt_ids=[5, 1, 2, 9], sampling={"temperature": 0.0})
        )
        self.feed(*steps_of(self.clock, "r1", accepted))


@contextmanager
def attached(folder: Path, *names: str) -> Iterator[Attached]:
    """A live session on servers, running, with nothing in it."""
    session = Session.live(folder / "live.jsonl")
    servers = FakeServers(*(names or ("0",)))
    session._servers = servers  # type: ignore[assignment]
    session.add_source("servers", servers)
    with session:
        yield Attached(session, servers)


async def caught_up(live: Attached, pilot: Pilot[None], records: int) -> None:
    """Everything that was fed is on the screen."""
    await until(pilot, lambda: live.session.store.n >= records, "the records")
    await settled(pilot)


async def test_the_title_says_what_is_attached(tmp_path: Path) -> None:
    with attached(tmp_path, "0", "1") as live:
        live.head(0)
        live.head(1)
        live.hooks(0, every=4)
        live.hooks(1, every=4)
        live.tokens()
        live.request([2, 1, 3])
        async with shown(live.session, size=(200, 50)) as pilot:
            await settled(pilot)
            title = bench_of(pilot).query_one(TitleBar).view
            assert (title.source, title.algorithm, title.ranks, title.sampling) == (
                "sglang 0.5.23", "ddtree", "2 ranks", "every 4",
            )  # fmt: skip
            first = screen_text(pilot).splitlines()[0]
            assert all(
                words in first for words in ("sglang 0.5.23", "2 ranks", "sampling every 4", "LIVE", "dropped 0")
            )


async def test_before_any_step_the_algorithm_is_the_servers(tmp_path: Path) -> None:
    with attached(tmp_path) as live:
        live.head(0, algorithm="NGRAM")
        async with shown(live.session, size=(160, 50)) as pilot:
            await caught_up(live, pilot, 1)
            assert bench_of(pilot).query_one(TitleBar).view.algorithm == "NGRAM"


async def test_keys_of_our_own_engine_are_not_bound_and_the_server_is_never_paused(tmp_path: Path) -> None:
    with attached(tmp_path) as live:
        live.head()
        live.hooks()
        live.tokens()
        live.request([2, 1, 3, 2])
        async with shown(live.session) as pilot:
            await settled(pilot)
            await pilot.press("e", "s", "c", "i", "b", "plus", "minus", "T", "a", "o", "v", "X")
            assert pilot.app.screen is bench_of(pilot)
            await pilot.press("space", "left", "space")
            assert live.servers.sent == []
            assert not live.servers.members[0].sent
            await pilot.press("question_mark")
            await pilot.pause()
            assert "A server is never paused from here" in screen_text(pilot)


async def test_sampling_is_asked_for_and_only_what_changed_is_sent(tmp_path: Path) -> None:
    with attached(tmp_path) as live:
        live.head()
        live.hooks(every=1, rid="a", max_bytes_per_s=1000)
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 4)
            await pilot.press("S")
            await pilot.pause()
            assert isinstance(pilot.app.screen, SamplingSettings)
            await pilot.press(*"8", "tab", *"chat-", "tab", *"-1", "enter")
            await pilot.pause()
            assert "bytes a second takes 0 to" in screen_text(pilot)
            await pilot.press("backspace", "backspace", *"65536", "enter")
            assert live.servers.sent == [("sampling", {"every": 8, "rid": "chat-", "max_bytes_per_s": 65536})]
            live.servers.sent.clear()
            await pilot.press("S", "enter")
            assert live.servers.sent == []


async def test_flush_and_a_recording_on_the_host(tmp_path: Path) -> None:
    with attached(tmp_path, "0", "1") as live:
        for rank in (0, 1):
            live.head(rank)
            live.hooks(rank)
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 8)
            await pilot.press("F", "R")
            await pilot.pause()
            assert isinstance(pilot.app.screen, Ask)
            await pilot.press("ctrl+u", *"here.jsonl", "enter")
            await pilot.pause()
            assert "Give an absolute path that ends in" in screen_text(pilot)
            await pilot.press("ctrl+u", *"/tmp/x.jsonl", "enter")
            await pilot.pause()
            assert "Several ranks cannot write one file" in screen_text(pilot)
            await pilot.press("ctrl+u", *"/tmp/x-%r.jsonl", "enter")
            await pilot.press("R", "R", "ctrl+u", "enter")
            assert live.servers.sent == [
                ("flush", {}),
                ("record", {"path": "/tmp/x-%r.jsonl"}),
                ("record_stop", {}),
                ("record_stop", {}),
            ]


@pytest.mark.parametrize("key", ["S", "F", "R"])
async def test_without_control_a_key_says_how_to_turn_it_on(tmp_path: Path, key: str) -> None:
    with attached(tmp_path) as live:
        live.head()
        live.hooks(control=False)
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 4)
            await pilot.press(key)
            await pilot.pause()
            assert "DDSCOPE_CONTROL=1" in [note.message for note in pilot.app._notifications][-1]
            assert live.servers.sent == []
            assert pilot.app.screen is bench_of(pilot)


async def test_a_refusal_of_the_server_is_said(tmp_path: Path) -> None:
    with attached(tmp_path) as live:
        live.head()
        live.hooks()
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 4)
            live.fact("control.refused", {"command": "pause", "why": f"a production engine is never paused {HOSTILE}"})
            await until(pilot, lambda: len(pilot.app._notifications) > 0)
            message = [note.message for note in pilot.app._notifications][-1]
            assert message.startswith("The server refused: pause: a production engine is never paused [/INST]")


async def test_the_details_say_which_taps_are_live_and_why_others_are_not(tmp_path: Path) -> None:
    with attached(tmp_path, "0", "1") as live:
        for rank in (0, 1):
            live.head(rank)
            live.hooks(rank, control=False)
        live.fact("hook.fault", {"tap": "eagle", "error": HOSTILE})
        async with shown(live.session, size=(120, 50)) as pilot:
            await caught_up(live, pilot, 9)
            await pilot.press("H")
            await pilot.pause()
            assert isinstance(pilot.app.screen, ServerDetails)
            text = screen_text(pilot)
            for words in (
                "0.sock", "connected", "sglang 0.5.23", "✗ ngram", "missing: no such function", "✓ universal",
                "· dflash", "not for EAGLE3",
                "every step is recorded", "DDSCOPE_CONTROL=1", "torch 2.13.0", "engine/1", "tells counts only",
                "switched off", "eagle: [/INST]", "5 emitted = 5 received + 0 dropped",
            ):  # fmt: skip
                assert words in text, words
            live.servers.members[1].state = "lost"
            live.servers.members[1].reason = "The engine at /run/ddscope/1.sock closed the connection."
            await until(pilot, lambda: "closed the connection" in screen_text(pilot), "the lost connection")
            await pilot.press("escape")
            assert bench_of(pilot).query_one(TitleBar).view.taps == "a tap is off"


async def test_a_lost_server_of_several_and_all_of_them(tmp_path: Path) -> None:
    with attached(tmp_path, "0", "1") as live:
        live.head()
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 1)
            title = bench_of(pilot).query_one(TitleBar)
            live.servers.members[0].state = "lost"
            await until(pilot, lambda: title.view.connection == "1 of 2 servers lost")
            live.servers.members[1].state = "lost"
            await until(pilot, lambda: title.view.connection == "server lost")


@pytest.mark.parametrize(
    ("taps", "sampling", "said"),
    [
        (TAPS, {}, "no request has run a step since"),
        (TAPS, {"every": 0}, "sampling is off (every 0)"),
        (TAPS, {"rid": "chat-"}, "only requests whose id begins with 'chat-'"),
        ([TAPS[1]], {}, "No tap of this server is live: ngram: no such function."),
        ([], {}, "No tap of this server is live."),
        (HOSTILE, {"every": "x", "rid": 3}, "no request has run a step since"),
    ],
)
async def test_why_there_is_no_step(tmp_path: Path, taps: Any, sampling: dict[str, Any], said: str) -> None:
    with attached(tmp_path) as live:
        live.head()
        live.hooks(taps=taps, **sampling)
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 4)
            assert said in bench_of(pilot).query_one(DraftTree).empty_reason


async def test_why_there_is_no_step_before_the_server_is_reached_and_when_only_another_rank_is(tmp_path: Path) -> None:
    with attached(tmp_path, "1") as live:
        live.servers.members[0].state = "connecting"
        live.servers.members[0].reason = "No engine at /run/ddscope/1.sock: Connection refused."
        async with shown(live.session) as pilot:
            await settled(pilot)
            tree = bench_of(pilot).query_one(DraftTree)
            assert tree.empty_reason == "No engine at /run/ddscope/1.sock: Connection refused."
            live.servers.members[0].state = "connected"
            live.head(1)
            live.feed(Step(**live.clock("engine/1"), rid="r1", step=0, emitted=[1, 2]))
            await caught_up(live, pilot, 2)
            assert "Only engine/1 is attached, which tells counts" in tree.empty_reason
            assert live.session.store.totals().steps == 0


async def test_steps_without_a_tree_say_what_is_not_revealed_in_every_pane(tmp_path: Path) -> None:
    with attached(tmp_path) as live:
        live.head(algorithm="NGRAM")
        live.hooks()
        live.tokens()
        live.feed(Request(**live.clock(), rid="r1", prompt_len=4))
        for number in range(3):
            live.feed(Step(**live.clock(), rid="r1", step=number, algorithm="NGRAM", emitted=[1, 2, 3]))
        async with shown(live.session, size=(150, 46)) as pilot:
            await caught_up(live, pilot, 9)
            text = " ".join(screen_text(pilot).split())
            assert "the server's NGRAM tap" in text
            assert "3 emitted" in text
            bench = bench_of(pilot)
            assert "Missing: ngram (H says why)." in bench.query_one(DraftTree).bare_reason
            assert "The server's NGRAM tap does not tell which" in bench.query_one(DepthCurve).empty_reason
            for key in ("3", "4", "5", "6", "2", "1", "t", "p", "tab", "tab", "left", "up", "z", "z"):
                await pilot.press(key)
                await pilot.pause()
            assert len(bench.query_one(GeneratedText).runs) > 0


async def test_steps_of_a_redacted_stream_say_why_there_is_no_text(tmp_path: Path) -> None:
    with attached(tmp_path) as live:
        live.head()
        live.hooks()
        live.feed(Request(**live.clock(), rid="r1", prompt_len=4))
        for number in range(3):
            live.feed(Step(**live.clock(), rid="r1", step=number, path=[0, 1]))
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 8)
            bench = bench_of(pilot)
            text = bench.query_one(GeneratedText)
            assert len(text.runs) == 0 or "missing" in "".join(run.text for run in text.runs)
            assert "DDSCOPE_REDACT=ids" in text.empty_reason


async def test_other_ranks_repeat_steps_and_nothing_counts_twice(tmp_path: Path) -> None:
    with attached(tmp_path, "0", "1") as live:
        live.head(0)
        live.head(1)
        live.tokens()
        repeated = [
            Step(**live.clock("engine/1"), rid="r1", step=n, emitted=[14] * count) for n, count in enumerate((3, 2, 4))
        ]
        live.feed(*repeated)  # before the first rank's
        live.request([2, 1, 3])
        async with shown(live.session) as pilot:
            await caught_up(live, pilot, 10)
            row = live.session.store.requests()[0]
            assert (row.steps, row.emitted) == (3, 9)
            assert len(bench_of(pilot).query_one(DraftTree).view.nodes) > 1  # type: ignore[union-attr]
            assert any(f.id == "hang.rank_divergence" for f in bench_of(pilot).diagnosing.findings)


async def test_a_recording_of_a_server_shows_its_taps_too(tmp_path: Path) -> None:
    clock = Clock()
    records = [header(clock), Fact(**clock(), name="hooks.taps", value=TAPS)]
    with replayed(tmp_path, records) as session:
        async with shown(session) as pilot:
            await pilot.press("S", "F", "R")
            assert pilot.app.screen is bench_of(pilot)
            await pilot.press("H")
            await pilot.pause()
            assert "missing: no such function" in screen_text(pilot)


async def test_our_own_engine_has_no_keys_of_a_server(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await pilot.press("S", "F", "R")
            assert live.engine.sent == []
            await pilot.press("H")
            await pilot.pause()
            assert "not told: these records do not come from hooks in a server" in screen_text(pilot)


# pictures ---------------------------------------------------------------------------------------------------------


def seen(records: int, *keys: str) -> Callable[[Pilot[None]], object]:
    """Wait until so many records are on the screen, then press keys."""

    async def run(pilot: Pilot[None]) -> None:
        bench = bench_of(pilot)
        await until(pilot, lambda: bench.store.n >= records, "the records")
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await pilot.pause()

    return run


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attached]:
    """Two ranks with a tap that is missing, and a request whose steps have no tree."""
    monkeypatch.setenv("TZ", "UTC")
    utc()
    with attached(tmp_path, "4100-0", "4101-1") as live:
        for rank in (0, 1):
            live.head(rank, algorithm="NGRAM")
            live.hooks(rank, every=4, control=False)
        live.tokens()
        live.feed(Request(**live.clock(), rid="r1", prompt_len=4, prompt_ids=[5, 1, 2, 9]))
        for number in range(5):
            live.feed(Step(**live.clock(), rid="r1", step=number, algorithm="NGRAM", emitted=[1, 2, 3]))
        yield live


def test_a_server_whose_steps_have_no_tree(snap_compare: Callable[..., bool], two_ranks: Attached) -> None:
    assert snap_compare(app_of(two_ranks.session), terminal_size=(140, 40), run_before=seen(15))


def test_the_details_of_a_server(snap_compare: Callable[..., bool], two_ranks: Attached) -> None:
    assert snap_compare(app_of(two_ranks.session), terminal_size=(100, 32), run_before=seen(15, "H"))
