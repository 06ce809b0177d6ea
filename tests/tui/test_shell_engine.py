"""Steering an engine: what keys send, what the screen says when the engine stops, refuses or fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from ddscope.model import Auto, Engine, Request, Step
from ddscope.tui.screens.breakpoints import Breakpoints
from ddscope.tui.screens.prompt import NewPrompt
from ddscope.tui.widgets.findings import Findings
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.tree import DraftTree
from tests.tracing import Clock, header
from tests.tui.shell_support import Live, bench_of, living, screen_lines, screen_text, settled, shown, steps_of, until


async def running(live: Live, pilot: Pilot[None], accepted: list[int] | None = None) -> None:
    """A request runs."""
    live.state("running", "r1", 0)
    live.feed(Request(**live.clock(), rid="r1", prompt_len=4, prompt_ids=[5, 1, 2, 9], sampling={"temperature": 0.0}))
    live.feed(*steps_of(live.clock, "r1", accepted or [2, 1, 3]))
    await until(pilot, lambda: live.session.store.totals().steps >= len(accepted or [2, 1, 3]))
    await settled(pilot)


@pytest.mark.parametrize(
    ("state", "key", "sent"),
    [
        ("running", "e", ("pause", {})),
        ("paused", "e", ("resume", {})),
        ("break", "e", ("resume", {})),
        ("running", "s", ("step", {})),
        ("break", "c", ("resume", {})),
        ("running", "v", ("check_now", {})),
        ("running", "X", ("abort", {"rid": "r1"})),
        ("running", "plus", ("set", {"budget": 7})),
        ("running", "minus", ("set", {"budget": 0})),
        ("running", "T", ("set", {"temperature": 0.7})),
        ("running", "a", ("set", {"algorithm": "dflash"})),
    ],
)
async def test_a_key_sends_its_command(tmp_path: Path, state: str, key: str, sent: tuple[str, dict[str, Any]]) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await running(live, pilot)
            live.state(state, "r1", 2, "accepted_zero" if state == "break" else None)
            await until(pilot, lambda: live.session.store.state().state == state)
            await settled(pilot)
            await pilot.press(key)
            assert live.engine.sent == [sent]


async def test_settings_go_round_from_what_was_asked_for_last(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await pilot.press("plus", "plus", "minus", "T", "T", "T", "a", "a", "a")
            values = [next(iter(args.values())) for _, args in live.engine.sent]
            assert values == [7, 15, 7, 0.7, 1.0, 0.0, "dflash", "autoregressive", "ddtree"]


async def test_continuing_an_engine_that_runs_is_said_and_not_sent(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await running(live, pilot)
            await pilot.press("c")
            assert live.engine.sent == []
            assert [note.message for note in pilot.app._notifications] == ["The engine is not stopped."]


async def test_a_prompt_is_typed_and_submitted_with_its_parameters_and_followed(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await running(live, pilot)
            await pilot.press("left", "i")
            await pilot.pause()
            assert isinstance(pilot.app.screen, NewPrompt)
            await pilot.press(
                *"Say [b]hi[", "ctrl+j", *"qed", "tab", "right", "tab", *"63", "tab", "tab", *"40", "enter"
            )
            assert live.engine.sent == [
                (
                    "submit",
                    {
                        "prompt": "Say [b]hi[\nqed",
                        "algorithm": "dflash",
                        "budget": 63,
                        "temperature": 0.0,
                        "max_new_tokens": 40,
                    },
                )
            ]
            assert bench_of(pilot).cursor.is_live


async def test_an_empty_prompt_and_bad_numbers_stay_in_the_dialog(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session, size=(80, 24)) as pilot:
            await pilot.press("i", "enter")
            await pilot.pause()
            assert "The prompt is empty" in screen_text(pilot)
            await pilot.press("x", "tab", "tab", *"9999", "enter")
            await pilot.pause()
            assert "budget takes 0 to 1,024 or auto, not 9999." in screen_text(pilot)
            assert live.engine.sent == []
            await pilot.press("escape")
            assert pilot.app.screen is bench_of(pilot)


async def test_the_settings_dialog_sends_only_what_changed(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await pilot.press("o", *"31", "tab", "tab", *"4", "enter")
            assert live.engine.sent == [("set", {"budget": 31}), ("self_check", {"every": 4})]
            live.engine.sent.clear()
            await pilot.press("o", "enter")
            assert live.engine.sent == []


async def test_auto_is_a_budget_in_the_dialogs_and_the_keys_go_on_from_what_it_chose(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await running(live, pilot)
            await pilot.press("o", *"auto", "enter")
            assert live.engine.sent == [("set", {"budget": "auto"})]
            (plain,) = (record for record in steps_of(live.clock, "r2", [2]) if isinstance(record, Step))
            assert plain.tree is not None
            tree = replace(plain.tree, budget=11, auto=Auto(most=63, emitted=2.64, us=61_900))
            live.feed(replace(plain, tree=tree))
            await until(pilot, lambda: live.session.store.totals().steps == 4)
            await settled(pilot)
            screen = screen_text(pilot)
            assert "budget auto 11 " in screen
            assert "2 of 9 accepted · 1.6 expected in 61.9 ms" in screen
            await pilot.press("plus")
            assert live.engine.sent[-1] == ("set", {"budget": 15})
            await pilot.press("i")
            await pilot.pause()
            await pilot.press("x", "tab", "tab", *"AUTO ", "enter")
            assert live.engine.sent[-1][1]["budget"] == "auto"


async def test_breakpoints_are_set_asked_for_and_removed_as_the_engine_confirms_them(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session, size=(80, 24)) as pilot:
            await pilot.press("b", "enter")
            assert live.engine.sent.pop() == ("break", {"kind": "accepted_zero"})
            dialog = pilot.app.screen
            assert isinstance(dialog, Breakpoints)
            assert not any(is_set for _, is_set in dialog.rows()), "only what the engine says is shown as set"
            live.fact(
                "breakpoints", [{"kind": "accepted_zero", "value": None}, {"kind": "token_text", "value": "[/b]"}]
            )
            await until(pilot, lambda: sum(is_set for _, is_set in dialog.rows()) == 2)
            await until(pilot, lambda: 'the text "[/b]"' in screen_text(pilot))
            await pilot.press("enter")
            assert live.engine.sent.pop() == ("unbreak", {"kind": "accepted_zero", "value": None})
            last = len(dialog.rows()) - 1
            assert dialog.rows()[last] == (("step", None), False)
            await pilot.press(*["down"] * last, "enter", *"soon", "enter")
            await pilot.pause()
            assert "A step takes a whole number, not 'soon'." in screen_text(pilot)
            await pilot.press(*["backspace"] * 4, *"25", "enter")
            assert live.engine.sent.pop() == ("break", {"kind": "step", "value": 25})
            await pilot.press("escape")
            assert pilot.app.screen is bench_of(pilot)


async def test_a_break_is_said_in_title_tree_and_keys_and_the_step_is_not_in_the_text(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await running(live, pilot, [2, 1, 0])
            live.state("break", "r1", 2, "no drafted token was accepted")
            bench = bench_of(pilot)
            await until(pilot, lambda: "BREAK" in screen_lines(pilot)[0])
            await settled(pilot)
            lines = screen_lines(pilot)
            assert "● LIVE" in lines[0] and "■ BREAK no drafted token was accepted" in lines[0]
            assert "c continue   s one step" in lines[-1]
            assert bench.query_one(DraftTree).stopped == "no drafted token was accepted"
            assert max(run.step for run in bench.query_one(GeneratedText).runs if run.step is not None) == 1
            assert any(
                note.message.startswith("Stopped before the commit of step 2") for note in pilot.app._notifications
            )
            live.state("running", "r1", 3)
            await until(pilot, lambda: "BREAK" not in screen_lines(pilot)[0])
            await settled(pilot)
            assert bench.query_one(DraftTree).stopped == ""
            assert max(run.step for run in bench.query_one(GeneratedText).runs if run.step is not None) == 2


async def test_a_break_while_the_view_is_held_is_said_and_does_not_move_it(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            await running(live, pilot)
            await pilot.press("left")
            shown_step = bench_of(pilot).cursor.step_record
            live.state("break", "r1", 2, "a NaN")
            await until(pilot, lambda: "■ BREAK a NaN" in screen_lines(pilot)[0])
            assert bench_of(pilot).cursor.step_record == shown_step
            assert any(note.message.endswith("End goes there.") for note in pilot.app._notifications)


async def test_a_refused_command_is_a_notification_and_a_finding(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            bench = bench_of(pilot)
            live.fact("engine.error", {"rid": None, "where": "control", "message": "budget takes 0 to 1,024 [/b]"})
            await until(pilot, lambda: bool(pilot.app._notifications))
            assert [note.message for note in pilot.app._notifications] == [
                "The engine refused: budget takes 0 to 1,024 [/b]"
            ]
            await until(pilot, lambda: bool(bench.query_one(Findings).findings))
            await pilot.press("2")
            await pilot.pause()
            assert "The engine refused a command: budget takes 0 to 1,024 [/b]" in screen_text(pilot)


async def test_a_grave_finding_is_said_once_while_live(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            live.fact("engine.error", {"rid": "r1", "where": "drafter", "message": "it broke"})
            await until(pilot, lambda: bool(pilot.app._notifications))
            live.fact("engine.error", {"rid": "r2", "where": "drafter", "message": "it broke"})
            await until(pilot, lambda: "2 times" in bench_of(pilot).query_one(Findings).findings[0].detail)
            assert [note.message for note in pilot.app._notifications] == [
                "The engine failed: it broke (2 shows the findings)"
            ]


async def test_an_engine_that_is_gone_is_said_in_one_sentence(tmp_path: Path) -> None:
    from ddscope.sources import SourceError

    def gone(command: str, args: dict[str, Any], by: str = "viewer") -> None:
        raise SourceError("The engine cannot be reached.")

    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            live.engine.send = gone  # type: ignore[method-assign]
            await pilot.press("e")
            assert [note.message for note in pilot.app._notifications] == ["The engine cannot be reached."]


async def test_a_deliberate_fault_is_in_the_title(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session) as pilot:
            live.fact("fault", {"name": "nan-norm", "what": "a NaN"})
            await running(live, pilot)
            assert " fault nan-norm " in screen_lines(pilot)[0]


async def test_parameters_begin_with_what_the_header_says(tmp_path: Path) -> None:
    from ddscope.tui.screens.steering import params_of

    made = header(Clock(), engine=Engine(name="e", version="1", algorithm="dflash", config={"budget": 7, "seed": "x"}))
    params = params_of(made, None)
    assert (params.algorithm, params.budget, params.max_new_tokens) == ("dflash", 7, 128)
    odd = params_of(
        header(Clock(), engine=Engine(name="e", version="1", algorithm="eagle", config={"budget": True})), None
    )
    assert (odd.algorithm, odd.budget) == ("ddtree", 15)


async def test_a_recording_takes_no_commands(tmp_path: Path) -> None:
    with living(tmp_path, control=False) as live:
        async with shown(live.session) as pilot:
            await pilot.press("e", "i", "plus")
            assert pilot.app.screen is bench_of(pilot) and not pilot.app._notifications
