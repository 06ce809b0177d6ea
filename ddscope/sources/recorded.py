"""Files of logs to records: `journalctl -o export` and `-o json`, text logs, what journalctl says on standard error.

Which of them a file is, is told by its content, never by its name. Entries of a journal get the source of the unit
that they are about, as a live journal's have: systemd's line on a unit is the unit's, and so is journald's notice that
it dropped messages of it. Nothing here raises on content; what cannot be read becomes a `gap`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from ddscope.model import Gap, Log, Record, Text
from ddscope.sources.errors import SourceError
from ddscope.sources.export import ExportError, ExportParser
from ddscope.sources.lines import LONGEST, as_text, priority_of, stamp_of

Kind = Literal["trace", "json", "export", "text", "empty"]
HEAD = 1 << 16
READ = 1 << 20
MAX_LINE = 64 << 20  # bytes of one entry of `-o json --all`
MAX_SOURCES = 4096
KERNEL = "kernel"
FIELDS = (
    "__CURSOR", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_HOSTNAME", "_TRANSPORT", "_SYSTEMD_UNIT",
    "_SYSTEMD_USER_UNIT", "UNIT", "USER_UNIT", "OBJECT_SYSTEMD_UNIT", "N_DROPPED", "MESSAGE", "_PID", "SYSLOG_PID",
    "PRIORITY", "SYSLOG_IDENTIFIER", "_COMM", "_LINE_BREAK",
)  # fmt: skip
CUT = ("line-max", "pid-change")

_EXPORT = re.compile(rb"(?:__|_)?[A-Z][A-Z0-9_]{0,63}(?:=|\n)")
_SHORT = re.compile(
    rb"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) (\S{1,255}) ([^\s\[:]{1,128})(?:\[(\d{1,10})\])?: (.*)",
    re.S,
)
_TELLING = re.compile(
    rb"^(?:Hint: You are|No journal files were|Traceback \(most|Decode batch|\d{4}-\d\d-\d\d[ T]\d\d:\d\d|"
    rb"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b)|\d\d:\d\d:\d\d", re.M
)  # fmt: skip
_JSON = msgspec.json.Decoder(dict[str, Any])
_Fields = dict[str, bytes | None]


def kind_of(path: Path) -> Kind:
    """What a file is. Raises SourceError, in one sentence, when it cannot be read or is none of these."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from None
    text = head.lstrip(b"\x1e\xef\xbb\xbf \t\r\n")
    if not text:
        return "empty"
    if text[:1] == b"{":
        return _kind_of_json(text, path)
    if _EXPORT.match(text) and b"\n" in text and (b"__CURSOR=" in text or b"MESSAGE" in text):
        return "export"
    if b"\0" in text or not _TELLING.search(text):
        raise SourceError(
            f"{path} is neither a trace, nor a journal (`journalctl -o export` or `-o json`), nor a text log."
        )
    return "text"


def _kind_of_json(text: bytes, path: Path) -> Kind:
    line, newline, _ = text.partition(b"\n")
    if line.strip() == b"{" and b"__CURSOR" in text:
        raise SourceError(f"{path} was written with `-o json-pretty`: write it with `-o json --all` or `-o export`.")
    try:
        first: Any = _JSON.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        first = {} if newline else None  # longer than what was looked at, or cut
    if first is None:
        return "json" if b'"__CURSOR"' in line or b'"MESSAGE"' in line else "trace"
    journal = any(name in first for name in ("__CURSOR", "__REALTIME_TIMESTAMP", "_BOOT_ID", "MESSAGE"))
    return "json" if journal and "type" not in first else "trace"


class Recorded:
    """Numbers the records of several files of logs, so that entries of one unit are one source.

    hosts: entries of another host than the first one seen get its name before the unit's, as with several hosts live.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._host: str | None = None

    def read(self, path: Path, kind: Kind) -> Iterator[Record]:
        """The records of a file, in its order. Raises SourceError when it cannot be read any more."""
        try:
            if kind == "json":
                yield from self._json(path)
            elif kind == "export":
                yield from self._export(path)
            elif kind == "text":
                yield from self._text(path)
            elif kind == "empty":
                yield self._gap(f"journal/{path.name}", int(path.stat().st_mtime * 1e6), 0, "empty")
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from None

    # -- the formats ---------------------------------------------------------------------------------------------------

    def _json(self, path: Path) -> Iterator[Record]:
        t, mono, src = 0, 0, f"journal/{path.name}"
        for line, whole in lines_of(path):
            line = line.strip(b"\x1e \t\r")
            if not line:
                continue
            try:
                entry = _JSON.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield self._gap(src, t, mono, "damaged" if whole else "cut_off")
                continue
            fields = {name: json_bytes(entry[name]) for name in FIELDS if name in entry}
            for record in self._entry(fields, t, mono):
                t, mono, src = record.t, record.mono, record.src
                yield record

    def _export(self, path: Path) -> Iterator[Record]:
        parser = ExportParser()
        t, mono, src = 0, 0, f"journal/{path.name}"
        with path.open("rb") as file:
            while True:
                data = file.read(READ)
                try:
                    entries = parser.feed(data) if data else parser.finish()
                except ExportError:
                    yield self._gap(src, t, mono, "damaged")
                    return
                for entry in entries:
                    fields: _Fields = {name.decode("ascii", "replace"): value for name, value in entry.items()}
                    for record in self._entry(fields, t, mono):
                        t, mono, src = record.t, record.mono, record.src
                        yield record
                if not data:
                    if parser.pending:
                        yield self._gap(src, t, mono, "cut_off")
                    return

    def _text(self, path: Path) -> Iterator[Record]:
        """A text log, or what `journalctl` prints by default. Lines without a time have that of the line before."""
        src, written = f"log/{path.name}", int(path.stat().st_mtime * 1e6)
        year = datetime.fromtimestamp(written / 1e6).year
        t = first_stamp(path, year) or written
        for line, _ in lines_of(path):
            line = line.rstrip(b"\r")
            short = _SHORT.fullmatch(line)
            ident: str | None = None
            pid: int | None = None
            t = line_stamp(line, year) or t
            if short is not None:
                ident, line = short[3].decode("ascii", "replace"), short[5]
                pid = int(short[4]) if short[4] else None
            for at in range(0, max(1, len(line)), LONGEST):
                piece = line[at : at + LONGEST]
                partial = True if at + LONGEST < len(line) else None
                yield Log(
                    src=src, seq=self._seq(src), t=t, mono=0, message=as_text(piece), unit=path.name, ident=ident,
                    pid=pid, priority=priority_of(piece) if at == 0 else None, partial=partial,
                )  # fmt: skip

    # -- an entry ------------------------------------------------------------------------------------------------------

    def _entry(self, fields: _Fields, t: int, mono: int) -> Iterator[Record]:
        """The records of a journal's entry: itself, and before it the gap that journald tells of."""
        t = number(fields.get("__REALTIME_TIMESTAMP")) or t
        mono = number(fields.get("__MONOTONIC_TIMESTAMP")) or mono
        src = f"journal/{self._prefix(fields)}{unit_of(fields)}"
        dropped = number(fields.get("N_DROPPED"))
        if dropped is not None and 0 < dropped < 2**31:
            seq = self._seq(src, dropped)
            yield Gap(src=src, seq=seq, t=t, mono=mono, of=src, count=dropped, reason="rate_limited")
        message = fields.get("MESSAGE")
        text: Text | None = None if message is None else as_text(message)
        yield Log(
            src=src,
            seq=self._seq(src),
            t=t,
            mono=mono,
            message=text,
            cursor=string(fields.get("__CURSOR")),
            unit=string(fields.get("_SYSTEMD_UNIT") or fields.get("UNIT")),
            pid=number(fields.get("_PID") or fields.get("SYSLOG_PID")),
            priority=number(fields.get("PRIORITY")),
            ident=string(fields.get("SYSLOG_IDENTIFIER") or fields.get("_COMM")),
            partial=True if string(fields.get("_LINE_BREAK")) in CUT else None,
        )

    def _prefix(self, fields: _Fields) -> str:
        host = string(fields.get("_HOSTNAME"))
        if host is None or host == self._host:
            return ""
        if self._host is None:
            self._host = host
            return ""
        return f"{host}/"

    def _seq(self, src: str, count: int = 1) -> int:
        """The next number of a source; of `count` numbers the last."""
        seq = self._next.get(src, 0) + count - 1
        if src in self._next or len(self._next) < MAX_SOURCES:
            self._next[src] = seq + 1
        return seq

    def _gap(self, src: str, t: int, mono: int, reason: str) -> Gap:
        return Gap(src=src, seq=self._seq(src), t=t, mono=mono, of=src, count=None, reason=reason)


def unit_of(fields: _Fields) -> str:
    """The unit that an entry is about; of the kernel's, and of those without a unit, a name that stands for it."""
    if "N_DROPPED" in fields and (unit := string(fields.get("OBJECT_SYSTEMD_UNIT"))):
        return unit
    if unit := string(fields.get("UNIT") or fields.get("USER_UNIT")):
        return unit
    if string(fields.get("_TRANSPORT")) == KERNEL:
        return KERNEL
    for name in ("_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT", "SYSLOG_IDENTIFIER", "_COMM"):
        if unit := string(fields.get(name)):
            return unit
    return "journal"


def lines_of(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Lines without their ends; False with a last one that has none, and with pieces of one that is too long."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            yield line.removesuffix(b"\n"), line.endswith(b"\n")


def json_bytes(value: Any) -> bytes | None:
    """A field of `-o json`: text, an array of bytes, or an array of several values, of which all are taken."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list):
        if all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 256 for item in value):
            return bytes(value)
        parts: Iterable[bytes | None] = (json_bytes(item) for item in value if not isinstance(item, dict))
        return b"\n".join(part for part in parts if part is not None)
    return None


def number(value: bytes | None) -> int | None:
    """A field that is a number that fits a record; None for what is none."""
    if value is None or not value.isdigit() or len(value) > 15 + (value[:1] < b"9"):
        return None
    return int(value)


def string(value: bytes | None) -> str | None:
    """A field as text; None for an empty one."""
    return value.decode("utf-8", "backslashreplace") if value else None


def first_stamp(path: Path, year: int) -> int | None:
    """The first time that a text log tells, for the lines before it."""
    with path.open("rb") as file:
        stamps = (line_stamp(line.rstrip(b"\r"), year) for line in file.read(HEAD).split(b"\n"))
        return next((stamp for stamp in stamps if stamp is not None), None)


def line_stamp(line: bytes, year: int) -> int | None:
    """µs since the epoch that a line of a text log begins with; None for one that has none."""
    stamp = stamp_of(line)
    short = _SHORT.fullmatch(line) if stamp is None else None
    return short_stamp(short[1], year) if short is not None else stamp


def short_stamp(stamp: bytes, year: int) -> int | None:
    """µs since the epoch of `Sep 21 14:10:36` in local time; it names no year."""
    text = stamp.decode("ascii")
    for form in ("%Y %b %d %H:%M:%S", "%Y %b %d %H:%M:%S.%f"):
        try:
            return int(datetime.strptime(f"{year} {text}", form).timestamp() * 1e6)
        except (ValueError, OverflowError, OSError):
            continue
    return None
