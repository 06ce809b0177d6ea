"""GeneratedText: the prompt and what the request has printed so far, each token coloured by how it came to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive

from ddscope.session.tokens import NEWLINE
from ddscope.session.views import TextRun
from ddscope.tui import foreign
from ddscope.tui.actions import DEFAULT_KEYS
from ddscope.tui.widgets.pane import Piece, ReadPane, over
from ddscope.tui.widgets.text_flow import Flow

MARGIN = 1  # cells left and right of the text
KIND_WORDS = {
    "prompt": "Prompt.",
    "root": "First token, chosen by the prefill.",
    "accepted": "Drafted and accepted",
    "bonus": "Bonus: the target's own token",
    "emitted": "Emitted; the source did not say which tokens were drafted",
    "gap": "No record holds these tokens.",
    "tail": "Bytes of a character that has only begun",
}


class GeneratedText(ReadPane):
    """Text of the request up to the time cursor. Tokens of the step at the cursor stand out and stay on the screen."""

    ALLOW_SELECT = False

    BINDINGS: ClassVar[list[BindingType]] = [b for b in DEFAULT_KEYS.bindings("list") if b.action != "open"]

    DEFAULT_CSS = """
    GeneratedText { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    class TokenHovered(Message):
        """The mouse is over text of `step` (record number `record`); both None when it left or the text has no step."""

        def __init__(self, step: int | None, record: int | None) -> None:
            super().__init__()
            self.step = step
            self.record = record

    class TokenSelected(Message):
        """Text of `step` (record number `record`) was clicked."""

        def __init__(self, step: int, record: int) -> None:
            super().__init__()
            self.step = step
            self.record = record

    runs: reactive[Sequence[TextRun]] = reactive((), always_update=True)
    cursor: reactive[int | None] = reactive(None)
    """Record number of the step under the time cursor."""

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._flow = Flow(0)
        self._hover: int | None = None

    # the value ------------------------------------------------------------------------------------------------

    def watch_runs(self) -> None:
        """More text, less of it, or another request's."""
        self._reflow()

    def watch_cursor(self) -> None:
        """The time cursor moved."""
        self._keep_in_view()
        self.refresh()

    def on_resize(self) -> None:
        """Another width, other lines."""
        self._reflow()

    def on_mount(self) -> None:
        """The border says what the colours are."""
        self.border_title = Content("Text")
        self.border_subtitle = Content.assemble(
            ("accepted", "$success"), " · ", ("bonus", "bold underline $warning"), " · ", ("prompt", "$text-muted")
        )

    def _reflow(self) -> None:
        if not self.is_mounted or not self.scrollable_size.width:
            return
        width = self.scrollable_size.width - 2 * MARGIN
        if self._flow.width != width:
            self._flow = Flow(width)
        self._flow.update(self.runs)
        self.set_extent(0, len(self._flow.lines))
        self._keep_in_view()
        self.refresh()

    def _keep_in_view(self) -> None:
        if not self.is_mounted or not self.scrollable_size.height:
            return
        lines = None if self.cursor is None else self._flow.lines_of(self.cursor)
        if lines is not None:
            self.show_line(lines[0])
            self.show_line(lines[1])
        elif self.cursor is None:
            self.show_line(max(len(self._flow.lines) - 1, 0))

    # drawing --------------------------------------------------------------------------------------------------

    def empty_text(self) -> str:
        """Why there is no text."""
        return "" if len(self.runs) else self.empty_reason or "No text yet: the request has not run a step."

    def draw_line(self, y: int) -> Iterable[Piece]:
        """One wrapped line."""
        lines = self._flow.lines
        if not 0 <= y < len(lines):
            return
        inks = self._inks()
        yield " " * MARGIN, Style.null()
        for bit in lines[y]:
            run = self._flow.run(bit.run)
            style = self.palette.faint if bit.text == NEWLINE else inks.get(run.kind, self.palette.text)
            yield bit.text, self._stressed(run, style)

    def _inks(self) -> dict[str, Style]:
        """Styles by how a token came to be. Without colour a bonus is underlined."""
        palette = self.palette
        plain = palette.bonus.color is None
        return {
            "prompt": palette.muted,
            "root": palette.root,
            "accepted": palette.good,
            "bonus": Style(underline=True) if plain else Style(color=palette.bonus.color),
            "gap": palette.bad,
            "tail": palette.muted,
        }

    def _stressed(self, run: TextRun, style: Style) -> Style:
        """The style where the run belongs to the step at the cursor, or to the one under the mouse."""
        if run.record is None or run.kind == "prompt":
            return style
        if run.record == self.cursor:
            return over(self.palette.cursor, style)
        return over(self.palette.selected, style) if run.record == self._hover else style

    # mouse ------------------------------------------------------------------------------------------------

    def _run_at(self, event: events.MouseEvent) -> TextRun | None:
        offset = event.get_content_offset(self)
        line = None if offset is None else self.line_at(offset.y)
        number = None if offset is None or line is None else self._flow.run_at(line, offset.x - MARGIN)
        return None if number is None else self._flow.run(number)

    def on_click(self, event: events.Click) -> None:
        """Tell whose text was clicked."""
        run = self._run_at(event)
        if run is not None and run.step is not None and run.record is not None:
            self.post_message(self.TokenSelected(run.step, run.record))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Tell whose text the mouse is over, and show its step's tokens."""
        self._hover_over(self._run_at(event))

    def on_leave(self) -> None:
        """The mouse left."""
        self._hover_over(None)

    def _hover_over(self, run: TextRun | None) -> None:
        record = run.record if run is not None and run.step is not None else None
        self.tooltip = None if run is None else foreign.content(self._words(run))
        if record != self._hover:
            self._hover = record
            self.post_message(self.TokenHovered(run.step if run is not None and record is not None else None, record))
            self.refresh()

    @staticmethod
    def _words(run: TextRun) -> str:
        words = KIND_WORDS[run.kind]
        return words if run.step is None or words.endswith(".") else f"{words}, step {run.step:,}."
