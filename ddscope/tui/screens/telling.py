"""What the workbench says by itself: refused commands, breaks while the view is held, grave findings while live."""

from __future__ import annotations

from ddscope.session import EngineState
from ddscope.tui.diagnosing import Diagnosing
from ddscope.tui.screens.bench import Bench
from ddscope.tui.screens.breakpoints import Breakpoints


class Telling(Bench):
    """Each thing is said once; it stays among the findings, in the title or in its dialog."""

    diagnosing: Diagnosing
    _engine_was = EngineState.unknown()
    _told: frozenset[tuple[str, str]] = frozenset()

    def tell_engine(self) -> None:
        """Say what the engine says and the screen may not show: refusals, failures, breaks while the view is held."""
        for error in self.diagnosing.new_errors():
            if self.session.is_live and error.where == "control":  # others are told as findings
                who = "server" if self.session.attached else "engine"
                self.say(f"The {who} refused: {error.message}", "error")
        if not self.session.is_live:
            return
        state, was = self.store.state(), self._engine_was
        self._engine_was = state
        if state.state == "break" and (was.state, was.record) != ("break", state.record):
            where = "" if self.cursor.is_live else f" {self.keys.short('go_live')} goes there."
            self.say(f"Stopped before the commit of step {state.step}: {state.reason}.{where}", "warning")
        if state.breakpoints != was.breakpoints:
            for screen in self.app.screen_stack:
                if isinstance(screen, Breakpoints):
                    screen.show(state.breakpoints)

    def tell_findings(self) -> None:
        """While live, a new grave finding is said once, wherever a person looks."""
        for finding in self.diagnosing.findings:
            name = (finding.id, finding.kind)
            if finding.severity in ("high", "critical") and name not in self._told:
                self._told |= {name}
                self.say(f"{finding.title} ({self.keys.short('show_findings')} shows the findings)", "error")
