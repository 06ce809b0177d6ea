"""emitted = received + dropped at every record a viewer receives, whatever the emitter and the viewers do.

Hypothesis drives an emitter whose writer's turns are taken by hand: bursts that overflow the ring, records that cannot
be encoded, viewers that come late, stop reading, read a little, leave in the middle of a line and come back. The check
reads only the lines that a viewer received (`Books`), never the emitter's own idea of them; that is compared later.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ddscope.sources.intake import Intake
from tests.unit.emit_support import Books, Pumped

RING = 16
QUEUE = 6_000


class Life:
    """One viewer over all its connections: what reaches its spool, and the spool's books."""

    def __init__(self) -> None:
        self.intake = Intake()
        self.books = Books()
        self.viewer: Any = None
        self.sock: Any = None
        self.rest = b""

    def connect(self, pumped: Pumped, *, says_hello: bool = True) -> None:
        self.viewer, self.sock = pumped.join(self.intake.hello() if says_hello else None, buffer=1)
        self.sock.setblocking(False)

    def read(self, limit: int) -> int:
        got = 0
        while got < limit:
            try:
                data = self.sock.recv(min(limit - got, 1 << 16))
            except BlockingIOError:
                break
            if not data:
                break
            got += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.books.take_all(self.intake.take(lines))
        return got

    def leave(self) -> None:
        self.sock.close()
        self.viewer.close()
        self.viewer = self.sock = None
        self.rest = b""  # half a line is no line


class ViewersAndTheirBooks(RuleBasedStateMachine):
    viewers = Bundle("viewers")

    def __init__(self) -> None:
        super().__init__()
        self.pumped = Pumped(ring=RING, queue_bytes=QUEUE, token_text=lambda ids: [str(i) * 20 for i in ids])
        self.everything = Life()
        self.lives = [self.everything]
        # A file-like witness that is always there and always read: what the stream really was.
        ours, theirs = self.pumped.join(buffer=1 << 20)
        ours.limit = 1 << 30
        theirs.setblocking(False)
        self.witness = ours.name
        self.seqs = 1  # the header's
        self.everything.viewer, self.everything.sock = ours, theirs

    def emit(self, type: str, fields: dict[str, Any], seqs: int = 1) -> None:
        self.pumped.emit(type, fields)
        self.seqs += seqs

    @rule(n=st.integers(1, 3 * RING), size=st.integers(0, 3000))
    def burst(self, n: int, size: int) -> None:
        for i in range(n):
            self.emit("mark", {"text": "x" * size, "i": i})

    @rule(ids=st.lists(st.integers(0, 40), max_size=6), rid=st.sampled_from("abc"))
    def request(self, ids: list[int], rid: str) -> None:
        self.emit("request", {"rid": rid, "prompt_len": len(ids), "prompt_ids": ids})

    @rule(ids=st.lists(st.integers(0, 40), max_size=6), rid=st.sampled_from("abc"))
    def step(self, ids: list[int], rid: str) -> None:
        self.emit("step", {"rid": rid, "step": 0, "emitted": ids})

    @rule(rid=st.sampled_from("abc"))
    def finish(self, rid: str) -> None:
        self.emit("finish", {"rid": rid, "reason": "stop", "emitted": 1, "steps": 1})

    @rule(name=st.sampled_from("xyz"), value=st.sampled_from([1, None, "text", object()]))
    def fact(self, name: str, value: Any) -> None:
        self.emit("fact", {"name": name, "value": value})

    @rule(count=st.sampled_from([1, 3, 1000, 0, -1, None]))
    def left_out(self, count: int | None) -> None:
        if len(self.pumped.emitter._ring) < RING:  # else it is lost, and what it would have stood for with it
            gap = {"of": "engine/0", "count": count, "reason": "rate_limited"}
            self.emit("gap", gap, max(1, count or 1))

    @rule(tap=st.sampled_from(["t1", "t2"]))
    def fault(self, tap: str) -> None:
        self.pumped.emitter.fault(tap, ValueError("x"))

    @rule()
    def pump(self) -> None:
        self.pumped.pump()
        self.everything.read(1 << 30)

    @rule(target=viewers)
    def join(self) -> Life:
        life = Life()
        life.connect(self.pumped)
        self.lives.append(life)
        return life

    @rule(life=viewers, limit=st.sampled_from([1, 50, 2000, 10_000, 1 << 30]))
    def read(self, life: Life, limit: int) -> None:
        if life.sock is not None:
            life.read(limit)

    @rule(life=viewers)
    def leave(self, life: Life) -> None:
        if life.sock is not None:
            life.leave()

    @rule(life=viewers, says_hello=st.booleans())
    def come_back(self, life: Life, says_hello: bool) -> None:
        """Without a hello everything that is kept is sent again, and must be left out."""
        if life.sock is None:
            life.connect(self.pumped, says_hello=says_hello)

    @rule(life=viewers, says_hello=st.booleans(), limit=st.sampled_from([2000, 1 << 30]))
    def read_and_reconnect(self, life: Life, says_hello: bool, limit: int) -> None:
        if life.sock is not None:
            self.pump()
            life.read(limit)
            life.leave()
            life.connect(self.pumped, says_hello=says_hello)

    @rule(life=consumes(viewers))
    def leave_for_good(self, life: Life) -> None:
        if life.sock is not None:
            life.leave()

    @invariant()
    def the_emitters_own_books_balance(self) -> None:
        c = self.pumped.emitter.counters
        assert c.emitted == c.received + c.dropped
        for v in c.viewers:
            assert c.emitted == v.before + v.sent + v.queued + v.dropped + v.behind, v
            assert all(n >= 0 for n in v[1:]), v
            if v.name != self.witness:
                assert v.queued_bytes <= QUEUE + 2 * self.pumped.emitter._keep.bytes + 4_000, "the queue is bounded"

    def teardown(self) -> None:
        """Everybody who is still there reads to the end: then nothing is missing that no gap covers."""
        emitter = self.pumped.emitter
        for _ in range(10_000):
            self.pumped.pump()
            connected = [life for life in self.lives if life.sock is not None]
            for life in connected:
                life.read(1 << 30)
            if len(emitter._ring) == 0 and all(
                life.books.emitted.get("engine/0") == emitter.counters.emitted for life in connected
            ):
                break
        else:
            raise AssertionError("a viewer that reads does not get to the end")
        emitted = emitter.counters.emitted
        reference = {r["seq"]: r for r in self.everything.books.records}
        dropped = self.everything.books.dropped.get("engine/0", 0)
        assert dropped == emitter.counters.dropped, "who reads everything lacks only what no viewer can have"
        inserted = [r for r in reference.values() if r["type"] == "tokens"]
        reported = [r for r in reference.values() if r["type"] == "fact" and r["name"] == "hook.fault"]
        assert emitted == self.seqs + len(inserted) + 2 * len(reported), "every call to emit has its seq, lost or not"
        for life in self.lives:
            for record in life.books.records:
                if record["type"] != "gap" or record["count"] is None:
                    assert record == reference[record["seq"]], "a viewer got another record than the others"
            if life.sock is not None:
                assert life.books.emitted["engine/0"] == emitted
                told = life.viewer.counters(emitted)
                assert (told.queued, told.behind, told.queued_bytes) == (0, 0, 0)
                life.leave()
        self.pumped.close()


ViewersAndTheirBooks.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestBooks = ViewersAndTheirBooks.TestCase
