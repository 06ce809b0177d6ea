"""The journal as a source where no journal is: a stand-in for the program that ends when told, and no program at all.

The real journalctl on real journal files is in tests/integration; log files are in test_sources_log_file.
"""

from __future__ import annotations

import stat
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ddscope.model import Gap, Log
from ddscope.sources import JournalSource
from ddscope.sources.lines import priority_of, stamp_of
from ddscope.trace import decode


class Sink:
    """Records in order; `wait` blocks until a condition holds."""

    def __init__(self) -> None:
        self.records: list[object] = []
        self._news = threading.Condition()

    def __call__(self, lines: bytes) -> None:
        with self._news:
            self.records += [decode(line) for line in lines.splitlines(keepends=True)]
            self._news.notify_all()

    def wait(self, found: Callable[[list[object]], bool], timeout: float = 20) -> None:
        with self._news:
            assert self._news.wait_for(lambda: found(self.records), timeout), self.records[-5:]


def gapless(sink: Sink) -> bool:
    return [r.seq for r in sink.records] == list(range(len(sink.records)))  # type: ignore[attr-defined]


def test_times_and_levels_of_known_prefixes() -> None:
    assert priority_of(b"[2026-11-30 14:02:11] WARNING something ERROR") == 4
    assert priority_of(b"no level") is None
    a, b = stamp_of(b"[2026-11-30 14:02:11.25 TP0] x"), stamp_of(b"2026-11-30T14:02:11 x")
    assert a is not None
    assert b is not None
    assert a - b == 250_000
    assert stamp_of(b"[2026-13-41 99:99:99] x") is None
    assert stamp_of(b"Traceback") is None


def exported(entry: dict[bytes, bytes]) -> bytes:
    fields = []
    for name, value in entry.items():
        if b"\n" in value or not all(32 <= c < 127 for c in value):
            fields.append(name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n")
        else:
            fields.append(name + b"=" + value + b"\n")
    return b"".join(fields) + b"\n"


def test_a_machine_without_journalctl_says_so() -> None:
    source = JournalSource("x.service", Sink(), command=["/nonexistent/journalctl"])
    source.start()
    assert source._thread is not None
    source._thread.join(10)
    assert source.state == "lost"
    assert "--log-file" in source.reason
    source.stop()


def entry(number: int, message: bytes = b"m") -> dict[bytes, bytes]:
    return {
        b"__CURSOR": b"c%d" % number,
        b"__REALTIME_TIMESTAMP": b"%d" % (1_790_000_000_000_000 + number),
        b"__MONOTONIC_TIMESTAMP": b"%d" % number,
        b"_PID": b"4100",
        b"PRIORITY": b"3",
        b"MESSAGE": message,
    }


def fake_journalctl(folder: Path, body: str) -> list[str]:
    """A stand-in for the program, not for its format: it lets a run end where a real one would be cut off."""
    script = folder / "journalctl"
    script.write_text(f"#!{sys.executable}\nimport sys, time\nout = sys.stdout.buffer\n{body}\n", "utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def test_after_journalctl_ends_it_resumes_at_the_cursor_and_doubles_nothing(tmp_path: Path) -> None:
    first, again = b"".join(exported(entry(n)) for n in range(3)), b"".join(exported(entry(n)) for n in range(2, 5))
    body = (
        f"resumed = '--cursor=c2' in sys.argv\n"
        f"out.write({again!r} if resumed else {first!r}); out.flush()\n"
        f"time.sleep(600 if resumed else 0)"
    )
    sink = Sink()
    source = JournalSource("x.service", sink, command=fake_journalctl(tmp_path, body))
    source.start()
    sink.wait(lambda rs: len(rs) >= 5)
    source.stop()
    assert [r.cursor for r in sink.records] == ["c0", "c1", "c2", "c3", "c4"]  # type: ignore[attr-defined]
    assert gapless(sink)


def test_a_cursor_that_is_gone_leaves_a_gap(tmp_path: Path) -> None:
    body = (
        f"resumed = any(a.startswith('--cursor') for a in sys.argv)\n"
        f"out.write({exported(entry(9))!r} if resumed else {exported(entry(0))!r}); out.flush()\n"
        f"time.sleep(600 if resumed else 0)"
    )
    sink = Sink()
    source = JournalSource("x.service", sink, command=fake_journalctl(tmp_path, body))
    source.start()
    sink.wait(lambda rs: len(rs) >= 3)
    source.stop()
    assert [type(r) for r in sink.records] == [Log, Gap, Log]
