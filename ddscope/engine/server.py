"""The engine's loop: one request at a time, step by step, obeying control messages between steps and at breakpoints.

What a step computes is `ddscope.engine.generate`; what a command may say is `ddscope.engine.control`.
"""

from __future__ import annotations

import argparse
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ddscope.engine import control, records
from ddscope.engine.breakpoints import Breakpoint, Moment, first_hit
from ddscope.engine.budget import AUTO, AutoBudget
from ddscope.engine.calibrate import calibrate
from ddscope.engine.device.engine import DeviceEngine
from ddscope.engine.device.generator import DeviceGenerator
from ddscope.engine.errors import DraftShapeError, EngineError
from ddscope.engine.generate import Generator, Params, StepResult
from ddscope.engine.pair import Pair, load_pair
from ddscope_hooks.emit import Emitter

log = logging.getLogger("ddscope.engine")

LOG_EVERY = 16
"""Steps between two progress lines in the engine's log."""


@dataclass
class _Active:
    """The running request. started: perf_counter seconds; steps: committed so far."""

    rid: str
    generator: Generator | DeviceGenerator
    params: Params
    started: float
    steps: int = 0


class EngineServer:
    """Runs submitted requests in order, on one thread; `control_message` takes messages from any thread."""

    def __init__(self, pair: Pair, defaults: Params, *, self_check: int = 0, paused: bool = False) -> None:
        self.pair = pair
        self.defaults = defaults
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._waiting: deque[control.Submit] = deque()
        self._breakpoints: list[Breakpoint] = []
        self._self_check = self_check
        self._check_now = False
        self._mode = "pause" if paused else "resume"
        self._leaving = threading.Event()
        self._active: _Active | None = None
        self._auto: AutoBudget | None = None
        self._device = DeviceEngine(pair) if DeviceEngine.serves(pair) else None
        self._said_state: tuple[object, ...] | None = None
        self._requests = 0
        self._tensors = records.TensorBook()
        self.emitter = Emitter(
            "engine/0",
            records.header(pair, defaults),
            token_text=pair.tokenizer.token_bytes_of,
            on_control=self.control_message,
            control=True,
        )

    @classmethod
    def from_options(cls, args: argparse.Namespace, progress: Callable[[str, int, int], None]) -> EngineServer:
        """Load the pair and listen. Raises EngineError in one sentence."""
        pair = load_pair(
            target=args.target,
            draft=args.draft,
            dtype=args.dtype,
            device=args.device,
            fault=args.fault,
            progress=progress,
        )
        defaults = pair.default_params()
        asked = {name: value for name in control.PARAMETERS if (value := getattr(args, name)) is not None}
        defaults = replace(defaults, **control.parameters(asked))
        server = cls(pair, defaults, self_check=args.self_check, paused=args.paused)
        if server._device is not None:
            server._device.prepare(defaults, progress)
            server._auto = server._device.auto
        elif defaults.budget == AUTO:
            server._auto = calibrate(pair, defaults, progress)
        server.emitter.listen(f"unix:{args.socket}")
        return server

    def control_message(self, message: dict[str, Any]) -> None:
        """Take a control message (any thread); it is carried out before the next step."""
        self._inbox.put(message)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to leave."""
        self._tell_facts()
        while not self._leaving.is_set():
            idle = self._active is None and not self._waiting
            self._obey(block=idle or self._mode == "pause")
            if self._leaving.is_set():
                break
            if self._active is None:
                if self._waiting:
                    self._begin(self._waiting.popleft())
            elif self._mode != "pause":
                self._advance(self._active)
        if self._active is not None:
            self._finish(self._active, "abort")
        self.emitter.close()

    def _tell_facts(self) -> None:
        self._fact("versions", records.versions())
        self._fact("drafter.checkpoint", self.pair.drafter_checkpoint())
        self._fact("drafter.in_force", self.pair.drafter_in_force())
        fault = self.pair.fault
        if fault is not None:
            self._fact("fault", {"name": fault.name, "what": fault.what})
        if self._auto is not None:
            self._fact("budget.auto", self._auto.as_fact())
        log.info("Ready: %s.", self.pair.title)

    def _fact(self, name: str, value: Any) -> None:
        self.emitter.emit("fact", {"name": name, "value": value})

    def _state(self, state: str, reason: str | None = None) -> None:
        active = self._active
        key = (state, active.rid if active else None, active.steps if active and state != "running" else None)
        if key == self._said_state:
            return
        self._said_state = key
        value: dict[str, Any] = {"state": state}
        if active is not None:
            value |= {"rid": active.rid, "step": active.steps}
        if reason is not None:
            value["reason"] = reason
        self._fact("engine.state", value)

    def _obey(self, *, block: bool) -> None:
        """Carry out what has arrived; with `block`, wait for at least one message first."""
        if block:
            self._state("paused" if self._mode == "pause" and (self._active or self._waiting) else "idle")
            self._carry_out(self._inbox.get())
        while not self._inbox.empty():
            self._carry_out(self._inbox.get())

    # -- commands ---------------------------------------------------------------------------------------------------

    def _carry_out(self, message: dict[str, Any]) -> None:
        try:
            command = control.parse(message)
            self._apply(command)
        except EngineError as problem:
            log.warning("Refused %s: %s", message.get("command"), problem)
            self._fact("control.refused", {"command": str(message.get("command")), "why": str(problem)})
            return
        args = message.get("args") or {}
        self.emitter.emit(
            "control", {"command": message["command"], "args": args, "by": str(message.get("by", "viewer"))}
        )

    def _apply(self, command: control.Command) -> None:
        match command:
            case control.Submit():
                self._waiting.append(command)
            case control.Run(mode=mode):
                self._mode = mode
            case control.Set(overrides=overrides):
                self.defaults = replace(self.defaults, **overrides)
                if self._active is not None:
                    self._active.params = replace(self._active.params, **overrides)
                    self._active.generator.auto = self._policy(self._active.params)
            case control.Break(point=point, add=add):
                others = [p for p in self._breakpoints if p != point]
                self._breakpoints = [*others, point] if add else others
                self._fact("breakpoints", [p.as_fact() for p in self._breakpoints])
            case control.SelfCheck(every=every, now=now):
                self._self_check = self._self_check if every is None else every
                self._check_now = self._check_now or now
            case control.Abort(rid=rid):
                self._abort(rid)
            case control.Shutdown():
                self._leaving.set()

    def _policy(self, params: Params) -> AutoBudget | None:
        """What chooses the budget of `params`; measured, and told, when it is asked for first."""
        if self._auto is None and params.budget == AUTO:
            if self._active is not None:
                self._active.generator.settle()
            self._auto = calibrate(self.pair, params) if self._device is None else self._device.policy(params)
            if self._auto is not None:
                self._fact("budget.auto", self._auto.as_fact())
        return self._auto

    def _abort(self, rid: str | None) -> None:
        if self._active is not None and rid in (None, self._active.rid):
            self._finish(self._active, "abort")
            return
        kept = deque(submit for submit in self._waiting if submit.rid != rid)
        if len(kept) == len(self._waiting):
            raise EngineError(f"No request {rid!r} is running or waiting.")
        self._waiting = kept

    # -- a request --------------------------------------------------------------------------------------------------

    def _begin(self, submit: control.Submit) -> None:
        self._requests += 1
        rid = submit.rid or f"r{self._requests}"
        params = replace(self.defaults, **submit.overrides)
        try:
            ids = submit.prompt_ids or self.pair.tokenizer.encode_chat(submit.prompt or "")
            generator = self._generator(ids, params)
        except EngineError as problem:
            self._fact("engine.error", {"rid": rid, "step": 0, "where": "request", "message": str(problem)})
            self.emitter.emit("finish", {"rid": rid, "reason": "error", "emitted": 0, "steps": 0})
            return
        sampling = {"temperature": params.temperature, "max_new_tokens": params.max_new_tokens, "seed": params.seed}
        self.emitter.emit(
            "request", {"rid": rid, "prompt_len": len(ids), "prompt_ids": ids, "sampling": sampling, "cached_tokens": 0}
        )
        log.info(
            "Request %s: %d prompt tokens, %s budget %s, temperature %g.",
            rid,
            len(ids),
            params.algorithm,
            params.budget,
            params.temperature,
        )
        self._active = _Active(rid, generator, params, time.perf_counter())
        self._state("running")
        try:
            generator.start()
        except Exception as problem:  # whatever the forward raises ends this request, never the engine
            self._error(self._active, "prefill", problem)
            return
        layers, distinct = generator.feature_layers()
        self._fact("draft.features", {"rid": rid, "layers": layers, "distinct": distinct})
        if generator.done:
            self._finish(self._active, generator.done)

    def _generator(self, ids: list[int], params: Params) -> Generator | DeviceGenerator:
        auto = self._policy(params)
        if self._device is not None:
            return self._device.generator(ids, params)
        return Generator(self.pair, ids, params, auto)

    def _advance(self, active: _Active) -> None:
        """One step: draft and verify, stop at a breakpoint, check, commit, tell."""
        self._state("running")
        generator, params = active.generator, active.params
        generator.params = params
        try:
            result = generator.draft_and_verify()
        except DraftShapeError as problem:
            self._tell_tensors([records.misfit(problem, self.pair)])
            self._stop_if(active, Moment(active.steps, None, generator.output, 0, str(problem), self._text))
            self._error(active, "drafter", problem)
            return
        except Exception as problem:  # as above
            self._error(active, "step", problem)
            return
        self._tell_tensors(result.tensors)
        moment = Moment(active.steps, result, generator.output, len(result.tokens), None, self._text)
        reason = first_hit(self._breakpoints, moment)
        if reason is not None:
            self.emitter.emit("step", records.step(active.rid, active.steps, result, params))
        self._check(active, result)
        if reason is not None:
            self._wait_at(active, reason)
            if self._active is not active or self._leaving.is_set():
                return
        generator.commit(result)
        if reason is None:
            self.emitter.emit("step", records.step(active.rid, active.steps, result, params))
        active.steps += 1
        if active.steps % LOG_EVERY == 0:
            self._log_progress(active)
        if self._mode == "step":
            self._mode = "pause"
        if generator.done:
            self._finish(active, generator.done)

    def _text(self, token: int) -> str:
        return self.pair.tokenizer.token_bytes_of([token])[0].decode("utf-8", "replace")

    def _tell_tensors(self, tensors: list[dict[str, Any]]) -> None:
        for fields in tensors:
            if self._tensors.news(fields):
                self.emitter.emit("tensor", fields)

    def _check(self, active: _Active, result: StepResult) -> None:
        due = self._self_check and active.steps % self._self_check == self._self_check - 1
        if not (due or self._check_now):
            return
        self._check_now = False
        check = active.generator.replay_check(result)
        self._fact("replay_check", {"rid": active.rid, "step": active.steps, **check.as_fact()})

    # -- stopping ---------------------------------------------------------------------------------------------------

    def _stop_if(self, active: _Active, moment: Moment) -> None:
        reason = first_hit(self._breakpoints, moment)
        if reason is not None:
            self._wait_at(active, reason)

    def _wait_at(self, active: _Active, reason: str) -> None:
        """Stand still at a breakpoint until `resume` or `step`, the request is aborted, or the engine leaves."""
        self._mode = "pause"
        log.info("Stopped before the commit of step %d of %s: %s.", active.steps, active.rid, reason)
        self._state("break", reason)
        while self._mode == "pause" and self._active is active and not self._leaving.is_set():
            self._carry_out(self._inbox.get())
            if self._check_now and self._active is active:
                break_result = active.generator.pending
                if break_result is not None:
                    self._check(active, break_result)

    def _error(self, active: _Active, where: str, problem: Exception) -> None:
        log.error(
            "Request %s, step %d, %s: %s",
            active.rid,
            active.steps,
            where,
            problem,
            exc_info=not isinstance(problem, EngineError),
        )
        self._fact("engine.error", {"rid": active.rid, "step": active.steps, "where": where, "message": str(problem)})
        if self._active is active:
            self._finish(active, "error")

    def _finish(self, active: _Active, reason: str) -> None:
        if self._auto is not None and active.params.budget == AUTO:
            self._fact("budget.auto", self._auto.as_fact())  # with what it has learned
        active.generator.close()
        emitted = len(active.generator.output)
        self.emitter.emit("finish", {"rid": active.rid, "reason": reason, "emitted": emitted, "steps": active.steps})
        seconds = max(time.perf_counter() - active.started, 1e-9)
        log.info(
            "Request %s finished (%s): %d tokens in %d steps, %.1f tokens/s.",
            active.rid,
            reason,
            emitted,
            active.steps,
            emitted / seconds,
        )
        self._active = None
        if not self._waiting:
            self._state("idle")

    def _log_progress(self, active: _Active) -> None:
        seconds = max(time.perf_counter() - active.started, 1e-9)
        emitted = len(active.generator.output)
        log.info(
            "Decode %s, #step: %d, #token: %d, accept len: %.2f, gen throughput (token/s): %.2f",
            active.rid,
            active.steps,
            emitted,
            (emitted - 1) / active.steps,
            emitted / seconds,
        )
