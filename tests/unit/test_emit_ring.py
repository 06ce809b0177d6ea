"""The ring: bounded, never waiting, and exact about what it lost and where."""

from __future__ import annotations

import threading
import time
from typing import Any

from ddscope_hooks.emit.ring import Entry, Lost, Ring


def entry(n: int, mono: int | None = None) -> Entry:
    return ("x", {"n": n}, n if mono is None else mono)


def shape(taken: list[Any]) -> list[Any]:
    return [("lost", e.count) if isinstance(e, Lost) else e[1]["n"] for e in taken]


def test_what_fits_comes_out_in_order() -> None:
    ring = Ring(4)
    for n in range(4):
        ring.put(entry(n))
    assert len(ring) == 4
    assert shape(ring.take()) == [0, 1, 2, 3]
    assert ring.take() == [] and len(ring) == 0


def test_what_does_not_fit_is_counted_at_its_place() -> None:
    ring = Ring(3)
    for n in range(5):
        ring.put(entry(n))
    assert len(ring) == 5
    first = ring.take()
    ring.put(entry(5))
    assert shape(first) == [0, 1, 2, ("lost", 2)]
    assert shape(ring.take()) == [5]


def test_the_ring_never_holds_more_than_its_capacity() -> None:
    ring = Ring(8)
    for n in range(10_000):
        ring.put(entry(n))
    assert len(ring._items) == 8
    assert shape(ring.take())[-1] == ("lost", 9_992)


def test_put_does_not_wait_for_a_thread_that_holds_the_lock() -> None:
    ring = Ring(4)
    ring.put(entry(0, mono=10))
    with ring._lock:  # as another thread does that was suspended at the worst moment
        done = threading.Event()

        def other() -> None:
            ring.put(entry(1, mono=20))
            done.set()

        threading.Thread(target=other).start()
        assert done.wait(10)
    ring.put(entry(2, mono=30))
    assert shape(ring.take()) == [0, 1, 2]


def test_put_in_a_signal_handler_that_interrupted_a_put_does_not_deadlock() -> None:
    ring = Ring(4)
    with ring._lock:  # this very thread is inside `put`
        ring.put(entry(1))
    assert shape(ring.take()) == [1]


def test_a_full_side_queue_counts_what_it_lost() -> None:
    ring = Ring(2)
    for round_ in range(3):  # the count must not drift by being read
        with ring._lock:
            for n in range(5):
                ring.put(entry(n))
        assert shape(ring.take()) == [0, 1, ("lost", 3)], round_
        assert ring.take() == []


def test_a_report_gets_through_a_full_ring() -> None:
    ring = Ring(2)
    for n in range(4):
        ring.put(entry(n))
    ring.put_aside(entry(9))
    assert shape(ring.take()) == [0, 1, 9, ("lost", 2)]


def test_half_full_is_told_once_a_filling() -> None:
    calls: list[int] = []
    ring = Ring(8, lambda: calls.append(len(ring)))
    for n in range(20):
        ring.put(entry(n))
    assert len(calls) == 1
    ring.take()
    for n in range(5):
        ring.put(entry(n))
    assert len(calls) == 2


def test_many_threads_lose_nothing_uncounted_and_keep_their_own_order() -> None:
    ring = Ring(64)
    threads, each = 6, 4000
    stop = threading.Event()
    got: list[Entry | Lost] = []

    def produce(who: int) -> None:
        for n in range(each):
            ring.put(("x", {"who": who, "n": n}, time.monotonic_ns()))

    def consume() -> None:
        while not stop.is_set():
            got.extend(ring.take())

    consumer = threading.Thread(target=consume)
    producers = [threading.Thread(target=produce, args=(w,)) for w in range(threads)]
    consumer.start()
    for p in producers:
        p.start()
    for p in producers:
        p.join()
    stop.set()
    consumer.join()
    got.extend(ring.take())
    lost = sum(e.count for e in got if isinstance(e, Lost))
    kept = [e for e in got if not isinstance(e, Lost)]
    assert len(kept) + lost == threads * each
    assert kept and lost, "the test should see both"
    for who in range(threads):
        mine = [e[1]["n"] for e in kept if e[1]["who"] == who]
        assert mine == sorted(set(mine))
