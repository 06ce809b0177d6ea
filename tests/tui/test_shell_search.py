"""Search over text, tokens and journal: what is found, where it leads, and going on with n and N."""

from __future__ import annotations

from pathlib import Path

from ddscope.tui.search import Match, Search
from ddscope.tui.widgets.tree import DraftTree
from tests.tui.shell_support import bench_of, replayed, screen_text, shown, until


def found(search: Search) -> list[tuple[str, str | None, int | None]]:
    while search.work(1.0):
        pass
    return [(match.kind, match.rid, match.step) for match in search.matches]


async def test_text_is_found_over_token_borders_tokens_by_text_and_id_and_lines_in_any_case(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        session.wait_for(lambda store: store.settled, 30)
        store = session.store
        text = "".join(run.text for run in store.text("r1"))
        across = text[text.index(" in") :][:6]
        assert ("text", "r1", 0) in found(Search(store, across))
        assert {kind for kind, _, _ in found(Search(store, "[/INST]"))} == {"text", "token", "journal"}
        assert {kind for kind, _, _ in found(Search(store, "#12"))} == {"token"}
        assert [kind for kind, _, _ in found(Search(store, "libNVRTC"))] == []
        assert [kind for kind, _, _ in found(Search(store, "libnvrtc"))] == ["journal"]
        assert [kind for kind, _, _ in found(Search(store, "oserror"))] == ["journal"]
        assert found(Search(store, "")) == [] and found(Search(store, "nowhere")) == []


async def test_matches_come_in_the_order_of_the_trace_and_go_round(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        session.wait_for(lambda store: store.settled, 30)
        search = Search(session.store, "hash")
        found(search)
        records = [match.record for match in search.matches]
        assert records == sorted(records) and len(records) > 5
        assert search.after(records[-1]) == search.matches[0]
        assert search.before(records[0]) == search.matches[-1]
        assert isinstance(search.after(-1), Match)


async def test_a_match_is_picked_and_gone_to_and_n_goes_on(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("slash", *"table")
            await until(pilot, lambda: "found" in screen_text(pilot) and "looking" not in screen_text(pilot))
            await pilot.press("pageup", "pageup", "pageup", "enter")
            await pilot.pause()
            assert pilot.app.screen is bench and bench.search is not None
            first = bench.search.matches[0]
            assert bench.cursor.record == first.record
            await pilot.press("n")
            second = bench.search.after(first.record)
            assert second is not None and bench.cursor.record == second.record
            await pilot.press("N")
            assert bench.cursor.record == first.record
            await pilot.press("N")
            assert bench.cursor.record == bench.search.matches[-1].record


async def test_what_is_nowhere_is_said(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=(80, 24)) as pilot:
            await pilot.press("slash", *"zebra")
            await until(pilot, lambda: "Nothing in text, tokens or journal has 'zebra'." in screen_text(pilot))
            await pilot.press("enter", "escape")
            assert pilot.app.screen is bench_of(pilot)
            await pilot.press("n")
            assert pilot.app.screen is not bench_of(pilot), "without a search, n asks for one"


async def test_a_match_in_a_tree_shows_that_tree(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            search = Search(session.store, "#12")
            found(search)
            bench.search = search
            await pilot.press("home", "n")
            view = bench.query_one(DraftTree).view
            assert view is not None and 12 in [node.token for node in view.nodes]
