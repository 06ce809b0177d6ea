"""TitleBar: what is looked at, whether it moves, how it goes; the one line that is always there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.style import Style
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from ddscope.tui.fitting import Part, fit
from ddscope.tui.foreign import cells, cut, safe
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import strip_of
from ddscope.tui.widgets.pane import Piece

Motion = Literal["live", "paused", "playing", "end", "waiting"]


@dataclass(frozen=True)
class TitleView:
    """What the title says. None and "": not known, left out."""

    source: str = ""
    model: str = ""
    algorithm: str = ""
    budget: int | None = None
    auto: bool = False  # the engine chose the budget by itself
    hardware: str = ""
    attached: bool = False  # to servers that are not ours: which they are matters more than the model
    ranks: str = ""  # "2 ranks"; "" for one
    sampling: str = ""  # what a server leaves out; "" for nothing
    taps: str = ""  # what is wrong with the taps of a server
    motion: Motion = "waiting"
    pending: int = 0
    speed: float | None = None
    engine: str = ""  # running, paused, break, idle; "" where there is no engine to steer
    reason: str = ""  # why a breakpoint stopped it
    fault: str = ""
    tau: float | None = None
    rate: float | None = None
    dropped: int | None = None
    lost: bool = False  # something is missing and nobody knows how much
    step: int | None = None
    last_step: int | None = None
    clock: str = ""
    indexed: float | None = None  # share of the file; None when it is all there
    connection: str = ""
    ladder: str = ""  # the lowest rung of a host's ladder of liveness that fails, and what was seen


class TitleBar(Widget):
    """Draws a TitleView in one line of any width. A click on the state holds the view or lets it run."""

    DEFAULT_CSS = "TitleBar { height: 1; background: $panel; }"

    class Pressed(Message):
        """A part that stands for an action was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    view: reactive[TitleView] = reactive(TitleView())

    def render_line(self, y: int) -> Strip:
        """The whole title."""
        return strip_of(self._spans(self.size.width), self.size.width, self.rich_style)

    def _spans(self, width: int) -> list[Piece]:
        return [piece for piece, _ in self._placed(width)]

    def _placed(self, width: int) -> list[tuple[Piece, str]]:
        """Pieces with the action of each, spread so that the right part stands at the right edge."""
        palette = Palette.of(self.app)
        parts = title_parts(self.view, palette)
        forms = fit(parts, width)
        used = sum(part.size(form) for part, form in zip(parts, forms, strict=True))
        placed: list[tuple[Piece, str]] = []
        spread = False
        for part, form in zip(parts, forms, strict=True):
            pieces = part.forms[form]
            if not any(text for text, _ in pieces):
                continue
            gap = part.gap
            if part.right and not spread:
                gap += max(width - used, 0)
                spread = True
            placed.append(((" " * gap, Style()), ""))
            placed += [(piece, part.action) for piece in pieces]
        return placed

    def on_click(self, event: events.Click) -> None:
        """Do what the part under the mouse stands for."""
        x = 0
        for (text, _), action in self._placed(self.size.width):
            x += cells(text)
            if event.x < x:
                if action:
                    self.post_message(self.Pressed(action))
                return


def title_parts(view: TitleView, palette: Palette) -> list[Part]:
    """The parts of a title in their order; weights say what survives a narrow screen."""
    budget = "" if view.budget is None else f"auto {view.budget}" if view.auto else f"{view.budget}"
    algorithm = " ".join(filter(None, [view.algorithm, budget and f"budget {budget}"]))
    short = " ".join(filter(None, [view.algorithm, budget and f"b={budget}"]))
    parts = [
        Part((((" ddscope ", palette.badge),), ((" dd ", palette.badge),)), 90, gap=0),
        Part(_foreign(view.source, palette.muted, 28), 58 if view.attached else 10, gap=2),
        Part(_foreign(view.model, palette.muted, 44), 20, gap=2),
        Part((((safe(algorithm), palette.strong),), ((safe(short), palette.strong),), ()), 60, gap=2),
        Part(_foreign(view.hardware, palette.muted, 24), 12, gap=2),
        *([Part((((safe(view.ranks), palette.muted),), ()), 57, gap=2)] if view.ranks else []),
        _motion_part(view, palette),
    ]
    if view.engine in ("paused", "break"):
        parts.append(_engine_part(view, palette))
    if view.ladder:
        words = safe(view.ladder.replace("\n", " "))
        forms = tuple(((f" ✗ {cut(words, width)} ", palette.badge_bad),) for width in (60, 36, 18))
        parts.append(Part(forms, 90, gap=2, action="show_findings"))
    if view.fault:
        parts.append(
            Part(
                (((f" fault {safe(view.fault)} ", palette.badge_warn),), ((" fault ", palette.badge_warn),)), 75, gap=2
            )
        )
    if view.sampling:
        words = safe(view.sampling.replace("\n", " "))
        whole: tuple[Piece, ...] = (("sampling ", palette.muted), (cut(words, 32), palette.warn))
        parts.append(Part((whole, ((cut(words, 16), palette.warn),)), 73, gap=2, action="sampling"))
    if view.taps:
        parts.append(Part((((safe(view.taps), palette.bad),),), 74, gap=2, action="hooks"))
    if view.connection:
        parts.append(Part((((safe(view.connection), palette.bad),),), 74, gap=2))
    if view.indexed is not None:
        parts.append(_index_part(view.indexed, palette))
    if view.tau is not None:
        parts.append(Part(((("τ ", palette.muted), (f"{view.tau:.2f}", palette.strong)), ()), 70))
    if view.rate is not None:
        parts.append(Part((((f"{view.rate:.1f}", palette.strong), (" tok/s", palette.muted)), ()), 40))
    if view.dropped is not None:
        parts.append(_dropped_part(view, palette))
    if view.step is not None:
        of = f"/{view.last_step:,}" if view.last_step is not None else ""
        steps = (("step ", palette.muted), (f"{view.step:,}{of}", palette.text))
        parts.append(Part((steps, (("s ", palette.muted), (f"{view.step:,}{of}", palette.text))), 65, right=True))
    if view.clock:
        seconds = view.clock.split(".", 1)[0]
        parts.append(
            Part((((view.clock + " ", palette.muted),), ((seconds + " ", palette.muted),), ()), 30, gap=2, right=True)
        )
    return parts


def _foreign(text: str, ink: Style, width: int) -> tuple[tuple[Piece, ...], ...]:
    """Forms of a name that somebody else chose: whole up to a width, half, a third, nothing."""
    text = safe(text.replace("\n", " "))
    return *(((cut(text, width // part), ink),) for part in (1, 2, 3)), ()


def _motion_part(view: TitleView, palette: Palette) -> Part:
    ahead = f" +{view.pending:,}" if view.pending else ""
    speed = f" ×{view.speed:g}" if view.speed is not None else ""
    words: dict[str, tuple[str, Style]] = {
        "live": ("● LIVE", palette.accepted),
        "paused": (f"❚❚ PAUSED{ahead}", palette.bonus),
        "playing": (f"▶ PLAY{speed}", palette.accepted),
        "end": ("■ END", palette.root),
        "waiting": ("○ WAITING", palette.muted),
    }
    text, ink = words[view.motion]
    return Part((((text, ink),),), 95, action="hold")


def _engine_part(view: TitleView, palette: Palette) -> Part:
    if view.engine == "break":
        reason = safe(view.reason.replace("\n", " "))
        texts = [f" ■ BREAK {cut(reason, width)} " for width in (44, 18) if reason] + [" ■ BREAK "]
        return Part(tuple(((text, palette.badge_bad),) for text in texts), 85, gap=2, action="continue")
    texts = [" ■ engine paused ", " ■ engine "]
    return Part(tuple(((text, palette.badge_warn),) for text in texts), 80, gap=2, action="engine_pause")


def _index_part(share: float, palette: Palette) -> Part:
    cells_done = round(min(max(share, 0.0), 1.0) * 10)
    bar = "━" * cells_done
    rest = "─" * (10 - cells_done)
    percent = (f" {share:.0%}", palette.text)
    whole = (("indexing ", palette.muted), (bar, palette.info), (rest, palette.border), percent)
    return Part(
        (whole, ((bar, palette.info), (rest, palette.border), percent), (("index", palette.muted), percent)), 72
    )


def _dropped_part(view: TitleView, palette: Palette) -> Part:
    dropped = view.dropped or 0
    if dropped or view.lost:
        count = f"{dropped:,}" + ("+?" if view.lost else "")
        return Part(((("dropped ", palette.bad), (count, palette.bad)),), 78)
    return Part(((("dropped ", palette.muted), ("0", palette.text)), ()), 56 if view.attached else 25)
