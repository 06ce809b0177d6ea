"""R requests decoded together: prompts in, then one launch a step, read one step behind.

On CUDA a step is the replay of one graph and the host never waits for the step it has just launched; on a CPU, where
the same code is tested, steps run as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddscope.engine.device.models import DeviceDrafter, DeviceTarget, tables_for
from ddscope.engine.device.plan import Plan
from ddscope.engine.device.reading import Packing, Told
from ddscope.engine.device.step import State, Step
from ddscope.engine.drafting import distinct_layers
from ddscope.engine.errors import EngineError
from ddscope.engine.pair import Pair, check_prompt
from ddscope_kernels.batched import choose
from ddscope_kernels.batched.layer_plan import early

SLOTS = 3
"""Steps whose telling may be on its way at once: one that is computed, one that is read, one spare."""


def rows_needed(pair: Pair, prompt: int, max_new_tokens: int, most: int) -> int:
    """Rows of a cache that a prompt of so many tokens, its output and a tree of `most` nodes take."""
    output = min(max_new_tokens, pair.target.config.stack.max_positions - prompt)
    return prompt + output + most + 1


EARLY_ROWS = 256
"""Rows of a verify, of all requests, up to which kernels start before the one before them ends: up to so many it was
measured, and was faster (docs/performance.md)."""


@dataclass(slots=True)
class _Flight:
    """A step that was launched. host: [size] uint8, filled when `done` has passed."""

    plan: Plan
    packing: Packing
    host: Tensor
    done: Any
    before: Any


@dataclass(slots=True)
class _Ready:
    """A plan's step, its packing, and on CUDA its graph; buffer: [size] uint8 on the device."""

    step: Step
    packing: Packing
    buffer: Tensor
    graph: Any
    hosts: list[Tensor]
    turn: int = 0


class Decoder:
    """State, caches and graphs of R requests. One thread uses it.

    feature_layers: captured layers of the prompt that was read last, and how many of them differ.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        requests: int,
        rows: int,
        most: int = 255,
        graphs: bool = True,
        early_launch: bool | None = None,
        make_step: type[Step] = Step,
    ) -> None:
        """rows: of each request's caches: prompt, output and a tree; most: nodes of a tree.

        graphs: on CUDA, whether steps are replayed as graphs; without, they run launch by launch.
        early_launch: see `ddscope_kernels.batched.layer_plan.early`; None: for up to EARLY_ROWS rows of a verify.
        make_step: what a step computes (a benchmark has its own).
        """
        target, config = pair.target, pair.drafter.config
        device = target.device
        self.pair, self.requests, self.rows, self.most = pair, requests, rows, most
        self._make_step, self._early = make_step, early_launch
        self._graphs = graphs and device.type == "cuda"
        tables = tables_for(target.config.stack, rows + config.block_size, target.norm)
        self._target = DeviceTarget(target, requests, rows, most + 1, tables)
        self._drafter = DeviceDrafter(
            pair.drafter, self._target, requests, rows + config.block_size,
            tables_for(config.stack, rows + config.block_size, target.norm),
        )  # fmt: skip
        zeros = torch.zeros(requests, dtype=torch.int32, device=device)
        self.state = State(
            block=torch.full((requests, config.block_size), config.mask_token_id, device=device),
            base=zeros.clone(),
            room=zeros.clone(),
            temperatures=torch.zeros(requests, device=device),
            seeds=torch.zeros(requests, dtype=torch.int64, device=device),
            eos=torch.tensor(sorted(pair.eos_ids), dtype=torch.int64, device=device),
        )
        self._ready: dict[Plan, _Ready] = {}
        self._flights: deque[_Flight] = deque()
        self._last_done: Any = None
        self.feature_layers = (0, 0)

    # -- requests ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def load(
        self, request: int, prompt_ids: Sequence[int], *, max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> tuple[int, str | None]:
        """Read a prompt into place `request`; the first token of its output, and why the text ends with it, or None.

        Raises EngineError when the caches have no room for the prompt, the output and a tree.
        """
        self.check_prompt(prompt_ids)
        pair, state, length = self.pair, self.state, len(prompt_ids)
        if self.rows_needed(length, max_new_tokens) > self.rows:
            raise EngineError(
                f"{length:,} tokens of prompt, {max_new_tokens:,} to come and a tree of {self.most} do not fit "
                f"{self.rows:,} rows."
            )
        cache = pair.target.new_cache(length)
        context = pair.drafter.new_cache(length)
        out = pair.target.read(prompt_ids, cache, pair.drafter.config.target_layer_ids)
        features = torch.cat(out.hidden, dim=-1)
        self.feature_layers = distinct_layers(features, pair.checkpoint.stack.hidden)
        pair.drafter.read(features, context)
        self._target.stack.load(request, cache.data, length)
        self._drafter.stack.load(request, context.data, length)
        device = state.base.device
        warm = {
            "temperatures": torch.tensor([temperature], device=device),
            "seeds": torch.tensor([seed], device=device),
            "positions": torch.tensor([[length]], device=device),
        }
        token = int(choose(out.logits[None], **(warm if temperature > 0 else {})))
        stack = pair.target.config.stack
        room = min(max_new_tokens, stack.max_positions - length) - 1
        reason = "stop" if token in pair.eos_ids else "length" if room <= 0 else None
        state.root[request] = token
        state.base[request] = length
        state.room[request] = 0 if reason else room
        state.temperatures[request] = temperature
        state.seeds[request] = seed
        return token, reason

    def rows_needed(self, prompt: int, max_new_tokens: int) -> int:
        """Rows of a cache that a prompt of so many tokens, its output and a tree take."""
        return rows_needed(self.pair, prompt, max_new_tokens, self.most)

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Raises EngineError when a prompt is empty, too long, or has ids outside the vocabulary."""
        check_prompt(self.pair, prompt_ids)

    @torch.inference_mode()
    def change(self, request: int, *, room: int, base: int, temperature: float, seed: int) -> None:
        """Other limits and draws for a running request; base: position of its root. No step may be waiting.

        What goes beyond the caches is cut off.
        """
        self.state.room[request] = min(room, self.rows - self.most - 2 - base)
        self.state.temperatures[request] = temperature
        self.state.seeds[request] = seed

    @torch.inference_mode()
    def end(self, request: int) -> None:
        """Stop decoding a request; steps leave it where it is from now on."""
        self.state.room[request] = 0

    # -- steps ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Start one step of all requests. The first of a plan makes its graph. Raises EngineError for too wide a plan.

        At most SLOTS steps may be launched and not collected.
        """
        if plan.budget > self.most:
            raise EngineError(f"A tree of {plan.budget} nodes is more than the {self.most} that there is room for.")
        if len(self._flights) >= SLOTS:
            raise EngineError(f"{SLOTS} steps wait to be collected.")
        ready = self._ready.get(plan) or self._prepare(plan)
        if ready.graph is None:
            with early(self._starts_early(plan)):
                ready.step.run(partial(ready.packing.pack, out=ready.buffer))
        else:
            ready.graph.replay()
        host = ready.hosts[ready.turn]
        ready.turn = (ready.turn + 1) % SLOTS
        host.copy_(ready.buffer, non_blocking=True)
        done = None
        if host.is_pinned():
            done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            done.record()
        self._flights.append(_Flight(plan, ready.packing, host, done, self._last_done))
        self._last_done = done

    def collect(self) -> Told:
        """The oldest step that was launched and not collected. Its arrays are good until SLOTS more are launched."""
        flight = self._flights.popleft()
        us = 0
        if flight.done is not None:
            flight.done.synchronize()
            if flight.before is not None:
                us = round(flight.before.elapsed_time(flight.done) * 1000)
        return Told(flight.plan, flight.packing.arrays(flight.host.numpy()), us, self._graphs)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Steps in this context cost what they cost and move no request. None may be waiting."""
        kept = self.state.room.clone()
        self.state.room.zero_()
        try:
            yield
        finally:
            self.state.room.copy_(kept)

    @property
    def waiting(self) -> int:
        """Steps that were launched and not collected."""
        return len(self._flights)

    def forget_time(self) -> None:
        """The next step is not timed: something else than a step came before it."""
        self._last_done = None

    @torch.inference_mode()
    def prepare(self, plan: Plan) -> None:
        """Make what a plan needs before its first step."""
        if plan not in self._ready:
            self._prepare(plan)

    def _prepare(self, plan: Plan) -> _Ready:
        with early(self._starts_early(plan)):
            return self._made(plan)

    def _starts_early(self, plan: Plan) -> bool:
        return plan.rows * self.requests <= EARLY_ROWS if self._early is None else self._early

    def _made(self, plan: Plan) -> _Ready:
        step = self._make_step(plan, self._target, self._drafter, self.state)
        kept = [tensor.clone() for tensor in self._mutable()]
        seen: list[Packing] = []
        with self._aside():
            step.run(lambda told: seen.append(Packing(told)))  # compiles, too
        packing = seen[0]
        buffer = torch.empty(packing.size, dtype=torch.uint8, device=self.state.base.device)
        pack = partial(packing.pack, out=buffer)
        with self._aside():
            step.run(pack)
        for tensor, old in zip(self._mutable(), kept, strict=True):
            tensor.copy_(old)  # what trial steps moved; rows they wrote lie behind the texts
        graph = None
        if self._graphs:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool()):
                step.run(pack)
        pin = buffer.is_cuda
        hosts = [torch.empty(packing.size, dtype=torch.uint8, pin_memory=pin) for _ in range(SLOTS)]
        ready = _Ready(step, packing, buffer, graph, hosts)
        self._ready[plan] = ready
        return ready

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On CUDA, a stream beside: what is to be captured must have run once outside the default stream."""
        if not self._graphs:
            yield
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)

    def _pool(self) -> Any:
        """One for all graphs: they run one after another, and what they leave behind is packed outside of it."""
        for ready in self._ready.values():
            if ready.graph is not None:
                return ready.graph.pool()
        return None

    def _mutable(self) -> list[Tensor]:
        return [self.state.block, self.state.base, self.state.room]
