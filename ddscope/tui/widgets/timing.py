"""StageTimes: where the time of a step goes, this step against the whole run."""

from __future__ import annotations

from ddscope.session.views import StageTime, Timing
from ddscope.tui.clock import duration
from ddscope.tui.foreign import pad, safe
from ddscope.tui.widgets.lines import Line, LineView
from ddscope.tui.widgets.pane import Piece

NAME, TIME = 8, 9  # cells
EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """A horizontal bar of up to `width` cells in steps of an eighth; what is not nothing shows at least that."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


class StageTimes(LineView):
    """One row a stage: this step's time as a bar, then its share and mean over the run."""

    SELECTS = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.timing = Timing.empty()

    def show(self, timing: Timing) -> None:
        """Times of the step at the cursor and sums up to it."""
        if timing != self.timing:
            self.timing = timing
            self.content_changed()

    def entry_count(self) -> int:
        """A heading, the stages and the total; nothing when no step gave a time."""
        return len(self.timing.stages) + 2 if self.timing.total_steps or any(s.steps for s in self.timing.stages) else 0

    def entry_line(self, entry: int, width: int) -> Line:
        """Heading, stage or total."""
        timing = self.timing
        if entry == 0:
            return self._heading(width)
        if entry <= len(timing.stages):
            return self._stage(timing.stages[entry - 1], width)
        return self._total(width)

    def _bars(self, width: int) -> tuple[int, int]:
        """Cells for the two bars."""
        rest = max(width - NAME - 2 * TIME - 8 - 4, 8)
        return rest // 2, rest - rest // 2

    def _heading(self, width: int) -> Line:
        timing = self.timing
        left, right = self._bars(width)
        palette = self.palette
        step = "no step" if timing.step is None else f"step {timing.step:,}"
        counted = (
            f"{timing.counted:,} steps"
            if timing.counted == timing.steps
            else f"{timing.counted:,} of {timing.steps:,} steps"
        )
        domain = {"host": " · host clock", "cuda_event": " · CUDA events"}.get(timing.domain or "", "")
        return Line(
            (
                (pad(" stage", NAME), palette.faint),
                (pad(step, TIME + left + 2), palette.root),
                (f"share of {counted}{domain}"[: TIME + right + 8], palette.faint),
            )
        )

    def _stage(self, stage: StageTime, width: int) -> Line:
        palette = self.palette
        left, right = self._bars(width)
        whole = self.timing.total_step_us or sum(s.step_us or 0 for s in self.timing.stages)
        step: list[Piece]
        if stage.step_us is None:
            step = [(pad("     –", TIME), palette.faint), (" " * (left + 2), palette.faint)]
        else:
            share = stage.step_us / whole if whole else 0.0
            step = [
                (f"{duration(stage.step_us):>{TIME - 1}} ", palette.text),
                (pad(bar(share, left), left + 2), palette.good),
            ]
        run: list[Piece] = [("not told by this source", palette.faint)]
        if stage.share is not None and stage.mean_us is not None:
            run = [
                (f"{stage.share:>6.1%} ", palette.text),
                (pad(bar(stage.share, right), right), palette.info),
                (f" {duration(stage.mean_us):>{TIME - 1}}", palette.muted),
            ]
        return Line(((pad(" " + safe(stage.name), NAME), palette.muted), *step, *run), target=self.timing.record)

    def _total(self, width: int) -> Line:
        timing, palette = self.timing, self.palette
        left, right = self._bars(width)
        step = "–" if timing.total_step_us is None else duration(timing.total_step_us)
        mean = duration(timing.total_sum_us / timing.total_steps) if timing.total_steps else "–"
        return Line(
            (
                (pad(" total", NAME), palette.strong),
                (f"{step:>{TIME - 1}} ", palette.strong),
                (" " * (left + 2), palette.faint),
                (pad("  mean of a step", right + 7), palette.faint),
                (f" {mean:>{TIME - 1}}", palette.strong),
            ),
            target=timing.record,
        )
