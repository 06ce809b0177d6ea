"""The part of benchmarks/sglang_overhead.py that runs inside SGLang's scheduler process.

It stamps every batch, takes ddscope's taps out of the running engine and puts them back, alternates the states that
are compared, and counts host synchronisations. The benchmark and the scheduler share one small mapped file; nothing
here is part of ddscope.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import pkgutil
import random
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

SHARED = "DDSCOPE_BENCHMARK_SHARED"
CORE = "DDSCOPE_BENCHMARK_CORE"
STEPS = 1 << 20
"""How many batches fit; an hour at 290 a second."""
HEAD = 16
BARE, SYNCS, BARE_IS, SYNCS_IS, COUNT, ALL_SYNCS, TAP_SYNCS, TARGETS, PASSES, PASSES_IS = range(10)
STATES = ("none", "off", "on", "viewer")
SETTLE = 3
"""Passes after a change of state that are left out."""


class Shared:
    """Numbers of 64 bits in a mapped file: HEAD switches and counters, then two a batch: ns, and requests + slot · 2³².

    requests: 0 for a prefill. slot: 4 · round + state while states alternate, from round 1 on.

    BARE, SYNCS: what the benchmark wants (1: SGLang's own functions without the taps; 1: count synchronisations).
    BARE_IS, SYNCS_IS: what is in force. ALL_SYNCS, TAP_SYNCS: synchronising CUDA calls while counting, and those of
    them with a function of the hooks on the stack. TARGETS: functions the taps are on. PASSES: after so many decode
    batches the state changes; 0: it stays as BARE and the viewers have it.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        size = 8 * (HEAD + 2 * STEPS)
        with Path(path).open("w+b" if create else "r+b") as file:
            if create:
                file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self.at = memoryview(self._map).cast("Q")

    def stamp(self, requests: int, slot: int) -> None:
        """One batch was processed; 0 requests for a prefill."""
        count = self.at[COUNT]
        if count < STEPS:
            self.at[HEAD + 2 * count] = time.perf_counter_ns()
            self.at[HEAD + 2 * count + 1] = requests | slot << 32
            self.at[COUNT] = count + 1

    def rounds(self, first: int, batch: int, passes: int) -> list[dict[str, list[float]]]:
        """ms a pass by state, of every whole round of `batch` requests from batch number `first` on.

        passes: as in PASSES, all that time; one generation began meanwhile.
        """
        found: dict[int, dict[str, list[float]]] = {}
        spoilt: set[int] = set()
        stamps = [(self.at[HEAD + 2 * i], self.at[HEAD + 2 * i + 1]) for i in range(first, self.at[COUNT])]
        last = settling = 0
        for (before, _), (after, word) in itertools.pairwise(stamps):
            slot, requests = word >> 32, word & 0xFFFFFFFF
            settling = SETTLE if slot != last else settling - 1
            last = slot
            if slot < len(STATES) or settling > 0:
                continue
            number, state = divmod(slot, len(STATES))
            found.setdefault(number, {}).setdefault(STATES[state], []).append((after - before) / 1e6)
            if requests != batch:
                spoilt.add(number)
        # Each state comes twice in a round, the last one twice in a row.
        kept = 2 * len(STATES) * passes - (2 * len(STATES) - 1) * SETTLE
        return [each for number, each in found.items() if number not in spoilt and sum(map(len, each.values())) == kept]


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """SGLang's own function of this name, with a stamp on every batch."""
    from sglang.srt.managers import scheduler

    _stamp_batches(scheduler.Scheduler, Shared(os.environ[SHARED]))
    return scheduler.run_scheduler_process(*args, **kwargs)


def _stamp_batches(scheduler: Any, shared: Shared) -> None:
    original = scheduler.process_batch_result
    taps = Taps()
    core = os.environ.get(CORE, "")
    states: Alternating | None = None

    def process_batch_result(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal core, states
        done = original(self, batch, *args, **kwargs)
        at = shared.at
        if core:  # now that all other threads were started: this one alone moves
            os.sched_setaffinity(0, {int(core)})
            core = ""
        if at[BARE] != at[BARE_IS]:
            at[TARGETS] = taps.put(bare=bool(at[BARE]))
            at[BARE_IS] = at[BARE]
        if at[SYNCS] != at[SYNCS_IS]:
            _count_syncs(shared, on=bool(at[SYNCS]))
            at[SYNCS_IS] = at[SYNCS]
        decode = batch.forward_mode.is_decode()
        shared.stamp(len(batch.reqs) if decode else 0, 0 if states is None else states.slot)
        if at[PASSES] != at[PASSES_IS]:
            if states is not None:
                states.end()
            states = Alternating(taps, at[PASSES]) if at[PASSES] else None
            at[PASSES_IS] = at[PASSES]
        elif states is not None and decode:
            states.passed()
        return done

    scheduler.process_batch_result = process_batch_result


class Taps:
    """Every place where SGLang's plugin registry put a wrapper, with what was there before."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str, Any, Any]] | None = None

    def put(self, *, bare: bool) -> int:
        """Put the original functions there, or the wrappers again. Returns the number of functions."""
        if self._places is None:
            self._places = list(self._find())
        for owner, name, wrapped, original in self._places:
            setattr(owner, name, original if bare else wrapped)
        return len({id(wrapped) for _, _, wrapped, _ in self._places})

    @staticmethod
    def _find() -> Any:
        from sglang.srt.plugins.hook_registry import HookRegistry

        for target in HookRegistry._patched:
            path, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(path)
            wrapped = original = vars(owner)[name]
            for _ in HookRegistry._hooks[target]:
                original = original.__wrapped__
            yield owner, name, wrapped, original
            for module in list(sys.modules.values()):  # `from X import Y` elsewhere
                if isinstance(module, types.ModuleType) and module is not owner:
                    for other, value in list(vars(module).items()):
                        if value is wrapped:
                            yield module, other, wrapped, original


class Alternating:
    """All states in random order and then back again, a few passes each, round after round; a viewer is connected.

    A pass takes longer the longer the text is, up to twice as long at the end of a request. So the states have to be
    near one another, and each has the same place in a round on average. "on" is what the hooks do when they know of no
    viewer.
    """

    def __init__(self, taps: Taps, passes: int) -> None:
        self._taps = taps
        self._passes = passes
        self._core = _core_of_hooks()
        self._random = random.Random()
        self._round = self._left = 0
        self._order: list[int] = []
        self._state = STATES.index("viewer")
        self.slot = 0

    def passed(self) -> None:
        """One more decode batch is over."""
        if self._left:
            self._left -= 1
            return
        if not self._order:
            self._round += 1
            order = self._random.sample(range(len(STATES)), len(STATES))
            self._order = order + order[::-1]
        state, self._left = self._order.pop(), self._passes - 1
        self.slot = self._round * len(STATES) + state
        self._enter(state)

    def end(self) -> None:
        """As it was before: recording, for the viewer."""
        self._enter(STATES.index("viewer"))

    def _enter(self, state: int) -> None:
        if (STATES[state] == "none") != (STATES[self._state] == "none"):
            self._taps.put(bare=STATES[state] == "none")
        self._core.sampling.every = 0 if STATES[state] in ("none", "off") else 1
        self._core.emitter.watched = STATES[state] == "viewer"
        self._state = state


def _core_of_hooks() -> Any:
    from ddscope_hooks.taps.core import Core

    return next(found for found in gc.get_objects() if isinstance(found, Core))


def _count_syncs(shared: Shared, *, on: bool) -> None:
    import torch

    if not torch.cuda.is_available():  # a trial run of the benchmark itself
        return
    if not on:
        torch.cuda.set_sync_debug_mode("default")
        return
    shown = warnings.showwarning

    def count(message: Any, *args: Any, **kwargs: Any) -> None:
        if "synchronizing CUDA operation" not in str(message):
            shown(message, *args, **kwargs)
            return
        shared.at[ALL_SYNCS] += 1
        frame: Any = sys._getframe(1)
        while frame is not None:
            if "ddscope_hooks" in frame.f_code.co_filename:
                shared.at[TAP_SYNCS] += 1
                return
            frame = frame.f_back

    warnings.showwarning = count
    warnings.simplefilter("always")
    torch.cuda.set_sync_debug_mode("warn")
