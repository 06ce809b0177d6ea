"""`logs.incomplete`: parts of a log are missing, so its silence proves nothing there.

journald says what it dropped in a line of its own unit, with a priority that filters leave out, and only when the unit
writes again; `journalctl` without permission prints nothing and ends with 0; `-o json` without `--all` turns long
messages into null. Each is said for what it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.journal import WANTS, Journal, JournalRule, is_log
from ddscope.diagnose.log_events import Decode
from ddscope.diagnose.system_log import NotAllowed, Suppressed
from ddscope.diagnose.words import excerpt, listed, plural, seconds, slug
from ddscope.model import Fact, Gap, Log, Record

MAX_SOURCES = 64
NOT_ALLOWED = "not_allowed"
EMPTY = "empty"


@dataclass(slots=True)
class _Holes:
    """What is missing of one log."""

    name: str
    dropped: int = 0
    uncounted: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    nulls: int = 0
    null_evidence: Evidence | None = None
    before: tuple[int, Decode | None] = (0, None)  # t of the line before the hole, the last batch before it
    span: int = 0  # µs, all holes that journald told of
    tokens: list[str] = field(default_factory=list)
    decode: Decode | None = None  # the last batch
    seen: int = 0  # t of the last line of the service itself
    open: bool = False  # a hole whose other side has not been seen yet
    noticed: tuple[int, int] = (-1, -1)  # count and t of the last gap of journald's

    def tell(self, evidence: Evidence, reason: str, count: int | None) -> None:
        self.dropped += max(0, count or 0)
        self.uncounted += count is None
        self.reasons[reason] = None
        if len(self.evidence) < MAX_EVIDENCE:
            self.evidence.append(evidence)


WORTH_SAYING = 100_000  # µs; a shorter hole would read 0.0 s


def _of_unit(src: str, unit: str) -> bool:
    """Whether a notice about a unit is about this log: that of another unit only stands in it."""
    own = src.rpartition("/")[2]
    return not own.endswith(".service") or unit.rpartition("/")[2] == own


class LogsIncomplete(JournalRule):
    """Counts what is missing of each log, and looks at what the server did meanwhile."""

    id = "logs.incomplete"
    wants = (*WANTS, Fact)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._logs: dict[str, _Holes] = {}
        self._hints: list[Evidence] = []
        self._empty: list[Evidence] = []

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if isinstance(record, Log):
            self._log(record, index)
        elif isinstance(record, Gap) and is_log(record.of):
            self._gap(record, index)

    def _log(self, record: Log, index: int | None) -> None:
        system = self.journal.system
        if isinstance(system, NotAllowed):
            if len(self._hints) < MAX_EVIDENCE:
                self._hints.append(evidence_of(record, index, excerpt(system.text)))
            return
        if isinstance(system, Suppressed):
            if not _of_unit(record.src, system.unit):
                return
            holes = self._of(record.src)
            if holes.noticed[0] != system.count:  # no gap was told for it
                self._noticed(holes, system.count, record, index)
            return
        if record.message is None:
            holes = self._of(record.src)
            holes.nulls += 1
            if holes.null_evidence is None:
                holes.null_evidence = evidence_of(record, index, "an entry without its message")
            return
        if self.journal.line is not None:
            self._line(record)

    def _line(self, record: Log) -> None:
        holes = self._logs.get(record.src)
        event = self.journal.line.event if self.journal.line is not None else None
        decode = event if isinstance(event, Decode) else None
        if holes is None:
            holes = self._of(record.src)
        holes.seen = record.t
        if decode is None:
            return
        if holes.open:
            holes.open = False
            earlier = holes.before[1]
            if earlier is not None and earlier.tokens is not None and decode.tokens is not None:
                told = (
                    f"from {earlier.tokens:,} to {decode.tokens:,} tokens in the cache, {decode.running or 0} running"
                )
                if decode.tokens > earlier.tokens and len(holes.tokens) < 4:
                    holes.tokens.append(told)
        holes.decode = decode

    def _gap(self, gap: Gap, index: int | None) -> None:
        holes = self._of(gap.of)
        if gap.reason == EMPTY:
            self._empty.append(evidence_of(gap, index, f"{holes.name} holds no entry"))
        elif gap.reason == NOT_ALLOWED:
            self._hints.append(evidence_of(gap, index, f"{holes.name} may not be read"))
        elif gap.reason == "rate_limited" and gap.count is not None:
            self._noticed(holes, gap.count, gap, index)
        else:
            missing = "an unknown number of entries" if gap.count is None else plural(gap.count, "entry", "entries")
            holes.tell(evidence_of(gap, index, f"{missing} missing ({gap.reason})"), gap.reason, gap.count)

    def _noticed(self, holes: _Holes, count: int, record: Record, index: int | None) -> None:
        """journald's notice: the hole is between the last line before it and the notice."""
        since = record.t - holes.seen if holes.seen and record.t > holes.seen else 0
        text = f"journald dropped {plural(count, 'message')} of {holes.name}" + (
            f", {seconds(since)}" if since >= WORTH_SAYING else ""
        )
        holes.before, holes.open, holes.noticed = (holes.seen, holes.decode), True, (count, record.t)
        holes.span += since
        holes.tell(evidence_of(record, index, text), "rate_limited", count)

    def _of(self, src: str) -> _Holes:
        holes = self._logs.get(src)
        if holes is None:
            holes = _Holes(excerpt(src.partition("/")[2] or src, 80))
            if len(self._logs) < MAX_SOURCES:
                self._logs[src] = holes
        return holes

    def findings(self) -> Iterable[Finding]:
        if self._hints:
            yield self._not_allowed()
        elif self._empty:
            yield self._nothing()
        for holes in self._logs.values():
            if holes.reasons:
                yield self._finding(holes)
            if holes.nulls:
                yield self._null(holes)

    def _finding(self, holes: _Holes) -> Finding:
        limited = "rate_limited" in holes.reasons
        missing = plural(holes.dropped, "entry", "entries") if holes.dropped else "Entries"
        if holes.dropped and holes.uncounted:
            missing += " or more"
        span = f", over {seconds(holes.span)}" if limited and holes.span >= WORTH_SAYING else ""
        working = f" Meanwhile the server worked: {holes.tokens[0]}." if holes.tokens else ""
        next_ = [
            "Conclude nothing from the silence of this log there; attach a hook, whose records do not pass journald."
        ]
        if limited:
            next_.append(
                "Raise LogRateLimitBurst of the unit (journald multiplies it by the free disk space), or log less."
            )
        return Finding(
            id=self.id,
            kind="rate_limited" if limited else slug(next(iter(holes.reasons))),
            severity="warning",
            confidence=0.98,
            title=f"{missing} of the log of {holes.name} {'is' if missing.startswith('1 ') else 'are'} missing{span}.",
            detail=("journald dropped them: the service wrote more than its rate limit allows." if limited
                    else f"Why: {listed(holes.reasons)}.") + working,
            evidence=tuple(holes.evidence),
            next=tuple(next_),
            ruled_out=(RuledOut("a server that stood still", working.strip()),) if working else (),
        )  # fmt: skip

    def _null(self, holes: _Holes) -> Finding:
        return Finding(
            id=self.id,
            kind="null_message",
            severity="info",
            confidence=0.98,
            title=f"{plural(holes.nulls, 'entry', 'entries')} of the log of {holes.name} came without the message.",
            detail="`journalctl -o json` leaves out messages above 4,096 bytes: the longest ones, such as arguments.",
            evidence=() if holes.null_evidence is None else (holes.null_evidence,),
            next=("Write the journal with `-o export`, or `-o json --all`.",),
        )

    def _not_allowed(self) -> Finding:
        return Finding(
            id=self.id,
            kind="permission",
            severity="warning",
            confidence=0.95,
            title="This user may not read the journal of the system: what is not shown may well be there.",
            detail="journalctl ends with status 0 all the same, and says so only on its standard error.",
            evidence=tuple((*self._hints, *self._empty)[:MAX_EVIDENCE]),
            next=("Join the group systemd-journal (or adm), or run it as root, and read the journal again.",),
        )

    def _nothing(self) -> Finding:
        return Finding(
            id=self.id,
            kind="empty",
            severity="warning",
            confidence=0.7,
            title="The log holds no entry at all, which says nothing about the service.",
            detail="journalctl prints nothing, with status 0, where it lacks the permission or knows no such unit.",
            evidence=tuple(self._empty[:MAX_EVIDENCE]),
            next=("Run it again and read its standard error; check the unit's name with `systemctl list-units`.",),
        )
