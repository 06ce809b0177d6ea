"""Actions that steer the engine: pause, one step, continue, prompts, settings, breakpoints, self-checks.

A command is sent and nothing else: what the screen shows of the engine is what the engine said in its records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddscope.model import Header, Request
from ddscope.session import EngineState
from ddscope.trace import TraceError
from ddscope.tui.screens.bench import Bench
from ddscope.tui.screens.breakpoints import Breakpoints
from ddscope.tui.screens.prompt import ALGORITHMS, NewPrompt, Params
from ddscope.tui.screens.settings import Settings
from ddscope.tui.widgets.tree import DraftTree

DEFAULT_BUDGET = 15
BUDGETS = (0, 3, 7, 15, 31, 63, 127, 255)
TEMPERATURES = (0.0, 0.7, 1.0)


class SteeringActions(Bench):
    """Bound only where the session has an engine that takes commands."""

    _asked: Params | None = None  # what was asked for last, until a record says what is in force

    def engine(self) -> EngineState:
        """What the engine said of itself last, wherever the time cursor stands."""
        return self.store.state()

    def params(self) -> Params:
        """What the engine runs with, as far as it is known."""
        if self._asked is None:
            self._asked = params_of(self._header(), self._newest_request())
        return self._asked

    def _header(self) -> Header | None:
        try:
            return self.store.header
        except TraceError:
            return None

    def _newest_request(self) -> Request | None:
        rows = self.store.requests()
        for place in range(len(rows) - 1, -1, -1):
            number = rows[place].record
            record = self.store.record(number) if number is not None else None
            if isinstance(record, Request):
                return record
        return None

    def _set(self, **changes: Any) -> None:
        self._asked = replace(self.params(), **changes)
        self.command("set", **changes)
        self.say("From the next step on: " + ", ".join(f"{name} {_number(value)}" for name, value in changes.items()))

    # running ----------------------------------------------------------------------------------------------------

    def action_engine_pause(self) -> None:
        """Pause between steps, or run on."""
        if self.engine().state in ("paused", "break"):
            self.command("resume")
        else:
            self.command("pause")

    def action_engine_step(self) -> None:
        """One step, then paused. Follow it, else there would be nothing to see."""
        self.command("step")
        if not self.cursor.is_live:
            self.cursor.live()
            self.moved()

    def action_continue(self) -> None:
        """Go on after a break or a pause."""
        if self.engine().state in ("paused", "break"):
            self.command("resume")
        else:
            self.say("The engine is not stopped.")

    def action_abort(self) -> None:
        """End the request under the cursor."""
        rid = self.cursor.rid
        row = self.store.request(rid) if rid is not None else None
        if row is None or row.state != "open":
            self.say("No running request is under the cursor.")
        else:
            self.command("abort", rid=row.rid)

    # prompts and settings ---------------------------------------------------------------------------------------

    def action_prompt(self) -> None:
        """Ask for a prompt, submit it, follow it."""

        def send(answer: dict[str, Any] | None) -> None:
            if answer is None:
                return
            self._asked = replace(self.params(), **{name: value for name, value in answer.items() if name != "prompt"})
            self.command("submit", **answer)
            self.cursor.pick(None)
            self.cursor.live()
            self.moved()

        self.app.push_screen(NewPrompt(self.params()), send)

    def action_settings(self) -> None:
        """All settings in one box."""

        def apply(changes: dict[str, Any] | None) -> None:
            if not changes:
                return
            every = changes.pop("self_check", None)
            if changes:
                self._set(**changes)
            if every is not None:
                self._asked = replace(self.params(), self_check=every)
                self.command("self_check", every=every)
                self.say(f"Self-check every {every:,} steps." if every else "Self-check is off.")

        self.app.push_screen(Settings(self.params()), apply)

    def _budget(self) -> int:
        """The budget in force; of one that is auto, what was chosen for the step on the screen."""
        budget = self.params().budget
        if isinstance(budget, int):
            return budget
        view = self.query_one(DraftTree).view
        return view.budget if view is not None and view.budget is not None else DEFAULT_BUDGET

    def action_budget_up(self) -> None:
        """The next larger budget of the round numbers of a binary tree."""
        budget = self._budget()
        self._set(budget=next((b for b in BUDGETS if b > budget), min(budget * 2 + 1, 1023)))

    def action_budget_down(self) -> None:
        """The next smaller one, down to no tree at all."""
        budget = self._budget()
        self._set(budget=next((b for b in reversed(BUDGETS) if b < budget), 0))

    def action_temperature(self) -> None:
        """The next of the usual temperatures."""
        here = self.params().temperature
        self._set(temperature=next((t for t in TEMPERATURES if t > here), TEMPERATURES[0]))

    def action_algorithm(self) -> None:
        """The next algorithm."""
        here = self.params().algorithm
        place = ALGORITHMS.index(here) + 1 if here in ALGORITHMS else 0
        self._set(algorithm=ALGORITHMS[place % len(ALGORITHMS)])

    def action_check_now(self) -> None:
        """Replay probe at the next step."""
        self.command("check_now")
        self.say("The next step is checked against a plain forward; the answer is among the findings.")

    def action_breakpoints(self) -> None:
        """List, add, remove."""
        self.app.push_screen(Breakpoints(self.engine().breakpoints, lambda name, args: self.command(name, **args)))


def params_of(header: Header | None, request: Request | None) -> Params:
    """Parameters as the header's engine configuration says, the newest request's sampling laid over it."""
    engine = header.engine if header is not None else None
    said: dict[str, Any] = dict(engine.config) if engine is not None else {}
    if engine is not None:
        said.setdefault("algorithm", engine.algorithm)
    if request is not None:
        said.update(request.sampling)
    params = Params()
    algorithm = str(said.get("algorithm", params.algorithm)).lower()
    return Params(
        algorithm=algorithm if algorithm in ALGORITHMS else params.algorithm,
        budget="auto" if said.get("budget") == "auto" else _as(int, said.get("budget"), params.budget),
        temperature=_as(float, said.get("temperature"), params.temperature),
        max_new_tokens=_as(int, said.get("max_new_tokens"), params.max_new_tokens),
        self_check=_as(int, said.get("self_check"), params.self_check),
    )


def _as(kind: type, value: Any, default: Any) -> Any:
    """A number of a kind; the default for anything else, because a header may say what it likes."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return kind(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
