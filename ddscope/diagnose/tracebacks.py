"""Tracebacks in a log, line by line and process by process: what they end in, and libraries that did not load.

A journal holds a traceback as many entries, those of other processes in between. What an exception means for the server
is not decided here: the same block is noise in a process that goes on and the cause in one that ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddscope.diagnose.base import Evidence, evidence_of
from ddscope.diagnose.words import excerpt
from ddscope.model import Record

MAX_LINES = 400  # of one message that has several, and of one traceback
MAX_READERS = 64  # processes
MAX_TROUBLES = 16  # libraries
MAX_CAUSES = 16
FIRST, LAST = 4, 4  # exceptions that are kept

_FINAL = re.compile(
    r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception|Interrupt|Exit|OutOfMemory|Timeout|Warning))"
    r"(?:: ?(.*))?"
)
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_BEGIN = "Traceback (most recent call last)"
_BIND = "ddress already in use"  # said by the web server itself, without a traceback
_IGNORE = "Ignore import error"
_IGNORED = re.compile(r"Ignore import error when loading ([\w.]{1,200}): ?(.{0,400})")
_CAUSE = re.compile(r"\b((?:OSError|ImportError|RuntimeError): .{1,400})")
_NAMES = (
    re.compile(r"[Cc]ould not load lib(\w{1,60})"),
    re.compile(r"No module named '([\w.]{1,120})'"),
    re.compile(r"cannot import name '\w{1,80}' from '([\w.]{1,120})'"),
    re.compile(r"Could not load any (\w{1,60})"),
    re.compile(r"(\S{1,200}\.so[\w.]{0,20}): (?:cannot open shared object|undefined symbol)"),
)
_FILE = re.compile(r"(lib[\w+.-]{1,80}?\.so(?:\.\d{1,6}){0,4}): cannot open shared object file")
_LOADING = ("cannot open shared object file", "undefined symbol", "ould not load lib", "Could not load any ")
_FFMPEG = ("libavutil", "libavcodec", "libavformat", "libavfilter", "libavdevice", "libswresample", "libswscale")


@dataclass(slots=True)
class Raised:
    """An exception that a traceback ends in. fatal: the line before said that it ends the process."""

    text: str
    t: int
    pid: int | None
    evidence: Evidence
    fatal: bool = False
    trouble: Trouble | None = None


@dataclass(slots=True)
class Trouble:
    """A library or module that did not load. causes: what was found inside; ignored: the server said it goes on."""

    library: str
    headline: str
    t: int
    pid: int | None
    evidence: list[Evidence]
    causes: list[str] = field(default_factory=list)
    ignored: bool = False
    seen: int = 1
    loud: bool = False  # it was written as a traceback, not only in the line that says that it is ignored

    def cause(self) -> str:
        """The innermost reason. FFmpeg is tried version after version, so only another file than its own is one."""
        real = [cause for cause in self.causes if not is_ffmpeg(cause)]
        if real:
            return max(dict.fromkeys(real), key=real.count)
        return self.causes[0] if self.causes else self.headline

    def missing(self) -> str | None:
        """The file that the innermost reason could not open."""
        return missing_file(self.cause())


def missing_file(text: str) -> str | None:
    """`libnvrtc.so.13` of `libnvrtc.so.13: cannot open shared object file`."""
    found = _FILE.search(text[:2000])
    return found[1] if found else None


def is_ffmpeg(text: str) -> bool:
    """Whether a message speaks of a file of FFmpeg's own."""
    return any(name in text for name in _FFMPEG)


def is_loading(text: str) -> bool:
    """Whether an exception is about something that could not be imported or loaded."""
    return text.startswith(("ImportError", "ModuleNotFoundError")) or any(mark in text for mark in _LOADING)


def library_of(text: str) -> str:
    """What could not be loaded, as short as it has a name."""
    for pattern in _NAMES:
        found = pattern.search(text[:2000])
        if found:
            return found[1].rpartition("/")[2]
    return "a library"


@dataclass(slots=True)
class _Reader:
    """One process: whether a traceback or a block of causes is open."""

    lines: int = 0  # of the open traceback, 0: none
    fatal: bool = False
    block: Trouble | None = None
    chained: list[str] = field(default_factory=list)
    last: Raised | None = None


class Tracebacks:
    """The exceptions and troubles of one run of a server."""

    def __init__(self) -> None:
        self.troubles: dict[str, Trouble] = {}
        self.raised: list[Raised] = []
        self.count = 0
        self._readers: dict[int | None, _Reader] = {}

    def feed(self, text: str, pid: int | None, record: Record, index: int | None) -> None:
        """A message without its prefix."""
        reader = self._readers.get(pid)
        if reader is None:
            if not (_BEGIN in text or _IGNORE in text or _BIND in text):
                return
            if len(self._readers) >= MAX_READERS:
                self._readers.pop(next(iter(self._readers)))
            reader = self._readers[pid] = _Reader()
        for line in text.splitlines()[:MAX_LINES] if "\n" in text else (text,):
            self._line(reader, line, pid, record, index)

    def last(self, before: int | None = None) -> Raised | None:
        """The last exception, or the last one up to a time."""
        for raised in reversed(self.raised):
            if before is None or raised.t <= before:
                return raised
        return None

    def listed(self) -> Iterator[Trouble]:
        """What did not load."""
        return iter(self.troubles.values())

    def _line(self, reader: _Reader, line: str, pid: int | None, record: Record, index: int | None) -> None:
        if _BIND in line:
            self._add(Raised(excerpt(line), record.t, pid, evidence_of(record, index, excerpt(line))))
            return
        if _BEGIN in line:
            reader.lines, reader.fatal = 1, "hit an exception" in line
            return
        if reader.block is not None and self._in_block(reader, line):
            return
        if line.startswith(_CHAIN):
            if reader.last is not None:
                reader.chained.append(reader.last.text)
                self._forget(reader.last)
                reader.last = None
            return
        ignored = _IGNORED.search(line) if _IGNORE in line else None
        if ignored:
            self._ignored(ignored[2], ignored[1], pid, record, index)
            return
        if not reader.lines or line[:1] in (" ", "\t", ""):
            reader.lines += reader.lines > 0
            return
        final = _FINAL.match(line)
        if final:
            self._final(reader, line[:1000].rstrip(), pid, record, index)
        elif reader.lines > MAX_LINES:
            reader.lines = 0
        else:
            reader.lines += 1

    def _in_block(self, reader: _Reader, line: str) -> bool:
        """Inside the attempts of a loader: collect why each failed."""
        block = reader.block
        assert block is not None
        reader.lines += 1
        if line.startswith("[end of lib") or reader.lines > MAX_LINES:
            reader.block, reader.lines = None, 0
            return True
        found = _CAUSE.search(line[:2000])
        if found:
            if len(block.causes) < MAX_CAUSES:
                block.causes.append(found[1].strip())
            return True
        if line.startswith(("[start of lib", " ", "\t", "FFmpeg version")) or not line:
            return True
        if line.startswith(("The following exceptions", "Likely causes", *_CHAIN)):
            return True
        reader.block, reader.lines = None, 0
        return False

    def _final(self, reader: _Reader, text: str, pid: int | None, record: Record, index: int | None) -> None:
        evidence = evidence_of(record, index, excerpt(text))
        raised = Raised(text, record.t, pid, evidence, reader.fatal)
        causes, reader.chained = reader.chained, []
        reader.lines, reader.fatal, reader.last = 0, False, raised
        if is_loading(text):
            trouble = raised.trouble = self._trouble(text, pid, record.t, evidence)
            trouble.loud = True
            trouble.causes += [cause for cause in causes if is_loading(cause)][: MAX_CAUSES - len(trouble.causes)]
            if "ould not load" in text:
                reader.block, reader.lines = trouble, 1
        self._add(raised)

    def _add(self, raised: Raised) -> None:
        self.count += 1
        self.raised.append(raised)
        if len(self.raised) > FIRST + LAST:
            del self.raised[FIRST]

    def _trouble(self, text: str, pid: int | None, t: int, evidence: Evidence) -> Trouble:
        name = library_of(text)
        trouble = self.troubles.get(name)
        if trouble is None:
            trouble = Trouble(name, excerpt(text), t, pid, [evidence])
            if len(self.troubles) < MAX_TROUBLES:
                self.troubles[name] = trouble
        else:
            trouble.seen += 1
            trouble.t, trouble.pid = t, pid
        return trouble

    def _ignored(self, message: str, module: str, pid: int | None, record: Record, index: int | None) -> None:
        """The server says that it does without."""
        text = message or module
        if not is_loading(text) and "import" not in text and "No module" not in text:
            return
        evidence = evidence_of(record, index, excerpt(f"Ignore import error when loading {module}: {message}"))
        trouble = self._trouble(text, pid, record.t, evidence)
        trouble.ignored = True
        if evidence not in trouble.evidence and len(trouble.evidence) < 4:
            trouble.evidence.append(evidence)

    def _forget(self, raised: Raised) -> None:
        """It was only the first link of a chain."""
        if raised in self.raised:
            self.raised.remove(raised)
            self.count -= 1
        trouble = raised.trouble
        if trouble is not None and trouble.seen == 1 and self.troubles.get(trouble.library) is trouble:
            del self.troubles[trouble.library]
