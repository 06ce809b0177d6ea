"""Sizes, themes, foreign text: nothing overlaps, nothing is cut, nothing is markup, every pane says why it is empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widget import Widget

from ddscope.diagnose import Evidence, Finding, RuledOut
from ddscope.model import Raw64, Tokens
from ddscope.tui.fitting import Part, fit
from ddscope.tui.foreign import cells
from ddscope.tui.screens import layout
from ddscope.tui.theme import INKS, THEME_NAMES, contrast_ratio, palette
from ddscope.tui.widgets.findings import Findings
from ddscope.tui.widgets.keys import KeyHint, KeyHints, fitting
from ddscope.tui.widgets.pane import LinePane
from ddscope.tui.widgets.tabs import Tab, TabStrip
from ddscope.tui.widgets.title import TitleView, title_parts
from ddscope.tui.widgets.tree import DraftTree
from tests.tui.shell_support import (
    HOSTILE,
    bench_of,
    living,
    replayed,
    screen_lines,
    screen_text,
    settled,
    shell_records,
    shown,
)

SIZES = [(80, 24), (99, 40), (120, 29), (100, 30), (120, 40), (140, 46), (200, 60)]


def visible_leaves(pilot: Pilot[None]) -> list[Widget]:
    bench = bench_of(pilot)
    names = ("title", "panes", "strip", "keys", *layout.UPPER, *layout.DECK)
    widgets = [bench.query_one(f"#{name}") for name in names]
    return [widget for widget in widgets if widget.region.area and widget.display]


@pytest.mark.parametrize("size", SIZES)
async def test_panes_fill_the_screen_and_none_overlaps_another(tmp_path: Path, size: tuple[int, int]) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=size) as pilot:
            widgets = visible_leaves(pilot)
            screen = pilot.app.screen.region
            for number, widget in enumerate(widgets):
                assert screen.contains_region(widget.region), widget
                for other in widgets[number + 1 :]:
                    assert not widget.region.overlaps(other.region), (widget, other)
            lines = screen_lines(pilot)
            assert [cells(line) for line in lines] == [size[0]] * size[1]


@pytest.mark.parametrize("size", SIZES)
async def test_title_tabs_and_keys_fit_every_width(tmp_path: Path, size: tuple[int, int]) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=size) as pilot:
            lines = screen_lines(pilot)
            assert lines[0].startswith((" ddscope ", " dd ")) and "■ END" in lines[0] and "step 5/5" in lines[0]
            assert "? keys" in lines[-1] and "^p palette" in lines[-1]
            assert "…" not in lines[-1]


async def test_at_80_by_24_every_pane_is_a_tab_and_tab_goes_round(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=(80, 24)) as pilot:
            bench = bench_of(pilot)
            assert bench.current == "tree"
            assert all(layout.NAMES[name].short in screen_lines(pilot)[1] for name in (*layout.UPPER, *layout.DECK))
            seen = []
            for _ in range(11):
                seen.append(bench.current)
                panes = [pane for pane in bench.query(LinePane) if pane.region.area]
                assert [pane.id for pane in panes] == [bench.current]
                assert panes[0].region.width == 80 or bench.current in layout.DECK
                assert pilot.app.focused is panes[0]
                await pilot.press("tab")
                await pilot.pause()
            assert seen == [*layout.UPPER, *layout.DECK] and bench.current == "tree"


async def test_a_screen_that_shrinks_and_grows_keeps_the_pane_with_the_keys(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, size=(140, 46)) as pilot:
            bench = bench_of(pilot)
            await pilot.press("2")
            await pilot.resize_terminal(80, 24)
            await pilot.pause()
            assert bench.single and bench.current == "findings"
            assert [pane.id for pane in bench.query(LinePane) if pane.region.area] == ["findings"]
            await pilot.resize_terminal(140, 46)
            await pilot.pause()
            assert len([pane for pane in bench.query(LinePane) if pane.region.area]) == 6


async def test_a_pane_is_maximised_and_put_back(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            bench.show_pane("tree")
            await pilot.press("z")
            await pilot.pause()
            assert [pane.id for pane in bench.query(LinePane) if pane.region.area] == ["tree"]
            assert bench.query_one(DraftTree).region.width == 140
            await pilot.press("escape")
            await pilot.pause()
            assert len([pane for pane in bench.query(LinePane) if pane.region.area]) == 6


async def test_tabs_hints_and_state_are_clicked(tmp_path: Path) -> None:
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            bench = bench_of(pilot)
            line = screen_lines(pilot)
            strip = bench.query_one("#strip", TabStrip)
            await pilot.click(strip, offset=(line[strip.region.y].index("Timing") + 1, 0))
            await pilot.pause()
            assert bench.current == "timing"
            keys = bench.query_one(KeyHints)
            await pilot.click(keys, offset=(screen_lines(pilot)[-1].index("maximise"), 0))
            await pilot.pause()
            assert bench.zoomed
            await pilot.press("z")
            await pilot.click("#title", offset=(screen_lines(pilot)[0].index("END"), 0))
            await pilot.pause()
            assert not bench.cursor.is_live, "the recording plays, or has been played to its end"


async def test_every_empty_pane_says_why(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        async with shown(live.session, size=(200, 60)) as pilot:
            bench = bench_of(pilot)
            for pane in bench.query(LinePane):
                if pane.id != "requests":
                    assert len(pane.empty_text()) > 20, pane.id
            live.state("idle")
            await settled(pilot)
            assert "Press i and type a prompt" in bench.query_one(DraftTree).empty_text()


# themes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", list(INKS))
def test_inks_can_be_read(theme: str) -> None:
    inks = INKS[theme]
    floor = 7.0 if theme == "ddscope-contrast" else 4.5
    for ink in ("text", "muted", "faint", "green", "blue", "amber", "red", "violet"):
        assert contrast_ratio(getattr(inks, ink), inks.background) >= floor, ink
        if ink not in ("faint",):
            assert contrast_ratio(getattr(inks, ink), inks.selection) >= 3.0, ink


def test_without_colour_meanings_still_differ() -> None:
    plain = palette("ddscope-dark", no_color=True)
    meanings = [plain.accepted, plain.root, plain.rejected, plain.cursor]
    assert len({str(style) for style in meanings}) == len(meanings)
    assert all(style.color is None and style.bgcolor is None for style in vars(plain).values())


@pytest.mark.parametrize("theme", list(THEME_NAMES))
async def test_every_theme_shows_the_same_words(tmp_path: Path, theme: str) -> None:
    with replayed(tmp_path) as session:
        async with shown(session, theme=theme) as pilot:
            assert pilot.app.theme == THEME_NAMES[theme]
            words = screen_text(pilot)
            await pilot.press("ctrl+t")
            await pilot.pause()
            assert pilot.app.theme != THEME_NAMES[theme]
            assert screen_text(pilot) == words


async def test_no_color_sends_no_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with replayed(tmp_path) as session:
        async with shown(session) as pilot:
            coloured = [
                segment
                for strip in pilot.app.screen._compositor.render_strips()
                for segment in strip
                if segment.style and any(c and not c.is_default for c in (segment.style.color, segment.style.bgcolor))
            ]
            assert coloured == []
            styles = {str(segment.style) for strip in pilot.app.screen._compositor.render_strips() for segment in strip}
            assert any("bold" in style for style in styles) and any("reverse" in style for style in styles)


# foreign text ---------------------------------------------------------------------------------------------------------

ODD = [
    "[/INST]",
    "[bold]",
    "[/",
    "\\[",
    "\x1b[2J",
    "\u202e",
    "漢字",
    "👩\u200d👩\u200d👧",
    "\x00",
    "",
    "\n",
    "[@click=app.quit]x[/]",
]


async def test_hostile_tokens_are_shown_and_steer_nothing(tmp_path: Path) -> None:
    records = shell_records()
    tokens = records[1]
    assert isinstance(tokens, Tokens)
    texts: list[str | Raw64] = [*ODD, HOSTILE, Raw64("/////w==")]
    records[1] = Tokens(src=tokens.src, seq=tokens.seq, t=tokens.t, mono=tokens.mono, ids=tokens.ids, text=texts[:14])
    with replayed(tmp_path, records) as session:
        async with shown(session, size=(200, 60)) as pilot:
            for _ in range(6):
                await pilot.press("left")
                text = screen_text(pilot)
                assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text
            await pilot.press("left_curly_bracket")
            await pilot.press("y")
            await pilot.pause()
            assert "[/INST]" in screen_text(pilot) or "⟨U+202E⟩" in screen_text(pilot)
            await pilot.press("escape", "slash", *"[/")
            await pilot.pause()
            assert bench_of(pilot).is_running


def test_findings_wrap_hostile_words_without_markup() -> None:
    finding = Finding(
        id="a.b",
        severity="critical",
        confidence=0.5,
        title=HOSTILE,
        detail=HOSTILE * 9,
        evidence=(Evidence("engine/0", 1, 7, HOSTILE), Evidence("x", 2, None, HOSTILE)),
        ruled_out=(RuledOut(HOSTILE, HOSTILE),),
        next=(HOSTILE,),
        rid=HOSTILE,
        kind=HOSTILE,
    )

    class Bare(Findings):
        palette = palette("ddscope-dark")

    pane = Bare()
    pane.findings = (finding,)
    for width in (20, 60, 118, 198):
        lines = [pane.entry_line(0, width), *pane.entry_detail(0, width)]
        for line in lines:
            assert "\x1b" not in line.text and "\n" not in line.text and "\u202e" not in line.text
    assert [line.target for line in pane.entry_detail(0, 118) if line.target is not None] == [7]


# fitting --------------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=40)
views = st.builds(
    TitleView,
    source=texts,
    model=texts,
    algorithm=st.sampled_from(["ddtree", "autoregressive", ""]),
    budget=st.one_of(st.none(), st.integers(0, 1024)),
    hardware=texts,
    motion=st.sampled_from(["live", "paused", "playing", "end", "waiting"]),
    pending=st.integers(0, 10**9),
    engine=st.sampled_from(["", "running", "paused", "break"]),
    reason=texts,
    tau=st.one_of(st.none(), st.floats(0, 100)),
    rate=st.one_of(st.none(), st.floats(0, 10_000)),
    dropped=st.one_of(st.none(), st.integers(0, 10**6)),
    step=st.one_of(st.none(), st.integers(0, 10**6)),
    last_step=st.integers(0, 10**6),
    indexed=st.one_of(st.none(), st.floats(0, 1)),
    clock=st.sampled_from(["", "14:02:11.418"]),
)


@given(views, st.integers(80, 220))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_the_title_never_needs_more_than_the_screen_and_always_says_the_motion(view: TitleView, width: int) -> None:
    parts = title_parts(view, palette("ddscope-dark"))
    forms = fit(parts, width)
    assert sum(part.size(form) for part, form in zip(parts, forms, strict=True)) <= width
    text = "".join(text for part, form in zip(parts, forms, strict=True) for text, _ in part.forms[form])
    words = {"live": "LIVE", "paused": "PAUSED", "playing": "PLAY", "end": "END", "waiting": "WAITING"}
    assert words[view.motion] in text
    assert "BREAK" in text or view.engine != "break"


def test_the_least_important_part_gives_way_first() -> None:
    style = palette("ddscope-dark").text
    parts = [Part(((("aaaa", style),), ((("a", style)),), ()), 5), Part(((("bbbb", style),), ()), 9)]
    assert fit(parts, 20) == [0, 0]
    assert fit(parts, 11) == [1, 0]
    assert fit(parts, 7) == [2, 0]
    assert fit(parts, 1) == [2, 1]


some_hints = st.builds(KeyHint, st.sampled_from(["←→", "Space", "^p"]), st.text("abc ", max_size=12), st.just("x"))


@given(st.lists(some_hints, min_size=2, max_size=20), st.integers(30, 200))
def test_hints_fit_and_the_last_two_stay(hints: list[KeyHint], width: int) -> None:
    kept = fitting(hints, width)
    assert kept[-2:] == hints[-2:]
    used = 1 + sum(cells(hint.keys) + 1 + cells(hint.word) for hint in kept) + 3 * (len(kept) - 1)
    assert used <= width or len(kept) == 2


@given(st.integers(12, 120), st.sampled_from([*layout.UPPER, *layout.DECK]))
def test_the_tab_that_shows_is_always_on_the_strip(width: int, active: str) -> None:
    strip = TabStrip()
    strip.set_reactive(TabStrip.framed, False)
    names = [*layout.UPPER, *layout.DECK]
    strip.set_reactive(TabStrip.tabs, tuple(Tab(n, layout.NAMES[n].name, layout.NAMES[n].short, "12") for n in names))
    strip.set_reactive(TabStrip.active, active)
    assert active in [tab.id for tab, _ in strip.labels(width)]
