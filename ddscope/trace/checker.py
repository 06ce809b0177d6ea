"""`verify`: every invariant of docs/trace-format.md on every line of a file, one sentence for each that is broken.

It never stops at the first. What is inside one step is `stepcheck`; whether the run was any good is diagnosis.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ddscope.model import Finish, Footer, Gap, Header, Log, Raw64, Record, Request, Step, Text, Tokens
from ddscope.trace import stepcheck
from ddscope.trace.codec import INT_LIMIT, UNREADABLE, Damaged, Unknown, decode, encode
from ddscope.trace.errors import NewerFormatError, TraceError
from ddscope.trace.lines import LongLine, each_line, open_for_reading
from ddscope.trace.opening import parse_header, read_header
from ddscope.trace.ranks import rank_of
from ddscope.trace.report import Report
from ddscope.trace.sequence import Sequences, footer_problems

_LONG_NUMBER = re.compile(rb"\d{16}")
_ENDED_EARLY = ("abort", "error")  # their last step may never have been committed


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Report:
    """Check a trace file from end to end. progress: called now and then with (bytes checked, bytes of the file).

    Raises TraceError when the file cannot be read, needs a newer reader, or holds no record at all; everything else,
    a header that cannot be read included, is a problem in the report. A file without a footer is not a problem: a
    recording that runs has none yet.
    """
    where = Path(path)
    fd = open_for_reading(where)
    try:
        return _Verifier(where, fd).run(progress)
    finally:
        os.close(fd)


class _Verifier:
    """The state of one pass over a file."""

    def __init__(self, path: Path, fd: int) -> None:
        self.name = str(path)
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.report = Report(path=self.name, size=self.size)
        self.sequences = Sequences()
        self.hash = hashlib.sha256()
        self.told: set[int] = set()  # token ids whose text is known
        self.redacted: set[str] = set()  # sources that leave texts out on purpose
        self.texts_lost = 0
        self.never_told = 0
        # By source and rid: ranks that run one model together tell the same requests, each in its own order.
        self.requests: dict[tuple[str, str], Request] = {}
        self.steps: dict[tuple[str, str], _Progress] = {}
        self.untold: dict[int, tuple[int, int]] = {}  # token id of another rank → byte and record that used it first
        self.offset = 0
        self.number = 0
        self.end = 0  # of the last whole line

    def run(self, progress: Callable[[int, int], None] | None) -> Report:
        report = self.report
        self._open()
        for offset, line in each_line(self.fd, self.size):
            self.offset = offset
            self._line(line)
            self.number += 1
            if progress is not None and self.number % 1000 == 0:
                progress(self.offset, self.size)
        report.records = self.number
        self._end()
        if progress is not None:
            progress(self.size, self.size)
        return report

    def _open(self) -> None:
        """Judge the first line: refuse what is no trace, go on where only the header is hurt."""
        try:
            read_header(self.fd, self.name)
        except NewerFormatError:
            raise
        except TraceError as error:
            if not self._any_record():
                raise
            self.report.add(0, 0, f"the first line is no header that can be read ({error})")

    def _any_record(self) -> bool:
        return any(
            not isinstance(line, LongLine) and not isinstance(decode(line), Damaged)
            for _, line in each_line(self.fd, self.size)
        )

    def _say(self, text: str) -> None:
        self.report.add(self.offset, self.number, text)

    def _line(self, line: bytes | LongLine) -> None:
        if isinstance(line, LongLine):
            self._say(line.reason)
            self.report.damaged += 1
            self.report.finished = False
            self.sequences.take("", "", 0)
            self._hash_long(line.length + 1)
            self.end = self.offset + line.length + 1
            return
        record = decode(line)
        self.report.finished = isinstance(record, Footer)
        if isinstance(record, Footer):
            self._footer(record)
        self._count(record, line)
        self.hash.update(line)
        self.hash.update(b"\n")
        self.end = self.offset + len(line) + 1

    def _hash_long(self, length: int) -> None:
        done = 0
        while done < length and (data := os.pread(self.fd, min(1 << 20, length - done), self.offset + done)):
            self.hash.update(data)
            done += len(data)

    def _count(self, record: Record | Unknown, line: bytes) -> None:
        problem = self.sequences.observe(record)
        if problem is not None:
            self._say(problem)
        if isinstance(record, Damaged):
            self.report.damaged += 1
            self._say(f"not a record: {record.reason}")
            return
        if _LONG_NUMBER.search(line) is not None:
            self._numbers(line)
        if isinstance(record, Unknown):
            self.report.unknown += 1
            return
        check = _CHECKS.get(type(record))
        if check is not None:
            check(self, record)

    def _numbers(self, line: bytes) -> None:
        """Integers that not every reader can hold. Only asked where a long run of digits makes one possible."""
        try:
            value = msgspec.json.decode(line)
        except UNREADABLE as error:
            self._say(f"a value that not every reader can hold: {error}")
            return
        if _has_large_integer(value):
            self._say("an integer is not below 2^53, so not every reader gets it exactly")

    def _header(self, header: Header) -> None:
        if header.engine is not None and header.engine.config.get("redacted"):
            self.redacted.add(header.src)
        if self.number == 0:
            return
        try:
            parse_header(encode(header), self.name)
        except TraceError as error:
            self._say(f"a later header cannot be accepted: {error}")

    def _tokens(self, tokens: Tokens) -> None:
        if len(tokens.ids) != len(tokens.text):
            self._say(f"tokens has {len(tokens.ids)} ids but {len(tokens.text)} texts")
        self.told.update(tokens.ids)
        self._base64(tokens.text)

    def _base64(self, texts: Iterable[Text | None]) -> None:
        for text in texts:
            if isinstance(text, Raw64):
                try:
                    base64.b64decode(text.b64, validate=True)
                except ValueError:
                    self._say("a b64 text is not base64")
                    return

    def _request(self, request: Request) -> None:
        if request.prompt_ids is not None:
            if len(request.prompt_ids) != request.prompt_len:
                self._say(f"prompt_ids has {len(request.prompt_ids)} ids, prompt_len is {request.prompt_len}")
            self._texts(request.src, set(request.prompt_ids))
        self.requests[request.src, request.rid] = request
        self.steps[request.src, request.rid] = _Progress()

    def _step(self, step: Step) -> None:
        rid, key = step.rid, (step.src, step.rid)
        for text in stepcheck.step_problems(step):
            self._say(f"step {step.step} of {rid}: {text}")
        state = self.steps.setdefault(key, _Progress(whole=False))
        before = state.last
        if before is not None and step.step == before.step + 1:
            for text in stepcheck.follow_problems(before, step):
                self._say(f"step {step.step} of {rid}: {text}")
        if before is None and step.step == 0 and key in self.requests:
            for text in stepcheck.first_problems(self.requests[key], step):
                self._say(f"step 0 of {rid}: {text}")
        state.take(step)
        self._texts(step.src, stepcheck.token_ids(step))

    def _texts(self, src: str, ids: set[int]) -> None:
        """Every id must have been told. After a loss the telling may be what was lost: that is a note."""
        missing = ids - self.told
        if not missing or src in self.redacted:
            return
        lost = self.sequences.lost(src)
        if rank_of(src) and not lost:  # the first rank may tell the texts, and its records come by another socket
            for token in missing:
                self.untold.setdefault(token, (self.offset, self.number))
            return
        self.told |= missing  # one complaint an id
        if lost:
            self.texts_lost += len(missing)
            return
        if not self.sequences.types["tokens"]:
            self.never_told += len(missing)
            return
        shown = ", ".join(map(str, sorted(missing)[:3])) + (" …" if len(missing) > 3 else "")
        what = "token id has" if len(missing) == 1 else "token ids have"
        self._say(f"{len(missing):,} {what} no text in any `tokens` record so far: {shown}")

    def _finish(self, finish: Finish) -> None:
        state = self.steps.pop((finish.src, finish.rid), None)
        self.requests.pop((finish.src, finish.rid), None)
        if state is None or not state.whole or self.sequences.lost(finish.src):
            return
        if finish.reason in _ENDED_EARLY:
            return
        if finish.steps != state.steps:
            self._say(f"finish of {finish.rid} counts {finish.steps} steps, {state.steps} are here")
        elif state.emitted is not None and state.steps and finish.emitted != state.emitted + 1:
            self._say(
                f"finish of {finish.rid} counts {finish.emitted} emitted tokens; its steps emitted {state.emitted}, "
                f"and the first root makes {state.emitted + 1}"
            )

    def _log(self, log: Log) -> None:
        self._base64([log.message])

    def _gap(self, gap: Gap) -> None:
        if gap.count is not None and gap.of != gap.src:
            self._say(f"a gap of {gap.of} with a count must have src {gap.of}, it has {gap.src}")

    def _footer(self, footer: Footer) -> None:
        """Called before the footer itself is counted and hashed: it speaks of what precedes it."""
        for text in footer_problems(footer, self.hash.hexdigest(), self.sequences):
            self._say(text)

    def _end(self) -> None:
        report = self.report
        if self.end < self.size:
            text = f"the file ends inside record {self.number:,} (cut at byte {self.size:,}): it is lost"
            report.add(self.end, self.number, text)
            report.finished = False
        for token in [token for token in self.untold if token in self.told]:
            del self.untold[token]
        if self.untold and not self.sequences.types["tokens"]:
            self.never_told += len(self.untold)
        elif self.untold:
            offset, number = min(self.untold.values())
            text = f"{len(self.untold):,} token ids of other ranks have no text in any `tokens` record"
            report.add(offset, number, text)
        if self.never_told:
            text = f"no `tokens` record tells the text of {self.never_told:,} token ids"
            if self.sequences.types["tokens"]:
                text = f"{self.never_told:,} token ids are used before the first `tokens` record"
            report.add(0, None, text)
        if not report.finished:
            report.notes.append("There is no footer: the recording still runs, or was not closed.")
        if report.unknown:
            report.notes.append(f"{report.unknown:,} records are of types that this version does not know.")
        if self.texts_lost:
            report.notes.append(f"{self.texts_lost:,} token ids have no text: their `tokens` records may lie in a gap.")


class _Progress:
    """What was seen of one request's steps. whole: all of them were, from step 0 on."""

    def __init__(self, whole: bool = True) -> None:
        self.whole = whole
        self.steps = 0
        self.emitted: int | None = 0
        self.last: Step | None = None

    def take(self, step: Step) -> None:
        if step.step != self.steps:
            self.whole = False
        self.steps += 1
        if step.emitted is None:
            self.emitted = None
        elif self.emitted is not None:
            self.emitted += len(step.emitted)
        self.last = step


def _has_large_integer(value: object) -> bool:
    """Whether an integer of 2^53 or beyond is anywhere in a JSON value."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, int):
            if abs(one) >= INT_LIMIT:
                return True
        elif isinstance(one, dict):
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)
    return False


_CHECKS: dict[type[Record], Callable[[_Verifier, Any], None]] = {
    Header: _Verifier._header,
    Tokens: _Verifier._tokens,
    Request: _Verifier._request,
    Step: _Verifier._step,
    Finish: _Verifier._finish,
    Log: _Verifier._log,
    Gap: _Verifier._gap,
}
