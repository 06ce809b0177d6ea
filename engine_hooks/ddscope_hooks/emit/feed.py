"""The books of one consumer: which seqs it was given, which are covered by gaps, which it is still owed.

A feed knows no thread and no ring. Where the bytes go is a subclass's `_put`: `sockets.Viewer`, `files.FileFeed`.
"""

from __future__ import annotations

from typing import NamedTuple

from ddscope_hooks.emit.encoder import Encoder
from ddscope_hooks.emit.keep import Keep


class FeedCounters(NamedTuple):
    """emitted (of the emitter) = before + sent + queued + dropped + behind, at every moment.

    before: seqs that an earlier connection of the same viewer covered. sent: records handed to the kernel.
    queued: records waiting in its queue. dropped: records covered by gaps that were queued or sent.
    behind: seqs it will be given next, as records or under a gap.
    """

    name: str
    before: int
    sent: int
    queued: int
    dropped: int
    behind: int
    queued_bytes: int


class Feed:
    """One consumer. `owed` is the next seq that it has not been told about."""

    def __init__(self, name: str, encoder: Encoder, keep: Keep, *, owed: int = 0, reason: str = "joined_late") -> None:
        """owed: 0 for a newcomer. reason: why it lacks what was before; later gaps say `ring_full`."""
        self.name = name
        self.before = self.owed = owed
        self.sent = 0
        self.queued = 0
        self.dropped = 0
        self.dead = False
        self._encoder = encoder
        self._keep = keep
        self._reason = reason

    def offer(self, first: int, last: int, line: bytes, is_gap: bool, t: int, mono: int) -> None:
        """The next line of the stream, which stands for seqs first … last: taken, or left to a later gap."""
        if self.dead or not self._accepts(len(line)):
            return
        if self.owed < first and not self._catch_up(first - 1, t, mono):
            return
        if self._put(line, 0 if is_gap else 1):
            self.owed = last + 1
            self._reason = "ring_full"
            if is_gap:
                self.dropped += last + 1 - first

    def offer_all(self, first: int, lines: list[bytes], t: int, mono: int) -> None:
        """Lines of records with seqs from `first` on, at once."""
        for seq, line in enumerate(lines, first):
            self.offer(seq, seq, line, False, t, mono)

    def settle(self, emitted: int, t: int, mono: int) -> None:
        """Tell what is missing as soon as there is room, not only with the next record."""
        if not self.dead and self.owed < emitted and self._accepts(0):
            self._catch_up(emitted - 1, t, mono)

    def counters(self, emitted: int) -> FeedCounters:
        """The books against the emitter's count."""
        return FeedCounters(
            self.name, self.before, self.sent, self.queued, self.dropped, emitted - self.owed, self.queued_bytes
        )

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return 0

    def flush(self) -> bool:
        """Hand on what is queued, without waiting. True when nothing is left."""
        return True

    def close(self) -> None:
        """Let go of the other side."""
        self.dead = True

    def _accepts(self, size: int) -> bool:
        raise NotImplementedError

    def _put(self, line: bytes, records: int) -> bool:
        raise NotImplementedError

    def _catch_up(self, last: int, t: int, mono: int) -> bool:
        """Cover owed … last: the kept lines among them, gaps for the rest. False when that could not be finished."""
        for seq, line in self._keep.between(self.owed, last):
            if not (self._gap_to(seq - 1, t, mono) and self._put(line, 1)):
                return False
            self.owed = seq + 1
        if not self._gap_to(last, t, mono):
            return False
        self._reason = "ring_full"
        return True

    def _gap_to(self, last: int, t: int, mono: int) -> bool:
        count = last + 1 - self.owed
        if count <= 0:
            return True
        if not self._put(self._encoder.gap(last, t, mono, count, self._reason), 0):
            return False
        self.dropped += count
        self.owed = last + 1
        return True
