"""`ddscope attach --host ct129` without a terminal: its options, session and workbench, read as a person reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from ddscope.cli.parser import build_parser
from ddscope.cli.servers import open_session
from ddscope.diagnose import Diagnosis, Finding
from ddscope.session import Session
from ddscope.tui.app import DdscopeApp
from tests.integration.host.container import NAME
from tests.tui.shell_support import bench_of, screen_lines, screen_text, until


class Screen:
    """The workbench of a running app."""

    def __init__(self, pilot: Pilot[None], session: Session) -> None:
        self.pilot = pilot
        self.session = session

    @property
    def headline(self) -> str:
        """The title."""
        return " ".join(screen_lines(self.pilot)[0].split())

    @property
    def text(self) -> str:
        """All of it, on one line."""
        return " ".join(screen_text(self.pilot).split())

    @property
    def found(self) -> dict[str, Finding]:
        """Findings by id, ranked."""
        return {finding.id: finding for finding in bench_of(self.pilot).diagnosing.findings}

    async def opened(self, id: str, words: str) -> str:
        """The findings pane with one of them open, once it says so."""
        place = list(self.found).index(id)
        await self.pilot.press("2", "z", *["up"] * len(self.found), *["down"] * place, "enter")
        await until(self.pilot, lambda: words in self.text, f"{words!r} of {id}")
        text = self.text
        await self.pilot.press("enter", "z", "end")  # closed, and live as before
        return text


@asynccontextmanager
async def attached(out: Path, *options: str) -> AsyncIterator[Screen]:
    """The workbench, live. DDSCOPE_SSH must say how the host is reached."""
    args, diagnosis = build_parser().parse_args(["attach", "--host", NAME, *options]), Diagnosis()
    with open_session(args, out, diagnosis, lambda _: None) as session:
        app = DdscopeApp(session, diagnosis=diagnosis)
        async with app.run_test(size=(170, 50)) as pilot:
            await until(pilot, lambda: len(pilot.app.screen_stack) > 1, "the workbench")
            yield Screen(pilot, session)
