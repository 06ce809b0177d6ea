"""The journal: folds, filters, follows and stays, marks the time cursor, and reads any size from its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope.session.views import LogRow
from ddscope.tui.logfold import CHUNK, ERROR, Filter, JournalEntries, goes_on, innermost, level_of
from ddscope.tui.widgets.journal import Journal
from tests.tui.shell_support import HOSTILE, bench_of, living, log, replayed, screen_text, settled, shown, until

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/a.py", line 1, in f',
    "    g()",
    "ImportError: libavutil.so.59: cannot open shared object file",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/b.py", line 2, in h',
    "RuntimeError: Could not load libtorchcodec",
]


def row(number: int, text: str, *, pid: int | None = 1, src: str = "journal/a", priority: int | None = 6) -> LogRow:
    return LogRow(number, "log", number * 1000, src, "a", pid, priority, None, text, False)


def gap(number: int, src: str = "journal/a") -> LogRow:
    return LogRow(number, "gap", number * 1000, src, None, None, None, None, "7 records are missing", False)


def rows_of(texts: Sequence[str], **fields: int) -> list[LogRow]:
    return [row(number, text, **fields) for number, text in enumerate(texts)]  # type: ignore[arg-type]


def read_all(rows: Sequence[LogRow], wanted: Filter = Filter(), budget_s: float = 1.0) -> JournalEntries:  # noqa: B008
    entries = JournalEntries()
    entries.filter = wanted
    entries.set_rows(rows)
    while not entries.complete:
        entries.feed(budget_s)
    return entries


def folds(entries: JournalEntries) -> list[tuple[int, ...]]:
    return [entries.entry(number).rows for number in range(len(entries))]


def test_a_chained_traceback_is_one_entry_and_its_last_exception_is_its_title() -> None:
    rows = rows_of(["INFO before", *TRACEBACK, "INFO after", "  indented, but of nothing"])
    entries = read_all(rows)
    assert folds(entries) == [(0,), tuple(range(1, 11)), (11,), (12,)]
    assert innermost([r.text for r in rows[1:11]]) == "RuntimeError: Could not load libtorchcodec"


def test_processes_that_talk_at_once_are_told_apart() -> None:
    doubled = [line for line in TRACEBACK[:4] for _ in range(2)]
    rows = [row(number, text, pid=1 + number % 2) for number, text in enumerate(doubled)]
    assert folds(read_all(rows)) == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_a_line_after_the_exception_is_not_swallowed() -> None:
    rows = rows_of([*TRACEBACK[:4], "    still indented, but the exception was named", "INFO next"])
    assert folds(read_all(rows)) == [(0, 1, 2, 3), (4,), (5,)]


def test_gaps_are_entries_whatever_the_filter_of_text_and_priority() -> None:
    rows = [row(0, "INFO a"), gap(1), row(2, "ERROR b"), gap(3, "journal/other")]
    assert folds(read_all(rows, Filter(priority=ERROR, text="zzz"))) == [(1,), (3,)]
    assert folds(read_all(rows, Filter(source="journal/a"))) == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("text", "priority", "level"),
    [
        ("[2026-01-01 10:00:00 TP0] WARNING slow", 6, 4),
        ("ERROR: no", 6, 3),
        ("all is well", 6, 6),
        ("all is well", None, 6),
        ("INFO fine", 3, 3),
        ("DEBUG x", 6, 7),
        ("Traceback (most recent call last):", 6, 3),
        ("an INFORMATION is no level", 6, 6),
        ("x" * 90 + " ERROR far inside", 6, 6),
    ],
)
def test_severity_is_the_worse_of_journal_and_text(text: str, priority: int | None, level: int) -> None:
    assert level_of(row(0, text, priority=priority)) == level


@given(
    st.lists(st.sampled_from([*TRACEBACK, "INFO x", "  indented", "plain", "ValueError: y"]), max_size=60),
    st.integers(1, 17),
)
def test_every_row_is_in_exactly_one_entry_however_it_is_cut_into_chunks(texts: list[str], chunk: int) -> None:
    from ddscope.tui import logfold

    held, logfold.CHUNK = logfold.CHUNK, chunk
    try:
        entries = read_all(rows_of(texts), budget_s=0.0)
    finally:
        logfold.CHUNK = held
    assert sorted(number for rows in folds(entries) for number in rows) == list(range(len(texts)))
    heads = [rows[0] for rows in folds(entries)]
    assert heads == sorted(heads)


@given(st.lists(st.text(max_size=20), max_size=40), st.text(max_size=3), st.sampled_from([None, 3, 4, 6]))
def test_a_filter_keeps_what_it_says_and_nothing_else(texts: list[str], wanted: str, priority: int | None) -> None:
    rows = rows_of(texts)
    entries = read_all(rows, Filter(priority, None, wanted))
    shown_rows = {number for group in folds(entries) for number in group}
    for number, r in enumerate(rows):
        if Filter(priority, None, wanted).keeps(r):
            assert number in shown_rows
        elif number in shown_rows:
            assert goes_on(r.text), "only the rest of a traceback may come along"


def test_the_end_is_there_first_and_older_lines_come_in_front() -> None:
    rows = rows_of([f"line {n}" for n in range(5 * CHUNK)])
    entries = JournalEntries()
    entries.set_rows(rows)
    entries.feed(0.0)
    assert entries.entry(len(entries) - 1).rows == (5 * CHUNK - 1,)
    assert entries.looked_at < 5 * CHUNK
    while entries.looked_at < 5 * CHUNK:
        assert entries.feed(0.0).back == 0
    assert folds(entries) == [(n,) for n in range(5 * CHUNK)]


# on the screen ------------------------------------------------------------------------------------------------------


def texts(journal: Journal) -> list[str]:
    return [journal.content_at(y).text for y in range(journal.line_count())]


async def test_the_cursors_line_stands_between_before_and_after(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            await pilot.press("left_curly_bracket", "home")
            await pilot.press(*["right"] * 5)
            lines = texts(bench.journal)
            place = next(y for y, line in enumerate(lines) if "time cursor" in line)
            assert "── step 5 " in lines[place]
            before, after = (bench.journal.content_at(y).copy for y in (place - 1, place + 1))
            assert before.endswith("step 3") and after.endswith("step 7")


async def test_a_traceback_opens_to_all_its_lines_and_enter_goes_to_its_moment(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            journal = bench_of(pilot).journal
            await pilot.press("1")
            place = next(y for y, line in enumerate(texts(journal)) if "traceback, 6 lines" in line)
            assert "OSError: libnvrtc.so.12" in texts(journal)[place]
            journal.select(place)
            await pilot.press("enter")
            assert texts(journal)[place + 1].strip() == "Traceback (most recent call last):"
            assert journal.line_count() == len(journal.entries) + 1 + 6
            await pilot.press("enter")
            assert journal.line_count() == len(journal.entries) + 1
            journal.select(0)
            await pilot.press("enter")
            await pilot.pause()
            assert bench_of(pilot).cursor.record == journal.entries.record_of(0)


async def test_an_opened_traceback_stays_open_when_lines_come_and_the_cursor_moves(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.feed(*(log(live.clock, line, pid=7) for line in TRACEBACK[:4]))
        async with shown(live.session) as pilot:
            journal = bench_of(pilot).journal
            journal.set_open(0, True)
            live.feed(*(log(live.clock, f"INFO {n}") for n in range(5)))
            await until(pilot, lambda: len(journal.entries) == 6)
            assert [journal.content_at(y).text.strip() for y in range(1, 5)] == [line.strip() for line in TRACEBACK[:4]]


async def test_scrolling_up_stops_following_and_end_follows_again(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.feed(*(log(live.clock, f"INFO line {n}") for n in range(100)))
        async with shown(live.session) as pilot:
            bench = bench_of(pilot)
            journal = bench.journal
            await until(pilot, lambda: len(journal.entries) == 100)
            await until(pilot, lambda: "· following" in screen_text(pilot))
            await pilot.press("1", "pageup", "pageup")
            await until(pilot, lambda: "not following · End follows" in screen_text(pilot))
            top = journal.scroll_offset.y
            live.feed(*(log(live.clock, f"INFO later {n}") for n in range(20)))
            await until(pilot, lambda: len(journal.entries) == 120)
            assert journal.scroll_offset.y == top
            await pilot.press("end")
            await settled(pilot)
            assert "INFO  later 19" in screen_text(pilot)


async def test_the_wheel_stops_following_too(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.feed(*(log(live.clock, f"INFO line {n}") for n in range(100)))
        async with shown(live.session) as pilot:
            journal = bench_of(pilot).journal
            await until(pilot, lambda: len(journal.entries) == 100)
            journal.scroll_relative(y=-10, animate=False, immediate=True)
            await until(pilot, lambda: "not following" in journal.status())
            journal.scroll_end(animate=False, immediate=True)
            await until(pilot, lambda: "not following" not in journal.status())


async def test_sources_are_gone_through_one_by_one(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.feed(log(live.clock, "one", src="journal/a"), log(live.clock, "two", src="log/b"))
        async with shown(live.session) as pilot:
            journal = bench_of(pilot).journal
            await until(pilot, lambda: len(journal.entries) == 2)
            seen = []
            for _ in range(3):
                await pilot.press("U")
                seen.append((journal.entries.filter.source, len(journal.entries)))
            assert seen == [("journal/a", 1), ("log/b", 1), (None, 2)]


async def test_time_and_level_are_said_once_and_copied_whole(tmp_path: Path) -> None:
    line = "[2026-11-30 17:36:20 TP0] INFO INFORMED decision [2026-11-30 17:36:20] stays"
    with living(tmp_path) as live:
        live.feed(log(live.clock, line), log(live.clock, "[2026-11-30 17:36:20] ERROR: out of memory"))
        async with shown(live.session) as pilot:
            journal = bench_of(pilot).journal
            await until(pilot, lambda: len(journal.entries) == 2)
            first, second = (journal.content_at(y) for y in (0, 1))
            assert "INFO  TP0 INFORMED decision [2026-11-30 17:36:20] stays" in first.text
            assert "ERROR out of memory" in second.text
            assert first.copy == line


async def test_hostile_lines_are_shown_as_they_are_and_steer_nothing(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.feed(log(live.clock, HOSTILE), log(live.clock, "two\nlines"), log(live.clock, "x" * 500))
        async with shown(live.session, size=(200, 60)) as pilot:
            await until(pilot, lambda: len(bench_of(pilot).journal.entries) == 3)
            text = screen_text(pilot)
            assert "[/INST] [bold red]x[/] ␛[31mred␛[0m ⟨U+202E⟩␀ [@click=app.quit]q[/]" in text
            assert "\x1b" not in text and "\u202e" not in text
            assert "two  ▸ 2 lines" in text
            assert "xxx…" in text, "a long line is cut with a mark"


async def test_an_empty_journal_says_why_and_what_to_do(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            assert "--unit NAME" in screen_text(pilot)
