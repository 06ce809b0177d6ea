"""The stream of one source: gives records their seq, puts `tokens` and gaps in place, offers every line to every feed.

No threads here: the emitter's writer thread drives it, and so can a test. `lock` guards the books.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ddscope_hooks.emit.encoder import Encoder
from ddscope_hooks.emit.feed import Feed, FeedCounters
from ddscope_hooks.emit.files import FileFeed
from ddscope_hooks.emit.keep import KEPT, Keep
from ddscope_hooks.emit.ring import Entry, Later, Lost
from ddscope_hooks.emit.tokens import TokenText

GIL_SLICE_S = 100e-6
GIL_OFFER_S = 50e-6
"""After a slice of work the writer sleeps this long: a hot thread that waits for the interpreter's lock needs that time
to wake up and take it, and would else wait for the interpreter's switch interval, 5 ms."""
BURST = 256
"""With more records at once than this, losing some is the greater harm: the writer works without a pause."""


class StreamCounters(NamedTuple):
    """emitted: seqs given = received + dropped; see `emitter.Counters`."""

    emitted: int
    dropped: int
    feeds: tuple[FeedCounters, ...]


class Stream:
    """Numbers, encodes once, fans out. `fault` and `emit` put what it has to say itself into the ring, like anybody."""

    def __init__(
        self,
        encoder: Encoder,
        keep: Keep,
        tokens: TokenText,
        fault: Callable[[str, BaseException], bool],
        emit: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.lock = threading.Lock()
        self.seq = 0
        self.dropped = 0
        self._slice_end = 0.0
        self._bytes = 0  # of lines, since whoever counts set it to 0
        self.feeds: list[Feed] = []
        self._encoder = encoder
        self._keep = keep
        self._tokens = tokens
        self._fault = fault
        self._emit = emit
        self._joining: deque[Feed] = deque()

    def begin(self, header: dict[str, Any]) -> bytes:
        """Write the header, seq 0. Returns its line. Raises what the encoder raises."""
        return self._record("header", header, *now())

    def join(self, feed: Feed) -> None:
        """One more consumer, from any thread; it is served from the next `run` on."""
        self._joining.append(feed)

    @property
    def watched(self) -> bool:
        """Whether there is any consumer, or one about to be served."""
        return bool(self.feeds or self._joining)

    def sent(self) -> bool:
        """Whether nothing is owed to or queued for anybody."""
        with self.lock:
            return all(feed.dead or (feed.owed >= self.seq and not feed.queued) for feed in self.feeds)

    def leave(self, path: str) -> bool:
        """Finish the file at `path`, from any thread. False when it is none of the consumers."""
        t, mono = now()
        with self.lock:
            for feed in (*self.feeds, *self._joining):
                if isinstance(feed, FileFeed) and feed.path == path and not feed.dead:
                    feed.finish(self.seq, t, mono)
                    return True
        return False

    def run(self, entries: list[Entry | Lost], *, hurry: bool = False) -> None:
        """Number and hand out what came off the ring. hurry: without consideration for hot threads."""
        while self._joining:
            with self.lock:
                self.feeds.append(self._joining.popleft())
        epoch = time.time_ns() - time.monotonic_ns()  # one clock on the hot thread is enough
        self._slice_end = float("inf") if hurry or len(entries) > BURST else 0.0
        for entry in entries:
            with self.lock:
                self._entry(entry, epoch)
            self._offer()

    def _offer(self) -> None:
        """Let a hot thread have the interpreter, once the slice of work is over."""
        if time.perf_counter() > self._slice_end:
            time.sleep(GIL_OFFER_S)
            self._slice_end = time.perf_counter() + GIL_SLICE_S

    def flush(self) -> list[Feed]:
        """Tell what is owed, send what is queued, forget the dead. Returns the feeds that cannot send more now."""
        t, mono = now()
        with self.lock:
            waiting = []
            for feed in self.feeds:
                feed.settle(self.seq, t, mono)
                if not feed.flush():
                    waiting.append(feed)
                if isinstance(feed, FileFeed) and (said := feed.new_error()) is not None:
                    self._emit("fact", {"name": "emit.file", "value": said})
            self.feeds = [feed for feed in self.feeds if not feed.dead]
        return waiting

    def end(self) -> None:
        """Finish the files. Sockets are closed by whoever reads them."""
        t, mono = now()
        with self.lock:
            for feed in self.feeds:
                if isinstance(feed, FileFeed):
                    feed.finish(self.seq, t, mono)

    def counters(self) -> StreamCounters:
        """A coherent snapshot."""
        with self.lock:
            return StreamCounters(self.seq, self.dropped, tuple(feed.counters(self.seq) for feed in self.feeds))

    def after_fork(self) -> None:
        """In a child: the lock may be held by a thread that does not exist here; files belong to the parent."""
        self.lock = threading.Lock()
        for feed in (*self.feeds, *self._joining):
            if isinstance(feed, FileFeed):
                feed.close()
        self.feeds = []

    def _entry(self, entry: Entry | Lost, epoch: int) -> None:
        if isinstance(entry, Lost):
            self._missing(entry.count, "ring_full", (entry.mono + epoch) // 1000, entry.mono // 1000)
            return
        type, fields, t, mono = entry[0], entry[1], (entry[2] + epoch) // 1000, entry[2] // 1000
        if isinstance(fields, Later):
            self._later(fields, t, mono)
            return
        self._one(type, fields, t, mono)

    def _later(self, later: Later, t: int, mono: int) -> None:
        """Records that are made here. What is not made of the announced count is a counted loss, in its place."""
        if not self.feeds:
            self.seq += later.count
            return
        self._bytes, made, lines = 0, 0, list[bytes]()
        try:
            told = None if later.ids is None else self._tokens.missing(later.ids)
            if told is not None:
                self._record("tokens", told, t, mono)
            for type, fields in later.records():
                if made == later.count:
                    raise ValueError(f"more than the {later.count} records announced")
                made += 1
                if later.ids is None or type in KEPT or not self._line(type, dict(fields), t, mono, lines):
                    self._hand_out(lines, t, mono)
                    self._one(type, dict(fields), t, mono)
                self._offer()
        except Exception as error:
            self._fault("later", error)
        self._hand_out(lines, t, mono)
        if made < later.count:
            self._missing(later.count - made, "hook_fault", t, mono)
        if later.wrote is not None:
            later.wrote(self._bytes)

    def _line(self, type: str, fields: dict[str, Any], t: int, mono: int, lines: list[bytes]) -> bool:
        """Add the line of one record to those that are handed out together. False when it cannot be encoded."""
        try:
            line = self._encoder.line(type, self.seq, t, mono, fields)
        except Exception:
            return False
        lines.append(line)
        self.seq += 1
        self._bytes += len(line)
        return True

    def _hand_out(self, lines: list[bytes], t: int, mono: int) -> None:
        if lines:
            for feed in self.feeds:
                feed.offer_all(self.seq - len(lines), lines, t, mono)
            lines.clear()

    def _one(self, type: str, fields: dict[str, Any], t: int, mono: int) -> None:
        try:
            if type == "gap" and fields.get("of") == self._encoder.src and fields.get("count") is not None:
                # A tap that leaves records out on purpose says so itself: the gap takes the seqs of what it stands for.
                self._missing(_positive(fields["count"]), str(fields.get("reason", "rate_limited")), t, mono)
            elif self.feeds or type in KEPT:
                told = self._tokens.untold(type, fields)
                if told is not None:
                    self._record("tokens", told, t, mono)
                self._record(type, fields, t, mono)
            else:
                self.seq += 1  # nobody watches: whoever comes finds it under `joined_late`
        except Exception as error:  # one record that cannot be encoded is a counted loss of one, in its place
            self._missing(1, "hook_fault", t, mono)
            self._fault(f"encode {type}", error)

    def _record(self, type: str, fields: dict[str, Any], t: int, mono: int) -> bytes:
        seq = self.seq
        line = self._encoder.line(type, seq, t, mono, fields)
        self.seq = seq + 1
        self._bytes += len(line)
        for feed in self.feeds:
            feed.offer(seq, seq, line, False, t, mono)
        # Only now: a feed that has to catch up before it takes the end of a request still needs its beginning.
        self._keep.note(type, fields, seq, line)
        return line

    def _missing(self, count: int, reason: str, t: int, mono: int) -> None:
        first, last = self.seq, self.seq + count - 1
        line = self._encoder.gap(last, t, mono, count, reason)
        self.seq = last + 1
        self.dropped += count
        for feed in self.feeds:
            feed.offer(first, last, line, True, t, mono)


def now() -> tuple[int, int]:
    """(µs since the epoch, monotonic µs)."""
    return time.time_ns() // 1000, time.monotonic_ns() // 1000


def _positive(count: Any) -> int:
    number = int(count)
    if not 0 < number < 2**31:
        raise ValueError(f"a gap of {number} records")
    return number
