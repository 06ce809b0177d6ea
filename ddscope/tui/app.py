"""The Textual app: themes, the user's keymap, the palette, one workbench. Everything else is on the screens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from ddscope.diagnose import Diagnosis
from ddscope.session import Session
from ddscope.tui.actions import DEFAULT_KEYS, Action, Keys, available
from ddscope.tui.failing import keep_failure
from ddscope.tui.screens.bench import rebind
from ddscope.tui.screens.workbench import Workbench
from ddscope.tui.theme import THEME_NAMES, themes

TITLE_CELLS = 58  # the longest title fits, so that keys stand in a column


class Actions(Provider):
    """Every action that the session can do, with its keys, in the palette."""

    def _offered(self) -> list[Action]:
        bench = self._bench()
        if bench is None:
            return []
        return [action for action in available(bench.offers) if bench.target_of(action) is not None]

    def _bench(self) -> Workbench | None:
        return self.screen if isinstance(self.screen, Workbench) else None

    def _run(self, action: Action) -> Callable[[], object]:
        app, bench = self.app, self._bench()

        def run() -> object:
            return app.run_action(action.id, bench.target_of(action) if bench is not None else app)

        return run

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action in self._offered():
            yield DiscoveryHit(Content(self._line(action)), self._run(action), text=action.title)

    async def search(self, query: str) -> Hits:
        """Those whose title, name or keys fit."""
        matcher = self.matcher(query)
        for action in self._offered():
            line = self._line(action)
            score = max(matcher.match(line), matcher.match(action.id))
            if score > 0:
                yield Hit(score, matcher.highlight(line), self._run(action), text=action.title)

    def _line(self, action: Action) -> str:
        assert isinstance(self.app, DdscopeApp)
        keys = self.app.keys.text(action)
        return f"{action.title:<{TITLE_CELLS}}  {keys}"


class DdscopeApp(App[None], inherit_bindings=False):
    """One session on the screen.

    theme: dark, light or high-contrast. speed: play a trace from the start at this many times its recorded speed.
    notices: sentences to show once the screen is up.
    """

    TITLE = "ddscope"
    CSS = """
    CommandPalette > Vertical { background: $surface; width: 90; max-width: 96%; }
    CommandPalette #--input, CommandPalette #--results, CommandPalette OptionList { background: $surface; }
    CommandPalette SearchIcon { display: none; }
    Toast { background: $panel; padding: 0 1; }
    """
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {Actions}
    BINDINGS: ClassVar[list[BindingType]] = [*DEFAULT_KEYS.bindings("app")]

    def __init__(
        self,
        session: Session,
        *,
        keys: Keys = DEFAULT_KEYS,
        theme: str | None = None,
        speed: float | None = None,
        diagnosis: Diagnosis | None = None,
        clock: Callable[[], float] = time.monotonic,
        notices: tuple[str, ...] = (),
    ) -> None:
        # Without colours there is nothing to convert: the terminal's own foreground and background are kept.
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self.keys = keys
        self.session = session
        for made in themes():
            self.register_theme(made)
        self.theme = THEME_NAMES[theme or "dark"]
        self.animation_level = "none"  # a debugger shows where it is, not how it gets there
        rebind(self, keys, "app")
        self._bench = Workbench(session, keys, clock, diagnosis=diagnosis, speed=speed, notices=notices)

    def on_mount(self) -> None:
        """The workbench."""
        self.push_screen(self._bench)

    def _fatal_error(self) -> None:
        """Textual would print a traceback with the values of every variable; a person needs a sentence."""
        error = self._exception if self._exception is not None else RuntimeError("unknown")
        self._exit_renderables.append(Text(keep_failure(error, self.session.path), no_wrap=True, overflow="ignore"))
        self._close_messages_no_wait()
