"""Breakpoints of the engine: every kind with whether it is set, as the engine confirms it; Enter sets and removes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from textual.widget import Widget
from textual.widgets import Static

from ddscope.tui.foreign import safe
from ddscope.tui.screens.ask import Ask
from ddscope.tui.screens.dialog import Dialog, whole_number
from ddscope.tui.screens.pick import PickLines
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import Line, LineView

Point = tuple[str, Any]
Control = Callable[[str, dict[str, Any]], None]

KINDS = {
    "accepted_zero": "a step accepts nothing",
    "nonfinite": "a NaN or an infinite logit is seen",
    "token_flood": "one token fills the output",
    "shape_mismatch": "a tensor has a shape that does not fit",
    "token_text": "a step is about to commit this text",
    "step": "a request reaches this step",
}
VALUED = ("token_text", "step")
MAX_STEP = 2**31


def point_words(point: Point) -> str:
    """A breakpoint as a person says it."""
    kind, value = point
    if kind == "step":
        return f"step {value}"
    if kind == "token_text":
        return f'the text "{value}" is about to be committed'
    return KINDS.get(kind, kind)


class Breakpoints(Dialog[None]):
    """Stays open while points are set and removed. What is shown as set is what the engine said, not what was asked."""

    DEFAULT_CSS = """
    Breakpoints #lines { background: $surface; margin-bottom: 1; }
    """
    TITLE_TEXT = "Breakpoints"
    FOOT = "Enter sets or removes · Esc closes"

    def __init__(self, points: tuple[Point, ...], control: Control) -> None:
        super().__init__()
        self._points = points
        self._control = control
        self._list = PickLines(self._draw, "")

    def show(self, points: tuple[Point, ...]) -> None:
        """What the engine says is set now."""
        if points != self._points:
            self._points = points
            self._list.redraw()

    def rows(self) -> list[tuple[Point, bool]]:
        """A row a point: (kind, value) and whether it is set. Value None of a valued kind: ask for one."""
        single = [((kind, None), any(k == kind for k, _ in self._points)) for kind in KINDS if kind not in VALUED]
        valued = [(point, True) for point in self._points if point[0] in VALUED]
        return [*single, *valued, *((((kind, None), False)) for kind in VALUED)]

    def fields(self) -> Iterable[Widget]:
        """What a breakpoint does, then the list."""
        yield Static(
            "The engine stops before the commit: nothing of that step is in the text yet, its tree can be looked at.",
            classes="said",
            markup=False,
        )
        yield Static("")
        yield self._list

    def _draw(self, palette: Palette, _width: int) -> list[Line]:
        lines = []
        for (kind, value), is_set in self.rows():
            adds = kind in VALUED and not is_set
            sign = ("■ ", palette.bad) if is_set else ("+ " if adds else "□ ", palette.muted)
            words = KINDS.get(kind, kind) if adds or kind not in VALUED else point_words((kind, value))
            words += " …" if adds else ""
            ink = palette.strong if is_set else palette.text
            lines.append(Line((sign, (f"{safe(kind):<16}", ink), (safe(words), palette.muted))))
        return lines

    def on_mount(self) -> None:
        """The list has the keys."""
        self._list.focus()

    def on_line_view_picked(self, event: LineView.Picked) -> None:
        """Set or remove the row's point; ask for the value where the kind needs one."""
        event.stop()
        (kind, value), is_set = self.rows()[event.entry]
        if is_set:
            self._control("unbreak", {"kind": kind, "value": value})
        elif kind in VALUED:
            self._ask(kind)
        else:
            self._control("break", {"kind": kind})

    def _ask(self, kind: str) -> None:
        def answered(text: str | None) -> None:
            if text is not None:
                value = int(text.replace(",", "")) if kind == "step" else text
                self._control("break", {"kind": kind, "value": value})

        self.app.push_screen(Ask(f"Stop when {KINDS[kind]}", check=_step if kind == "step" else _some), answered)


def _step(text: str) -> str:
    try:
        whole_number(text, "A step", 0, MAX_STEP)
    except ValueError as problem:
        return str(problem)
    return ""


def _some(text: str) -> str:
    return "" if text else "The text is empty: type what the token contains."
