"""The journal of a local systemd unit, through `journalctl -o export -f`: cheaper to read than JSON, and never cut.

One thread reads; another keeps what journalctl complains about. It resumes at the last entry's cursor.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, Literal

from ddscope.model import Log
from ddscope.sources.export import Entry, ExportError, ExportParser
from ddscope.sources.lines import LogLines, as_text, clocks

READ = 1 << 16
BACKOFF_S = (0.5, 10.0)
HINTS = ("not seeing messages", "Permission denied", "No journal files", "Failed to")


class JournalSource:
    """Records of one unit's journal. `state` is connecting, connected or lost; `reason` says why, in a sentence.

    unit: as systemd names it. sink: gets batches of whole encoded lines, on this source's thread. last: how many
    entries that are there already are told. command: journalctl, for another journal than the machine's own.
    """

    def __init__(
        self,
        unit: str,
        sink: Callable[[bytes], object],
        *,
        last: int = 1000,
        command: Sequence[str] = ("journalctl",),
    ) -> None:
        self.unit = unit
        self.state: Literal["connecting", "connected", "lost"] = "connecting"
        self.reason = f"Waiting for the journal of {unit}."
        self.cursor: str | None = None
        self._lines = LogLines(f"journal/{unit}", sink)
        self._last = last
        self._command = list(command)
        self._expected: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the journal in the background."""
        self._thread = threading.Thread(target=self._run, name=f"journal {self.unit}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End journalctl and the thread."""
        self._stop.set()
        process = self._process
        if process is not None:
            process.terminate()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def arguments(self) -> list[str]:
        """The command as it is run: from the last entry on, that entry included so that it can be checked."""
        command = [*self._command, "-o", "export", "-f", "--no-pager", "-u", self.unit]
        # `--after-cursor` alone shows only ten of what is pending, and an unknown cursor is no error: see _resumed.
        return [*command, "-n", "all", f"--cursor={self.cursor}"] if self.cursor else [*command, "-n", str(self._last)]

    def _run(self) -> None:
        wait = BACKOFF_S[0]
        while not self._stop.is_set():
            before = self._lines.count
            try:
                self._once()
            except FileNotFoundError:
                self.state = "lost"
                self.reason = f"{self._command[0]} is not on this machine; use --log-file for a server without systemd."
                return
            except (OSError, ExportError) as error:
                self.state, self.reason = "lost", f"The journal of {self.unit} cannot be read: {error}"
            wait = BACKOFF_S[0] if self._lines.count > before else min(wait * 2, BACKOFF_S[1])
            self._stop.wait(wait)

    def _once(self) -> None:
        """One run of journalctl, until it ends."""
        self._expected = self.cursor
        process = subprocess.Popen(
            self.arguments(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        complaints = threading.Thread(target=self._complaints, args=(process.stderr,), daemon=True)
        complaints.start()
        self.state = "connected"
        self.reason = f"Following the journal of {self.unit}."
        parser = ExportParser()
        try:
            while data := process.stdout.read1(READ):  # type: ignore[attr-defined]
                for entry in parser.feed(data):
                    self._take(entry)
                self._lines.flush()
            for entry in parser.finish():
                self._take(entry)
            self._lines.flush()
        finally:
            process.terminate()
            process.wait()
            complaints.join()
            process.stdout.close()
            process.stderr.close()
        if not self._stop.is_set() and self.state == "connected":
            self.state, self.reason = "lost", f"journalctl ended with exit status {process.returncode}; trying again."

    def _complaints(self, stream: IO[bytes]) -> None:
        for raw in stream:
            line = raw.decode("utf-8", "replace").strip()
            if any(hint in line for hint in HINTS):
                self.state, self.reason = "lost", f"journalctl says: {line}"

    def _take(self, entry: Entry) -> None:
        cursor = entry.get(b"__CURSOR", b"").decode("ascii", "replace") or None
        if self._expected is not None:
            expected, self._expected = self._expected, None
            if cursor == expected:
                return  # the last one again, as asked for
            self._lines.gap("cursor_lost")
        if cursor is not None:
            self.cursor = cursor
        self._lines.add(lambda seq: log_of(entry, self._lines.src, seq, self.unit))


def log_of(entry: Entry, src: str, seq: int, unit: str) -> Log:
    """A journal entry as a record. Times are the entry's own; what it does not hold is absent."""
    now, mono = clocks()
    message = entry.get(b"MESSAGE")
    line_break = entry.get(b"_LINE_BREAK")
    return Log(
        src=src,
        seq=seq,
        t=_number(entry, b"__REALTIME_TIMESTAMP", now),
        mono=_number(entry, b"__MONOTONIC_TIMESTAMP", mono),
        cursor=_string(entry, b"__CURSOR"),
        unit=_string(entry, b"_SYSTEMD_UNIT") or unit,
        pid=_number(entry, b"_PID", 0) or None,
        priority=_number(entry, b"PRIORITY", -1) if b"PRIORITY" in entry else None,
        ident=_string(entry, b"SYSLOG_IDENTIFIER"),
        message=None if message is None else as_text(message),
        partial=True if line_break in (b"line-max", b"eof", b"pid-change") else None,
    )


def _string(entry: Entry, name: bytes) -> str | None:
    value = entry.get(name)
    return None if value is None else value.decode("utf-8", "replace")


def _number(entry: Entry, name: bytes, otherwise: int) -> int:
    value = entry.get(name, b"")
    return int(value) if value.isdigit() and len(value) <= 16 else otherwise
