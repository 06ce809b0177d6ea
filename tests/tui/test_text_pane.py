"""GeneratedText: wrapping that grows, every cell knows its step, hostile text stays text, no colour is needed."""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from ddscope.session.tokens import NEWLINE
from ddscope.session.views import TextRun
from ddscope.tui import foreign
from ddscope.tui.widgets.text import GeneratedText
from ddscope.tui.widgets.text_flow import Flow
from tests.tui.tree_hostile import texts
from tests.tui.trees import Host, lines_of, real_trees


def run(text: str, kind: Literal["prompt", "root", "accepted", "bonus", "gap"], step: int | None = None) -> TextRun:
    return TextRun(text, kind, step, None if step is None else step + 100)


def real_runs() -> list[TextRun]:
    """Prompt, first token, and the accepted and bonus tokens of the real steps."""
    runs = [run("What is a hash table?\n", "prompt"), run("A", "root")]
    for step, view in sorted(real_trees().items()):
        accepted = "".join(view.nodes[i].text.replace("␣", " ") for i in view.path[1:])
        runs += [run(accepted, "accepted", step)] if accepted else []
        runs.append(run(view.bonus.text.replace("␣", " ") if view.bonus else "", "bonus", step))
    return runs


def flowed(runs: list[TextRun], width: int) -> list[list[Any]]:
    flow = Flow(width)
    flow.update(runs)
    return [list(line) for line in flow.lines]


runs_of_any_text = st.lists(texts.map(lambda text: text[:200]), max_size=12).map(
    lambda parts: [TextRun(part, "accepted", n, n) for n, part in enumerate(parts)]
)


@settings(deadline=None, max_examples=150)
@given(runs_of_any_text, st.integers(4, 40))
def test_wrapping_keeps_every_character_in_order_with_its_run(runs: list[TextRun], width: int) -> None:
    lines = flowed(runs, width)
    drawn: dict[int, str] = {}
    order = []
    for line in lines:
        x = 0
        for bit in line:
            assert bit.x == x
            x += foreign.cells(bit.text)
            drawn[bit.run] = drawn.get(bit.run, "") + bit.text
            order.append((bit.run, bit.start))
        hangs = bool(line) and line[-1].text == NEWLINE
        assert x <= width + hangs
    assert order == sorted(order)
    for number, each in enumerate(runs):
        want = foreign.safe(each.text).replace("\n", NEWLINE)
        assert "".join(drawn.get(number, "").split(" ")) == "".join(want.split(" "))


@settings(deadline=None, max_examples=150)
@given(runs_of_any_text, st.lists(st.integers(0, 12), max_size=6), st.integers(4, 30))
def test_growing_and_going_back_in_time_give_the_lines_of_a_fresh_text(
    runs: list[TextRun], stops: list[int], width: int
) -> None:
    flow = Flow(width)
    for stop in stops:
        flow.update(runs[:stop])
        assert [list(line) for line in flow.lines] == flowed(runs[:stop], width)


def test_the_end_of_a_text_may_change_when_a_split_character_completes() -> None:
    flow = Flow(20)
    head = [TextRun("a word ", "accepted", n, n) for n in range(20)]
    flow.update([*head, TextRun("⟨e2⟩", "tail", None, None)])
    after = [*head, TextRun("€", "accepted", 20, 20), TextRun("!", "bonus", 20, 20)]
    flow.update(after)
    assert [list(line) for line in flow.lines] == flowed(after, 20)


def test_another_request_is_another_text() -> None:
    flow = Flow(20)
    flow.update([TextRun("one", "prompt", None, 1), TextRun("two", "accepted", 0, 2)])
    other = [TextRun("one", "prompt", None, 7), TextRun("two", "accepted", 0, 9)]
    flow.update(other)
    assert flow.run(1).record == 9


async def at(pilot: Pilot[None]) -> GeneratedText:
    await pilot.pause()
    pane = pilot.app.query_one(GeneratedText)
    assert isinstance(pane, GeneratedText)
    return pane


async def test_the_text_reads_as_it_was_printed() -> None:
    async with Host(GeneratedText(), runs=real_runs()).run_test(size=(60, 12)) as pilot:
        lines = lines_of(await at(pilot))
        assert lines[0] == f" What is a hash table?{NEWLINE}"
        assert lines[1].startswith(" A hash table is a data structure used to store")


async def test_tokens_of_the_step_at_the_cursor_stand_out_and_stay_on_the_screen() -> None:
    runs = [run("word " * 40, "accepted", step) for step in range(50)]
    async with Host(GeneratedText(), runs=runs, cursor=149).run_test(size=(60, 12)) as pilot:
        pane = await at(pilot)
        marked = pane.palette.cursor.bgcolor
        pane.cursor = 103
        await pilot.pause()
        shown = [
            segment
            for y in range(pane.scrollable_size.height)
            for segment in pane.render_line(y)
            if segment.style is not None and segment.style.bgcolor == marked
        ]
        assert shown and all("word" in "".join(s.text for s in shown) for _ in shown)


async def test_without_a_cursor_the_end_of_the_text_is_shown() -> None:
    runs = [run(f"word{n} ", "accepted", n) for n in range(400)]
    async with Host(GeneratedText(), runs=runs).run_test(size=(40, 8)) as pilot:
        assert "word399" in lines_of(await at(pilot))[-1]


async def test_hovering_and_clicking_tell_the_step_of_a_token() -> None:
    runs = [run("Hello", "prompt"), run(" one", "accepted", 0), run(" two", "bonus", 0), run(" three", "bonus", 1)]
    app = Host(GeneratedText(), runs=runs)
    async with app.run_test(size=(60, 8)) as pilot:
        pane = await at(pilot)
        line = lines_of(pane)[0]
        await pilot.hover(pane, offset=(line.index("three") + 1, 1))
        await pilot.pause()
        assert "Bonus: the target's own token, step 1." in str(pane.tooltip)
        await pilot.click(pane, offset=(line.index("one") + 1, 1))
        await pilot.hover(pane, offset=(line.index("Hello") + 1, 1))
        await pilot.click(pane, offset=(line.index("Hello") + 1, 1))
        await pilot.pause()
        hovered = [(m.step, m.record) for m in app.told if isinstance(m, GeneratedText.TokenHovered)]
        clicked = [(m.step, m.record) for m in app.told if isinstance(m, GeneratedText.TokenSelected)]
        assert hovered[0] == (1, 101) and (None, None) in hovered
        assert clicked == [(0, 100)]


async def test_without_colour_a_bonus_is_underlined_and_the_prompt_dim() -> None:
    runs = [run("prompt\n", "prompt"), run("drafted", "accepted", 0), run("own", "bonus", 0)]
    async with Host(GeneratedText(), no_color=True, runs=runs).run_test(size=(60, 8)) as pilot:
        pane = await at(pilot)
        styles = {s.text.strip(): s.style for y in (0, 1) for s in pane.render_line(y) if s.style is not None}
        assert styles["own"].underline and not styles["drafted"].underline and styles["prompt"].dim


async def test_markup_and_escapes_in_a_text_are_drawn_as_they_are() -> None:
    runs = [run("[bold]no[/bold] [/INST] \x1b[31m \u202e", "accepted", 0)]
    async with Host(GeneratedText(), runs=runs).run_test(size=(60, 8)) as pilot:
        assert lines_of(await at(pilot))[0] == " [bold]no[/bold] [/INST] ␛[31m ⟨U+202E⟩"


async def test_a_request_without_text_says_why() -> None:
    async with Host(GeneratedText(), empty_reason="Prompt redacted.").run_test(size=(60, 8)) as pilot:
        assert any("Prompt redacted." in line for line in lines_of(await at(pilot)))
