"""Follow the journal of a local unit: `journalctl -o export -f`, kept running, resumed by cursor; `log` records.

What `journalctl` does not do by itself is done here: a cursor that is gone is noticed (it would show something else
without an error), all that is pending is asked for (it would show ten lines), its complaints become one sentence.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from ddscope.sources.entries import Entries
from ddscope.sources.journal_export import Entry, ExportError, ExportParser

State = Literal["waiting", "following", "failed"]
FIELDS = (
    "MESSAGE", "PRIORITY", "_PID", "SYSLOG_PID", "SYSLOG_IDENTIFIER", "_COMM", "_SYSTEMD_UNIT", "UNIT", "_LINE_BREAK",
    "N_DROPPED", "OBJECT_SYSTEMD_UNIT",
)  # fmt: skip
CUT = (b"line-max", b"pid-change")  # values of _LINE_BREAK that mean: the line was not over
NOT_ALLOWED = ("insufficient permissions", "not seeing messages from other users", "Permission denied")
READ = 1 << 18
RETRY_S = 5.0
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


class JournalSource:
    """`log` records of a unit, src `journal/<unit>`. `state`: waiting (for an entry), following, failed; `reason`: why.

    unit: as systemd names it. sink: gets batches of whole encoded lines, on this source's thread. lines: how many of
    the entries there are to begin with, or "all". cursor: go on after this entry instead. options: more options of
    journalctl, such as --file=PATH or --user. `cursor` is always that of the last entry handed on.
    """

    def __init__(
        self,
        unit: str,
        sink: Callable[[bytes], object],
        *,
        lines: int | Literal["all"] = "all",
        cursor: str | None = None,
        options: Sequence[str] = (),
        program: str = "journalctl",
    ) -> None:
        self.unit = unit
        self.state: State = "waiting"
        self.reason = f"The journal of {unit} has not been opened yet."
        self.cursor = cursor
        self._sink = sink
        self._lines = lines
        self._options = list(options)
        self._program = program
        self._entries = Entries(f"journal/{unit}")
        self._time = 0  # of the last entry handed on
        self._said: list[str] = []
        self._told_missing = False
        self._stop_r, self._stop_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def received(self) -> int:
        """Records handed on."""
        return self._entries.seq - self._entries.dropped

    def start(self) -> None:
        """Follow in the background."""
        self._thread = threading.Thread(target=self._run, name=f"source {self._entries.src}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and end journalctl."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            os.write(self._stop_w, b"s")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for fd in (self._stop_r, self._stop_w):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._stop_r = self._stop_w = -1

    def command(self) -> list[str]:
        """What is run. The cursor's own entry is asked for, too: when it comes first, the cursor is still good."""
        command = [self._program, "--output=export", "--follow", "--no-pager", f"--unit={self.unit}", *self._options]
        command.append(f"--output-fields={','.join(FIELDS)}")
        if self.cursor is None:
            return [*command, f"--lines={self._lines}"]
        return [*command, "--lines=all", f"--cursor={self.cursor}"]

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                cursor = self.cursor
                self._follow_once()
                if self.cursor is not None or cursor is None:
                    self._stopped.wait(RETRY_S)
        except Exception as error:  # the sink could not take it
            self.state, self.reason = "failed", f"The journal of {self.unit} cannot be kept: {error}"

    def _follow_once(self) -> None:
        """Run journalctl until it ends, for whatever reason."""
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        try:
            process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is for the viewer
            )
        except FileNotFoundError:
            self._missing(f"{self._program} is not installed here, so the journal of {self.unit} cannot be shown.")
            return
        except OSError as error:
            self._missing(f"{self._program} cannot be run: {error.strerror or error}.")
            return
        self._said.clear()
        try:
            self._read(process)
        except ExportError as error:
            self._missing(str(error))
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None
        out, err = process.stdout.fileno(), process.stderr.fileno()
        resume = _Resume(self.cursor, self._time)
        parser = ExportParser()
        asked = False
        poll = select.poll()
        for fd in (out, err, self._stop_r):
            poll.register(fd, select.POLLIN)
        began = time.monotonic()
        while not self._stopped.is_set():
            ready = {fd for fd, _ in poll.poll(PATIENCE_S * 1000)}
            if err in ready and not self._complaint(os.read(err, READ)):
                poll.unregister(err)
            if out in ready:
                data = os.read(out, READ)
                if not data:
                    self._ended(process)
                    return
                self._take(parser.feed(data), resume)
            elif not asked and self.state == "waiting" and time.monotonic() - began > PATIENCE_S:
                asked = True
                self._ask_for_unit()

    def _take(self, entries: list[Entry], resume: _Resume) -> None:
        if entries:
            self.state, self.reason, self._told_missing = "following", "", False
        for entry in entries:
            if not resume.checked and not resume.check(entry):
                self._entries.gap("cursor_lost")
            if resume.is_new(entry):
                self._entry(entry)
        batch = self._entries.take()
        if batch:
            self._sink(batch)

    def _entry(self, entry: Entry) -> None:
        get = entry.get
        dropped = _int(get(b"N_DROPPED"))
        if dropped is not None and 0 < dropped < 2**31:
            self._entries.gap("rate_limited", dropped)
        cursor = get(b"__CURSOR")
        t = _int(get(b"__REALTIME_TIMESTAMP"))
        unit = get(b"_SYSTEMD_UNIT") or get(b"UNIT")
        ident = get(b"SYSLOG_IDENTIFIER") or get(b"_COMM")
        self._entries.log(
            get(b"MESSAGE"),
            t=t,
            mono=_int(get(b"__MONOTONIC_TIMESTAMP")),
            cursor=None if cursor is None else cursor.decode("utf-8", "backslashreplace"),
            unit=None if unit is None else unit.decode("utf-8", "backslashreplace"),
            pid=_int(get(b"_PID") or get(b"SYSLOG_PID")),
            priority=_int(get(b"PRIORITY")),
            ident=None if ident is None else ident.decode("utf-8", "backslashreplace"),
            partial=get(b"_LINE_BREAK") in CUT,
        )
        if cursor is not None:
            self.cursor = cursor.decode("utf-8", "backslashreplace")
        if t is not None:
            self._time = t

    def _complaint(self, data: bytes) -> bool:
        """Keep what journalctl says on its standard error; False at its end."""
        for line in data.decode("utf-8", "replace").splitlines():
            if line.strip():
                self._said = [*self._said, line.strip()][-5:]
        if self._said and self.state == "waiting":
            self.reason = self._why(None)
        return bool(data)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            if process.stderr is not None:
                self._complaint(os.read(process.stderr.fileno(), READ))
        status = process.wait()
        if self.cursor is not None and "seek to cursor" in " ".join(self._said):
            self._entries.gap(
                "cursor_lost"
            )  # refused outright: all there is must do, what is older is left out by time
            self.cursor = None
            return
        self._missing(self._why(status))

    def _why(self, status: int | None) -> str:
        """journalctl's words as one sentence."""
        said = " ".join(self._said)
        if any(words in said for words in NOT_ALLOWED):
            return f"This user may not read the journal of {self.unit}: join the group systemd-journal, or be root."
        if "No journal files were found" in said:
            return "There is no journal on this machine."
        end = "" if status is None else f" ended with status {status}"
        return f"{self._program}{end}: {said}." if said else f"{self._program}{end or ' said nothing'}."

    def _ask_for_unit(self) -> None:
        """No entry came: say whether systemd knows the unit at all."""
        known = None
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            options = [o for o in self._options if o in ("--user", "--system")]
            shown = subprocess.run(
                ["systemctl", *options, "show", "--property=LoadState", "--value", "--", self.unit],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=3,
                check=False,
            )
            known = shown.stdout.strip() or None
        if self._said:
            self.reason = self._why(None)
        elif known == b"not-found":
            self._missing(f"systemd knows no unit {self.unit} here, and its journal is empty.")
        else:
            self.reason = f"The journal has no entry of {self.unit} yet."

    def _missing(self, reason: str) -> None:
        """It cannot be followed now: say so once, in the trace too."""
        self.state, self.reason = "failed", reason
        if not self._told_missing:
            self._told_missing = True
            self._entries.gap("disconnected")
            self._sink(self._entries.take())


def _int(value: bytes | None) -> int | None:
    """A field that is a number; None for what is none."""
    if value is None or not value.isdigit() or len(value) > 15 + (value[:1] < b"9"):
        return None
    return int(value)
