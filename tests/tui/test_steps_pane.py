"""StepList and RequestList: what a row says, a million of them, following, keys, mouse, marks that need no colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from ddscope.session.rows import Rows
from ddscope.session.views import RequestRow, StepRow
from ddscope.tui.widgets.requests import RequestList
from ddscope.tui.widgets.steps import StepList, bar, milliseconds
from tests.tui.trees import Host, lines_of

REAL = (5, 2, 1, 2, 1, 2, 0, 2, 1, 3, 0, 1, 2, 1, 2, 1, 2, 2, 1, 0, 2, 2, 5, 2, 3, 1, 1, 3, 2, 1, 3, 2, 6)
"""Accepted tokens of the 33 steps of a real run."""


def row(step: int, accepted: int | None = 2, **over: Any) -> StepRow:
    anomalies = ("accepted_zero",) if accepted == 0 else ()
    emitted = None if accepted is None else accepted + 1
    made = StepRow(
        record=step * 2 + 10, rid="r1", step=step, accepted=accepted, emitted=emitted,
        nodes=31, budget=31, total_us=250_000, t=0, flags=0, anomalies=anomalies,
    )  # fmt: skip
    return replace(made, **over)


def real_rows() -> list[StepRow]:
    return [row(step, accepted) for step, accepted in enumerate(REAL)]


async def at(pilot: Pilot[None]) -> Any:
    await pilot.pause()
    return pilot.app.pane  # type: ignore[attr-defined]


async def test_a_row_tells_number_bar_bonus_ratio_and_time() -> None:
    app = Host(StepList(), rows=real_rows(), cursor=10)
    async with app.run_test(size=(40, 40)) as pilot:
        lines = lines_of(await at(pilot))
        assert lines[0].split() == ["step", "accepted", "of", "ms"]
        assert lines[1].startswith("▸   0 ██") and "◆" in lines[1] and lines[1].split()[-2:] == ["5/31", "250"]
        assert lines[1].count("█") > lines[2].count("█") > 0


async def test_nothing_accepted_is_said_in_a_word() -> None:
    async with Host(StepList(), rows=real_rows()).run_test(size=(40, 40)) as pilot:
        lines = lines_of(await at(pilot))
        assert "◆ none" in lines[7] and "0/31" in lines[7]
        assert sum("none" in line for line in lines) == REAL.count(0)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"anomalies": ("nonfinite",)}, "NaN"),
        ({"anomalies": ("truncated",), "emitted": 2}, "end"),
        ({"anomalies": ("tensor", "error")}, "shape error"),
        ({"accepted": None, "emitted": None}, "not told"),
        ({"accepted": 0, "nodes": 0, "budget": 0, "emitted": 1}, "plain"),
    ],
)
async def test_what_is_special_about_a_step_is_said_in_words(over: dict[str, Any], words: str) -> None:
    async with Host(StepList(), rows=[row(0, **over)]).run_test(size=(40, 10)) as pilot:
        assert words in lines_of(await at(pilot))[1]


async def test_a_text_that_ended_before_the_bonus_shows_none() -> None:
    async with Host(StepList(), rows=[row(0, 2, emitted=2)]).run_test(size=(40, 10)) as pilot:
        assert "◆" not in lines_of(await at(pilot))[1]


async def test_bookmarked_steps_carry_a_flag() -> None:
    async with Host(StepList(), rows=real_rows(), marked=frozenset({14})).run_test(size=(40, 40)) as pilot:
        lines = lines_of(await at(pilot))
        assert lines[3].startswith("⚑") and sum("⚑" in line for line in lines) == 1


@pytest.mark.parametrize("width", [12, 20, 24, 30, 60])
async def test_rows_fit_whatever_the_width(width: int) -> None:
    rows = [row(1_234_567, 1000, nodes=1024, budget=1024, total_us=98_765_432), *real_rows()]
    rows = [replace(each, record=place, step=place + 1_234_567) for place, each in enumerate(rows)]
    async with Host(StepList(), rows=rows).run_test(size=(width, 12)) as pilot:
        pane = await at(pilot)
        for y in range(pane.scrollable_size.height):
            assert pane.render_line(y).cell_length == pane.scrollable_size.width


class Counted(Sequence[int]):
    """Record numbers 10, 12, 14 …, of which only those asked for exist."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [10 + 2 * i for i in range(*place.indices(self.n))]
        if not 0 <= place < self.n:
            raise IndexError(place)
        return 10 + 2 * place


async def test_of_a_million_steps_only_the_rows_on_the_screen_are_read() -> None:
    read: list[int] = []

    def make(record: int) -> StepRow:
        read.append(record)
        return row((record - 10) // 2, REAL[record % 33])

    rows = Rows(Counted(1_000_000), 1_000_000, make)
    async with Host(StepList(), rows=rows, cursor=10 + 2 * 500_000).run_test(size=(40, 30)) as pilot:
        pane = await at(pilot)
        assert any(line.startswith("▸500,000") for line in lines_of(pane))
        assert len(set(read)) < 100
        pane.cursor = 10 + 2 * 999_999
        await pilot.pause()
        assert lines_of(pane)[-1].startswith("▸999,999")
        assert len(set(read)) < 200


async def test_the_newest_step_stays_on_the_screen_while_rows_come() -> None:
    rows = real_rows()
    async with Host(StepList(), rows=rows[:5], cursor=rows[4].record).run_test(size=(40, 12)) as pilot:
        pane = await at(pilot)
        for n in range(6, len(rows) + 1):
            pane.rows, pane.cursor = rows[:n], rows[n - 1].record
            await pilot.pause()
            assert any(line.startswith(f"▸{n - 1:>4}") for line in lines_of(pane))


async def test_a_paused_list_does_not_move_when_rows_come() -> None:
    rows = real_rows()
    async with Host(StepList(), rows=rows[:20], cursor=rows[3].record).run_test(size=(40, 12)) as pilot:
        pane = await at(pilot)
        before = lines_of(pane)
        pane.rows = rows
        await pilot.pause()
        assert lines_of(pane) == before


async def test_keys_and_clicks_ask_for_a_step() -> None:
    rows = real_rows()
    app = Host(StepList(), rows=rows, cursor=rows[3].record)
    async with app.run_test(size=(40, 12)) as pilot:
        pane = await at(pilot)
        await pilot.press("down", "k")
        await pilot.click(pane, offset=(5, 3))
        await pilot.pause()
        asked = [message.record for message in app.told if isinstance(message, StepList.StepSelected)]
        line = pane.line_at(2)
        assert asked == [rows[4].record, rows[2].record, rows[line].record]


async def test_a_list_without_steps_says_why() -> None:
    app = Host(StepList(), empty_reason="No steps yet: the hook is loaded in pid 4100, no request has run.")
    async with app.run_test(size=(40, 12)) as pilot:
        assert "no request has run." in " ".join(" ".join(lines_of(await at(pilot))).split())


def test_bars_are_exact_to_an_eighth_of_a_cell() -> None:
    assert bar(3, 1.0) == "███" and bar(3, 0.5) == "█▌" and bar(0, 2.0) == "" and bar(1, 0.125) == "▏"


def test_milliseconds_keep_a_decimal_only_where_it_says_something() -> None:
    assert [milliseconds(us) for us in (None, 0, 1_234, 9_949, 250_400, 12_345_678)] == [
        "?", "0.0", "1.2", "9.9", "250", "12,346",
    ]  # fmt: skip


# requests -----------------------------------------------------------------------------------------------------


def request(rid: str, preview: str, **over: Any) -> RequestRow:
    made = RequestRow(
        rid=rid, record=1, preview=preview, preview_of="prompt", prompt_len=9, cached=0, sampling={}, steps=33,
        emitted=96, tau=2.94, state="open", reason=None, t=0, last_t=0, last_step=1, anomalies=0, seconds=1.0, rate=9.0,
    )  # fmt: skip
    return replace(made, **over)


REQUESTS = [
    request("r1", "What is a hash table? [/INST]"),
    request("r2", "three \x1b[31mrivers", state="finished", reason="length", tau=3.41),
    request("chatcmpl-7fe1a9d0", "漢字かな" * 10, state="error", reason="abort", tau=None, anomalies=2),
]


async def test_a_request_tells_cursor_name_question_tau_and_state() -> None:
    app = Host(RequestList(), rows=REQUESTS, cursor="r1", severities={"r2": "critical", "r1": "warning"})
    async with app.run_test(size=(60, 10)) as pilot:
        lines = lines_of(await at(pilot))
        assert lines[1].startswith("▸ r1") and "What is a hash table? [/INST]" in lines[1] and "2.94" in lines[1]
        assert lines[1].rstrip().endswith("!")
        assert "three ␛[31mrivers" in lines[2] and lines[2].endswith("!!✓")
        assert lines[3].startswith("  chat…9d0") and lines[3].endswith("✗") and "…" in lines[3]


async def test_marks_of_a_request_are_words_in_its_tooltip() -> None:
    app = Host(RequestList(), rows=REQUESTS, cursor="r1", severities={"chatcmpl-7fe1a9d0": "critical"})
    async with app.run_test(size=(60, 10)) as pilot:
        pane = await at(pilot)
        words = pane.words(2)
        assert "Ended by an error (abort)" in words and "worst finding is critical" in words and "2 steps" in words
        await pilot.hover(pane, offset=(5, 3))
        await pilot.pause()
        assert "Finished (length)" in str(pane.tooltip)


async def test_choosing_a_request_tells_its_name() -> None:
    app = Host(RequestList(), rows=REQUESTS, cursor="r1")
    async with app.run_test(size=(60, 10)) as pilot:
        await at(pilot)
        await pilot.press("down")
        await pilot.pause()
        assert [m.rid for m in app.told if isinstance(m, RequestList.RequestSelected)] == ["r2"]


@pytest.mark.parametrize("width", [14, 24, 34, 80])
async def test_requests_fit_whatever_the_width(width: int) -> None:
    async with Host(RequestList(), rows=REQUESTS).run_test(size=(width, 10)) as pilot:
        pane = await at(pilot)
        assert all(
            pane.render_line(y).cell_length == pane.scrollable_size.width for y in range(pane.scrollable_size.height)
        )
