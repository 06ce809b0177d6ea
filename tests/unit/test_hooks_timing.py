"""Which passes are timed: all by the host's clock, and of a fast target's one of some by events of a device."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddscope_hooks.config import Config, Sample
from ddscope_hooks.taps import clock
from ddscope_hooks.taps import core as taps
from ddscope_hooks.taps.core import RESULT, Core
from ddscope_hooks.taps.hooks import Breaker, Hook
from ddscope_hooks.taps.place import Place

MS = 1_000_000


class Event:
    """Of a device that takes 3 µs from one to the next."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self.at = Event.made

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 0.003


class OnDevice(torch.Tensor):
    """Says that it lies on a device."""

    is_cuda = True  # type: ignore[assignment]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time in ns, to be set."""
    at = [0]
    for module in (clock, taps):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: at[0]))
    monkeypatch.setattr(clock, "_spare", type(clock._spare)(maxlen=256))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return at


def core(every: int = 1) -> Core:
    emitter: Any = SimpleNamespace(watched=True, fault=lambda tap, error: None)
    return Core(Config(sample=Sample(every=every)), emitter, Place(), "X")


def one_pass(core: Core, tensor: torch.Tensor) -> tuple[dict[str, int], str] | None:
    """Its times; None when none were taken."""
    core.begin([], prefill=False)
    assert core.cargo is not None and core.timing.closed == (core.cargo.clock is None)
    for name in ("draft", "verify", "verified"):
        core.mark(name, tensor)
    core.put("draft", tensor)
    result = SimpleNamespace()
    core.attach(result)
    core.end(result)
    kept = getattr(result, RESULT).clock
    return None if kept is None else kept.read()


def test_events_time_a_pass_in_ten_milliseconds_with_all_of_its_stages(now: list[int]) -> None:
    found, tensor, recorded = [], torch.zeros(3).as_subclass(OnDevice), Event.made
    tapped = core()
    for at in range(0, 24, 2):
        now[0] = at * MS
        found.append(one_pass(tapped, tensor))
    times = {"draft": 3, "verify": 3, "commit": 3, "total": 9}, "cuda_event"
    assert found == [times, None, None, None, None] * 2 + [times, None]
    assert Event.made - recorded == 3 * 4  # the others record nothing


def test_slower_passes_are_all_timed_by_events(now: list[int]) -> None:
    tapped = core()
    for at in range(5):
        now[0] = at * 11 * MS
        assert one_pass(tapped, torch.zeros(3).as_subclass(OnDevice)) is not None


def test_the_hosts_clock_times_every_pass(now: list[int]) -> None:
    tapped = core()
    for at in range(5):
        now[0] = at * MS
        assert one_pass(tapped, torch.zeros(3)) == ({"draft": 0, "verify": 0, "commit": 0, "total": 0}, "host")


def test_hooks_that_only_time_are_shut_out_of_other_passes(now: list[int]) -> None:
    tapped, calls = core(), [0]

    def only_times() -> None:
        calls[0] += 1

    hook = Hook("os.path.basename", "before", (), only_times, gate=tapped.timing)
    run = Breaker("t", lambda tap, error: None).guard(hook, tapped.gate)
    for at in range(0, 12, 2):
        now[0] = at * MS
        tapped.begin([], prefill=False)
        run("a")
        tensor = torch.zeros(3).as_subclass(OnDevice)
        tapped.mark("verify", tensor)
        tapped.put("draft", tensor)
        tapped.attach(SimpleNamespace())
    assert calls == [2]
    tapped.begin([], prefill=True)
    run("a")
    off = core(every=0)
    off.begin([], prefill=False)
    Breaker("t", lambda tap, error: None).guard(replace(hook, gate=off.timing))("a")
    assert calls == [2]
