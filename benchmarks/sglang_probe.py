"""The part of benchmarks/sglang_overhead.py that runs inside SGLang's scheduler process.

It stamps every batch, takes ddscope's taps out of the running engine and puts them back, and counts host
synchronisations. The benchmark and the scheduler share one small mapped file; nothing here is part of ddscope.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pkgutil
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
BARE, SYNCS, BARE_IS, SYNCS_IS, COUNT, ALL_SYNCS, TAP_SYNCS, TARGETS = range(8)


class Shared:
    """Numbers of 64 bits in a mapped file: HEAD switches and counters, then two a batch, (ns, requests or 0).

    BARE, SYNCS: what the benchmark wants (1: SGLang's own functions without the taps; 1: count synchronisations).
    BARE_IS, SYNCS_IS: what is in force. ALL_SYNCS, TAP_SYNCS: synchronising CUDA calls while counting, and those of
    them with a function of the hooks on the stack. TARGETS: functions the taps are on.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        size = 8 * (HEAD + 2 * STEPS)
        with Path(path).open("w+b" if create else "r+b") as file:
            if create:
                file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self.at = memoryview(self._map).cast("Q")

    def stamp(self, requests: int) -> None:
        """One batch was processed; 0 requests for a prefill."""
        count = self.at[COUNT]
        if count < STEPS:
            self.at[HEAD + 2 * count] = time.perf_counter_ns()
            self.at[HEAD + 2 * count + 1] = requests
            self.at[COUNT] = count + 1

    def steps(self, first: int) -> list[tuple[int, float]]:
        """(end in ns, ms since the last) of each decode batch that follows another, from number `first` on."""
        stamps = [(self.at[HEAD + 2 * i], self.at[HEAD + 2 * i + 1]) for i in range(first, self.at[COUNT])]
        return [(b[0], (b[0] - a[0]) / 1e6) for a, b in itertools.pairwise(stamps) if a[1] and b[1]]


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """SGLang's own function of this name, with a stamp on every batch."""
    from sglang.srt.managers import scheduler

    _stamp_batches(scheduler.Scheduler, Shared(os.environ[SHARED]))
    return scheduler.run_scheduler_process(*args, **kwargs)


def _stamp_batches(scheduler: Any, shared: Shared) -> None:
    original = scheduler.process_batch_result
    taps = Taps()
    core = os.environ.get(CORE, "")

    def process_batch_result(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal core
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
        shared.stamp(len(batch.reqs) if batch.forward_mode.is_decode() else 0)
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
