"""What a watch makes of what its agent says, without a host: clocks that jump, silence of the connection itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ddscope.model import Fact, Probe
from ddscope.remote import Host
from ddscope.remote.watch import SAMPLES, HostWatch
from tests.integration.host.service import Kept

STEP = b'{"type":"step","src":"engine/0","seq":1,"t":1,"mono":1,"rid":"a","step":1}\n'


class Asked(HostWatch):
    """Keeps what it would ask its agent."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(Host("localhost"), kept, {})
        self.asked: list[dict[str, Any]] = []

    def _ask(self, message: dict[str, Any]) -> None:
        self.asked.append(message)


def test_silence_is_the_servers_only_while_its_host_is_heard() -> None:
    kept = Kept()
    watch, now = Asked(kept), time.monotonic()
    watch.pulse.saw(STEP, now - 60)
    watch._heard = now - 20
    watch._tell_pulse(now)
    assert kept.of(Probe) == [] and watch.asked == [{"ask": "hello"}], "the connection may stall"
    watch._heard = now
    watch._tell_pulse(now)
    assert [(p.rung, p.ok) for p in kept.of(Probe)] == [("progress", False)]


def test_a_clock_that_is_set_while_it_is_compared_makes_no_answer_early(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    watch = Asked(kept)
    real, ahead_us, back_us = time.time_ns, 5_000_000, 3_600_000_000
    watch._ask_clock()
    for sample in range(SAMPLES):
        if sample == 2:  # between a question and its answer
            monkeypatch.setattr("time.time_ns", lambda: real() - back_us * 1000)
        answer = {"kind": "clock", "id": watch.asked[-1]["id"], "t": real() // 1000 + ahead_us, "mono": 1}
        watch._take_clock(answer)
    (fact,) = kept.of(Fact)
    assert fact.value["rtt_us"] >= 0
    assert min(abs(fact.value["offset_us"] - off) for off in (ahead_us, ahead_us + back_us)) < 1_000_000


def test_a_late_answer_is_measured_by_its_own_question() -> None:
    kept = Kept()
    watch = Asked(kept)
    watch._ask_clock()
    first = watch.asked[0]
    watch._ask_clock()
    first["id"] -= 90 * 10**9  # it stood in a stalled connection
    watch._take_clock({"kind": "clock", "id": first["id"], "t": time.time_ns() // 1000, "mono": 1})
    assert watch._clock[0][0] >= 90_000_000
