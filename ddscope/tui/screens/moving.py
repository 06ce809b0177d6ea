"""Actions that move the time cursor: steps, anomalies, requests, going to a number, playing, searching."""

from __future__ import annotations

from ddscope.tui.playback import Playback
from ddscope.tui.screens.ask import Ask
from ddscope.tui.screens.bench import Bench
from ddscope.tui.screens.search import SearchBox
from ddscope.tui.search import Match, Search


class MovingActions(Bench):
    """Everything here ends in `moved`, so that all panes follow."""

    playback: Playback
    search: Search | None = None

    def halt(self) -> None:
        """A person moves by hand: playback ends."""
        self.playback.stop()

    def action_step_back(self) -> None:
        """One step back; LIVE becomes PAUSED."""
        self.halt()
        if not self.cursor.step(-1):
            self.say("This is the first step of the request.")
        self.moved()

    def action_step_forward(self) -> None:
        """One step forward."""
        self.halt()
        if not self.cursor.step(+1) and not self.cursor.is_live:
            self.say("This is the newest step of the request.")
        self.moved()

    def action_first_step(self) -> None:
        """To the first step of the request."""
        self.halt()
        self.cursor.first()
        self.moved()

    def action_go_live(self) -> None:
        """To the newest step, and follow."""
        self.halt()
        self.cursor.pick(None)
        self.cursor.live()
        self.follow_journal()
        self.moved()

    def follow_journal(self) -> None:
        """Let the journal follow its end again."""
        raise NotImplementedError

    def action_hold(self) -> None:
        """Live: hold the view or let it run. A finished trace: play or stop."""
        if self.session.is_live:
            self.cursor.toggle()
        elif self.playback.playing:
            self.playback.stop()
        else:
            self.play()
        self.moved()

    def play_all(self) -> None:
        """Play from the first step of the trace."""
        first = next((rid for rid in self._rids() if self.store.step_records(rid)), None)
        if first is not None:
            self.cursor.to(self.store.step_records(first)[0])
        self.play()

    def play(self) -> None:
        """Play from here; from the request's first step when it stands at the end of the trace."""
        records = self.store.step_records(self.cursor.rid) if self.cursor.rid is not None else ()
        if not records:
            self.say("There are no steps to play.")
            return
        if self.cursor.step_record == records[-1] and self._next_rid(1) is None:
            self.cursor.first()
        self.cursor.pause()
        self.playback.start(self.clock())

    def advance(self) -> bool:
        """Show the step that is due. True when the cursor moved."""
        rid = self.cursor.rid
        if not self.playback.playing or rid is None:
            return False
        rows = self.store.steps(rid)
        here = self.cursor.step_record
        place = (rows.place_of(here) or 0) if here is not None else 0
        goal = self.playback.due(rows, place, self.clock())
        if goal != place:
            return self.cursor.to(rows.record(goal))
        if place + 1 < len(rows):
            return False
        following = self._next_rid(1)
        if following is None:
            self.playback.stop()
            return True
        self.playback.jumped(self.clock())
        return self.cursor.to(self.store.step_records(following)[0])

    def action_slower(self) -> None:
        """Play slower."""
        self.say(f"Playing at {self.playback.change_speed(-1):g} times the recorded speed.")
        self.moved()

    def action_faster(self) -> None:
        """Play faster."""
        self.say(f"Playing at {self.playback.change_speed(+1):g} times the recorded speed.")
        self.moved()

    def _anomaly(self, direction: int) -> None:
        self.halt()
        if not (self.cursor.anomaly(direction) or self.cursor.anomaly(direction, everywhere=True)):
            where = "after" if direction > 0 else "before"
            self.say(f"No anomaly {where} this moment: no step that accepts nothing, no NaN, no bad shape, no error.")
        self.moved()

    def action_previous_anomaly(self) -> None:
        """To the anomaly before, in this request first, then in any."""
        self._anomaly(-1)

    def action_next_anomaly(self) -> None:
        """To the anomaly after, in this request first, then in any."""
        self._anomaly(+1)

    def _rids(self) -> list[str]:
        """Requests in their order, without making a row of each."""
        rows = self.store.requests()
        named = (self.store.rid_of(rows.record(place)) for place in range(len(rows)))
        return [rid for rid in named if rid is not None]

    def _next_rid(self, by: int) -> str | None:
        """The neighbour of the request that has steps; None at the ends."""
        rids = self._rids()
        place = rids.index(self.cursor.rid) + by if self.cursor.rid in rids else 0
        while 0 <= place < len(rids):
            if self.store.step_records(rids[place]):
                return rids[place]
            place += by
        return None

    def _neighbour(self, by: int) -> None:
        self.halt()
        rid = self._next_rid(by)
        if rid is None:
            self.say(f"This is the {'last' if by > 0 else 'first'} request.")
        else:
            self.cursor.pick(rid)
        self.moved()

    def action_previous_request(self) -> None:
        """To the request before."""
        self._neighbour(-1)

    def action_next_request(self) -> None:
        """To the request after."""
        self._neighbour(+1)

    # going to a number ------------------------------------------------------------------------------------------

    def action_goto(self) -> None:
        """Ask for a step number of this request."""
        rid = self.cursor.rid
        rows = self.store.steps(rid or "")
        if rid is None or not len(rows):
            self.say("There are no steps to go to yet.")
            return
        said = f"Request {rid} has the steps {rows[0].step:,} to {rows[len(rows) - 1].step:,}."

        def check(text: str) -> str:
            number = _number(text)
            return said if number is None or self._step_record(rid, number) is None else ""

        def go(text: str | None) -> None:
            number = _number(text or "")
            record = self._step_record(rid, number) if number is not None else None
            if record is not None:
                self.halt()
                self.cursor.to(record)
                self.moved()

        self.app.push_screen(Ask("Go to step", said=said, check=check), go)

    def _step_record(self, rid: str, number: int) -> int | None:
        """The record of a step by its number. Steps are in order, a gap may leave numbers out."""
        rows = self.store.steps(rid)
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) // 2
            if rows[middle].step < number:
                low = middle + 1
            else:
                high = middle
        return rows.record(low) if low < len(rows) and rows[low].step == number else None

    # searching --------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Open the search box with the last query."""

        def picked(answer: tuple[Search, Match] | None) -> None:
            if answer is not None:
                self.search, match = answer
                self.show_match(match)

        query = self.search.query if self.search is not None else ""
        self.app.push_screen(SearchBox(lambda text: Search(self.store, text), self.cursor.record, query), picked)

    def show_match(self, match: Match) -> None:
        """Be where something was found."""
        self.halt()
        self.cursor.to(match.record)
        self.moved()

    def _another(self, direction: int) -> None:
        search = self.search
        if search is None:
            self.action_search()
            return
        search.work(0.1)  # the rest is searched between frames
        here = self.cursor.record if self.cursor.record is not None else -1
        match = search.after(here) if direction > 0 else search.before(here)
        if match is None:
            self.say(f"Nothing in text, tokens or journal has {search.query!r}.")
        else:
            self.show_match(match)

    def action_next_match(self) -> None:
        """To the match after this moment, round to the first."""
        self._another(+1)

    def action_previous_match(self) -> None:
        """To the match before this moment, round to the last."""
        self._another(-1)


def _number(text: str) -> int | None:
    cleaned = text.strip().replace(",", "").removeprefix("step").strip()
    return int(cleaned) if cleaned.isdecimal() and len(cleaned) < 12 else None
