"""DepthCurve: P(accepted ≥ depth) of one request against the whole run, small for the node pane and large for a tab."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content
from textual.reactive import reactive

from ddscope.session.views import Curve
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.pane import LinePane, Piece
from ddscope.tui.widgets.steps import EIGHTHS

TITLE = "P(accepted ≥ depth)"


def share_bar(p: float, width: int) -> str:
    """A bar of p · width cells, in eighths; a hair where p is small but not nothing."""
    eighths = round(p * width * 8)
    if p > 0:
        eighths = max(eighths, 1)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def small_curve(curve: Curve, width: int, palette: Palette) -> list[list[Piece]]:
    """A title and a line a depth: depth, bar, share. Empty without steps."""
    if not curve.n:
        return []
    room = max(width - 9, 4)
    title = TITLE if width >= len(TITLE) else "P(≥ depth)"
    steps = f"  {curve.n:,} step{'s' if curve.n != 1 else ''}"
    lines: list[list[Piece]] = [[(title, palette.muted)]]
    if len(title) + len(steps) <= width:
        lines[0].append((steps, palette.faint))
    for depth, p in enumerate(curve.p, 1):
        lines.append([(f"{depth:>2} ", palette.muted), (share_bar(p, room), palette.good), (f" {p:.2f}", palette.text)])
    if not curve.at_least:
        lines.append([("Nothing was accepted yet.", palette.bad)])
    return lines


class DepthCurve(LinePane):
    """How deep the tree is accepted. `compact` is the form without the run and without counts."""

    ALLOW_SELECT = False

    DEFAULT_CSS = """
    DepthCurve { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    curve: reactive[Curve] = reactive(Curve.empty())
    """Of the request under the time cursor."""
    run: reactive[Curve] = reactive(Curve.empty())
    """Of the whole run; empty to leave the comparison out."""
    compact: reactive[bool] = reactive(False)

    def watch_curve(self) -> None:
        """Another step, another curve."""
        self._changed()

    def watch_run(self) -> None:
        """More steps in the run."""
        self._changed()

    def watch_compact(self) -> None:
        """Small or large."""
        self._changed()

    def on_mount(self) -> None:
        """The border says what it is."""
        self.border_title = Content(TITLE)
        self._changed()

    def on_resize(self) -> None:
        """Bars fill the width."""
        self._changed()

    def _changed(self) -> None:
        if self.is_mounted and self.scrollable_size.width:
            self.set_extent(0, len(self._lines()))
            self.refresh()

    def empty_text(self) -> str:
        """Why there is no curve."""
        if self.curve.n:
            return ""
        return self.empty_reason or "No curve yet: no step has told how many tokens were accepted."

    def draw_line(self, y: int) -> Iterable[Piece]:
        """One line."""
        lines = self._lines()
        return lines[y] if y < len(lines) else ()

    def _lines(self) -> list[list[Piece]]:
        width = self.scrollable_size.width
        if self.compact:
            return small_curve(self.curve, width, self.palette)
        return large_curve(self.curve, self.run, width, self.palette) if self.curve.n else []


def large_curve(curve: Curve, run: Curve, width: int, palette: Palette) -> list[list[Piece]]:
    """Two bars a depth (request and run), how many steps that were, and the share of those that came so far."""
    compared = run.n > 0
    room = max(width - 40, 8)
    mean = curve.mean_accepted or 0.0
    head: list[Piece] = [
        ("█ ", palette.good),
        (f"this request, {curve.n:,} steps, mean accepted {mean:.2f}", palette.text),
    ]
    if compared:
        head += [
            ("   ━ ", palette.info),
            (f"whole run, {run.n:,} steps, {run.mean_accepted or 0.0:.2f}", palette.muted),
        ]
    names = f"{'depth':>5}  {'P(≥ depth)':>10}  {'steps':>11}  {'of reached':>10}"
    lines: list[list[Piece]] = [head, [(names, palette.muted)]]
    depths = max(len(curve.at_least), len(run.at_least) if compared else 0)
    for depth in range(1, depths + 1):
        lines.append(_large_row(curve, depth, room, palette))
        if compared:
            p = run.p[depth - 1] if depth <= len(run.at_least) else 0.0
            line = f"{'run':>5}  {p:>10.2f}{'':>25}"
            lines.append([(line, palette.muted), ("  ", palette.text), ("━" * round(p * room), palette.info)])
    if not depths:
        lines.append([("No drafted token was accepted in any step.", palette.bad)])
    return lines


def _large_row(curve: Curve, depth: int, room: int, palette: Palette) -> list[Piece]:
    count = curve.at_least[depth - 1] if depth <= len(curve.at_least) else 0
    before = curve.n if depth == 1 else curve.at_least[depth - 2] if depth - 1 <= len(curve.at_least) else 0
    p = count / curve.n
    reached = f"{count / before:.2f}" if before else "-"
    return [
        (f"{depth:>5}  ", palette.strong),
        (f"{p:>10.2f}", palette.text),
        (f"  {f'{count:,}/{curve.n:,}':>11}  {reached:>10}  ", palette.muted),
        (share_bar(p, room), palette.good),
    ]
