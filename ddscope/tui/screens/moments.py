"""Values of a moment that panes and title are given and that no single view of the store is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ddscope.session import EngineState, RequestRow
from ddscope.tui.playback import Playback
from ddscope.tui.screens.bench import Bench
from ddscope.tui.widgets.journal import Moment
from ddscope.tui.widgets.title import Motion


class Joined(Sequence[RequestRow]):
    """Rows of a moment, and behind them those of another that come later. Rows are made when they are looked at."""

    def __init__(self, then: Sequence[RequestRow], now: Sequence[RequestRow]) -> None:
        self._then, self._now = then, now

    def __len__(self) -> int:
        return max(len(self._then), len(self._now))

    @overload
    def __getitem__(self, place: int) -> RequestRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[RequestRow]: ...
    def __getitem__(self, place: int | slice) -> RequestRow | list[RequestRow]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        place += len(self) if place < 0 else 0
        return self._then[place] if place < len(self._then) else self._now[place]


class Moments(Bench):
    """Read from store, cursor and session; nothing is changed here."""

    playback: Playback
    horizon: int | None = None
    """While a live view is held: the newest record that was known then; lists show nothing later."""

    def request_rows(self) -> Sequence[RequestRow]:
        """Requests as of the moment; those that come later are listed as they are known now, so one can go there."""
        then = self.store.requests(self.cursor.at)
        now = self.store.requests(self.horizon)
        return then if len(then) >= len(now) else Joined(then, now)

    def stopped(self, state: EngineState, rid: str, step: int) -> str:
        """Why the step that is shown is held before its commit."""
        held = state.state == "break" and state.step == step and state.rid in (rid, None)
        return state.reason or "a breakpoint" if held else ""

    def moment(self) -> Moment | None:
        """Where the journal draws the time cursor: at the step while it follows, else where a person went."""
        record = self.cursor.step_record
        if record is None:
            return None
        row = self.store.step_row(record)
        here = self.cursor.record
        at = record if self.cursor.is_live or here is None else max(here, record)
        return Moment(at, self.store.trace.index.t[at], f"step {row.step:,}")

    def motion(self) -> Motion:
        """How time goes on the screen."""
        if self.playback.playing:
            return "playing"
        if not self.cursor.is_live:
            return "paused"
        return "live" if self.session.is_live else "end"

    def connection(self) -> str:
        """What is wrong with the way to the engine, in a word or two."""
        away = [host.name for host in self.session.hosts if host.watch is not None and host.watch.state == "lost"]
        if away:
            return f"{', '.join(away)} lost"
        engines = self.session.engines
        lost = sum(status.state == "lost" for status in engines)
        if lost:
            what = "server" if self.session.attached else "engine"
            return f"{what} lost" if lost == len(engines) else f"{lost} of {len(engines)} servers lost"
        return "recording stopped" if self.session.trouble else ""
