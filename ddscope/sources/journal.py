"""Follow the journal of a unit, here or on a host: `journalctl -o export -f`, kept running, resumed by cursor.

What `journalctl` does not do by itself is done here: a cursor that is gone is noticed (it would show something else
without an error), all that is pending is asked for (it would show ten lines), its complaints become one sentence.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Literal

from ddscope.sources.export import Entry, ExportError, ExportParser
from ddscope.sources.guard import guarded
from ddscope.sources.lines import LogLines, LogSource
from ddscope.sources.threaded import Backoff, Woken

FIELDS = (
    "MESSAGE", "PRIORITY", "_PID", "SYSLOG_PID", "SYSLOG_IDENTIFIER", "_COMM", "_SYSTEMD_UNIT", "UNIT", "_LINE_BREAK",
    "N_DROPPED", "OBJECT_SYSTEMD_UNIT",
)  # fmt: skip
CUT = (b"line-max", b"pid-change")  # values of _LINE_BREAK that mean: the line was not over
HIDDEN = ("insufficient permissions", "not seeing messages from other users")  # journalctl's own words, with status 0
NOT_ALLOWED = (*HIDDEN, "Permission denied")
SSH_FAILED = 255  # exit status of ssh when it lost the host, or never had it
NOT_FOUND = 127
READ = 1 << 18
BACKOFF_S = (0.5, 10.0)
PATIENCE_S = 1.0  # without an entry for so long, it is worth asking whether the unit exists at all


class _Resume:
    """Tells what is new when journalctl begins again at a cursor. `checked`: its first entry has been looked at."""

    def __init__(self, cursor: str | None, since: int) -> None:
        """since: µs since the epoch of the cursor's entry, 0 when that is not known."""
        self.checked = cursor is None
        self._cursor = None if cursor is None else cursor.encode()
        self._since = since

    def check(self, first: Entry) -> bool:
        """Whether the cursor is still good. If not, time must tell: nothing older than its entry is new."""
        self.checked = True
        good = first.get(b"__CURSOR") == self._cursor
        if good:
            self._since = 0
        else:
            self._cursor = None
        return good

    def is_new(self, entry: Entry) -> bool:
        """Whether the entry was not handed on before. In doubt it is new: twice is better than never."""
        if self._cursor is not None and entry.get(b"__CURSOR") == self._cursor:
            return False
        return not self._since or (_int(entry.get(b"__REALTIME_TIMESTAMP")) or self._since) >= self._since


class JournalSource(Woken, LogSource):
    """Records of one unit's journal.

    unit: as systemd names it. sink: gets batches of whole encoded lines, on this source's thread. last: how many of the
    entries that are there already are told, or "all". cursor: begin after this entry instead. command: journalctl, with
    options such as --user or --file=PATH for another journal. `cursor` is always that of the last entry handed on; it
    stands in the records, too, and so in the trace. match: options that choose the entries, instead of the unit's own.
    name: instead of the unit in the source id `journal/<name>`. there, host: the journal is on another machine, and
    `there` makes the local command that runs one there (ValueError in a sentence: it cannot be reached now).
    """

    def __init__(
        self,
        unit: str,
        sink: Callable[[bytes], object],
        *,
        last: int | Literal["all"] = 1000,
        cursor: str | None = None,
        command: Sequence[str] = ("journalctl",),
        match: Sequence[str] | None = None,
        name: str | None = None,
        there: Callable[[Sequence[str]], list[str]] | None = None,
        host: str = "this machine",
    ) -> None:
        self.unit = unit
        self._match = [f"--unit={unit}"] if match is None else list(match)
        self._there = there
        self._host = host
        self.cursor = cursor
        self._lines = LogLines(f"journal/{name or unit}", sink)
        super().__init__(self._lines.src, f"The journal of {unit}", f"Waiting for the journal of {unit}.")
        self._last = last
        self._command = list(command)
        self._time = 0  # of the last entry handed on
        self._said: list[str] = []
        self._told_lost = False

    def arguments(self) -> list[str]:
        """The command as it is run. It asks for the cursor's own entry, too: that coming first, the cursor is good."""
        command = [*self._command, "--output=export", "--follow", "--no-pager", *self._match]
        command.append(f"--output-fields={','.join(FIELDS)}")
        if self.cursor is None:
            return [*command, f"--lines={self._last}"]
        return [*command, "--lines=all", f"--cursor={self.cursor}"]

    def _work(self) -> None:
        backoff = Backoff(*BACKOFF_S)
        while not self._stopped.is_set():
            before = self._lines.received
            if not self._once():
                return
            self._stopped.wait(backoff.after(self._lines.received > before))

    def _once(self) -> bool:
        """Run journalctl until it ends, for whatever reason. False when there is no use in another try."""
        self._said.clear()
        try:
            command = self._there(self._guarded()) if self._there is not None else self.arguments()
        except ValueError as problem:
            self._away(str(problem))
            return True
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if self._there is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C.UTF-8"},  # its complaints are looked at
                start_new_session=True,  # a Ctrl-C in the terminal is for the viewer
            )
        except FileNotFoundError:
            self._lost(self._no_journalctl())
            return False
        except OSError as error:
            self._lost(f"{self._command[0]} cannot be run: {error.strerror or error}.")
            return True
        try:
            self._read(process)
        except ExportError as error:
            self._lost(f"The journal of {self.unit} cannot be read: {error}")
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        return True

    def _guarded(self) -> list[str]:
        """For a host: journalctl ends there with our end of its standard input, also while no entry comes."""
        return guarded(["env", "LC_ALL=C.UTF-8", *self.arguments()])

    def _local(self, argv: Sequence[str]) -> list[str]:
        return self._there(argv) if self._there is not None else list(argv)

    def _away(self, reason: str) -> None:
        """The host is lost. With a cursor nothing is missing: it is where to go on."""
        if self.cursor is None:
            self._lost(reason)
        else:
            self._lose(reason)

    def _no_journalctl(self) -> str:
        return f"{self._command[0]} is not on {self._host}; use --log-file for a server without systemd."

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.fileno(), process.stderr.fileno()
        resume, parser = _Resume(self.cursor, self._time), ExportParser()
        poll = select.poll()
        for fd in (out, err, self._woken):
            poll.register(fd, select.POLLIN)
        quiet_since: float | None = time.monotonic()
        while not self._stopped.is_set():
            ready = {fd for fd, _ in poll.poll(PATIENCE_S * 1000)}
            if err in ready and not self._complaint(err):
                poll.unregister(err)
            if out in ready:
                data = os.read(out, READ)
                self._take(parser.feed(data), resume)
                if not data:  # an entry that was cut comes again: its fields so far are no entry
                    self._complaint(err)
                    self._ended(process.wait())
                    return
                quiet_since = None
            elif quiet_since is not None and time.monotonic() - quiet_since > PATIENCE_S:
                quiet_since = None
                self._explain_silence()

    def _take(self, entries: list[Entry], resume: _Resume) -> None:
        for entry in entries:
            if not resume.checked and not resume.check(entry):
                self._lines.gap("cursor_lost")
            if resume.is_new(entry):
                self._entry(entry)
        if entries:
            self.state, self.reason, self._told_lost = "connected", "", False
            self._lines.flush()

    def _entry(self, entry: Entry) -> None:
        get = entry.get
        dropped = _int(get(b"N_DROPPED"))
        if dropped is not None and 0 < dropped < 2**31:
            self._lines.gap("rate_limited", dropped)
        cursor = _str(get(b"__CURSOR"))
        t = _int(get(b"__REALTIME_TIMESTAMP"))
        self._lines.log(
            get(b"MESSAGE"),
            t=t,
            mono=_int(get(b"__MONOTONIC_TIMESTAMP")),
            cursor=cursor,
            unit=_str(get(b"_SYSTEMD_UNIT") or get(b"UNIT")) or self.unit,
            pid=_int(get(b"_PID") or get(b"SYSLOG_PID")),
            priority=_int(get(b"PRIORITY")),
            ident=_str(get(b"SYSLOG_IDENTIFIER") or get(b"_COMM")),
            partial=get(b"_LINE_BREAK") in CUT,
        )
        self.cursor = cursor or self.cursor
        self._time = t or self._time

    def _complaint(self, err: int) -> bool:
        """Keep what journalctl says on its standard error; False at its end."""
        data = os.read(err, READ) if select.select([err], [], [], 0)[0] else b""
        said = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        self._said = [*self._said, *said][-5:]
        return bool(data)

    def _ended(self, status: int) -> None:
        if self._there is not None and status == SSH_FAILED:
            self._away(f"The connection to {self._host} was lost; the journal goes on where it was.")
        elif self._there is not None and status == NOT_FOUND:
            self._lost(self._no_journalctl())
        elif self.cursor is not None and "seek to cursor" in " ".join(self._said):
            # Refused outright. All there is must do; what is older than our last entry is left out by its time.
            self._lines.gap("cursor_lost")
            self._lines.flush()
            self.cursor, self._last = None, "all"
        elif self.cursor is not None and not self._said:
            # The cursor says where to go on: nothing is missing.
            self._lose(f"{self._command[0]} ended with status {status}; it is started again.")
        else:
            self._lost(self._why(status))

    def _why(self, status: int | None) -> str:
        """journalctl's words as one sentence."""
        said = " ".join(self._said)
        if any(words in said for words in NOT_ALLOWED):
            return f"This user may not read the journal of {self.unit}: join the group systemd-journal, or be root."
        if "No journal files were found" in said:
            return f"There is no journal on {self._host}; use --log-file for a server without one."
        ended = f"{self._command[0]} ended with status {status}" if status is not None else f"{self._command[0]} says"
        return f"{ended}: {said}" if said else f"{ended}."

    def _explain_silence(self) -> None:
        """journalctl runs and no entry comes: say what that means."""
        if self._said:
            self._lost(self._why(None))
        elif self.cursor is None and f"--unit={self.unit}" in self._match and self._is_unknown():
            self._lost(f"systemd knows no unit {self.unit} on {self._host}, and the journal has no entry of it.")
        else:
            self.state = "connected"
            self.reason = "" if self._lines.received else f"The journal has no entry of {self.unit} yet."

    def _is_unknown(self) -> bool:
        options = [option for option in self._command[1:] if option in ("--user", "--system")]
        question = ["systemctl", *options, "show", "--property=LoadState", "--value", "--", self.unit]
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            shown = subprocess.run(
                self._local(question),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10,
                check=False,
            )
            return shown.stdout.strip() == b"not-found"
        return False

    def _lost(self, reason: str) -> None:
        """It cannot be followed now: say so, and once in the trace, too."""
        self._lose(reason)
        if not self._told_lost:
            self._told_lost = True
            hidden = any(words in " ".join(self._said) for words in HIDDEN)
            self._lines.gap("not_allowed" if hidden else "disconnected")
            self._lines.flush()


def _int(value: bytes | None) -> int | None:
    """A field that is a number that fits a record; None for what is none."""
    if value is None or not value.isdigit() or len(value) > 15 + (value[:1] < b"9"):
        return None
    return int(value)


def _str(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
