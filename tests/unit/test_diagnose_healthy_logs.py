"""Logs of servers that are well, or were stopped on purpose, and say words that a fault would say."""

from __future__ import annotations

import pytest

from ddscope.model import Log
from tests.serverlogs import SRC, UNIT, ServerLog

QUOTED = (
    "why does my kernel say: an illegal memory access was encountered?",
    "probability tensor contains either `inf`, `nan` or element < 0",
    "ImportError: x.so: undefined symbol: _ZN3c10foo",
    "pool memory leak detected! total=3, available=4, evictable=1",
    "mat1 and mat2 shapes cannot be multiplied (60x576 and 2880x576)",
    "Scheduler hit an exception: SIGQUIT received, crashed with exit code 1",
    "my patch could not install",
)


def serving(src: str = SRC, pid: int | None = 4100) -> ServerLog:
    return ServerLog(pid=pid, src=src).start().decode()


@pytest.mark.parametrize("text", QUOTED)
@pytest.mark.parametrize(
    "line",
    [
        "Receive: obj=GenerateReqInput(rid='r', text={0!r})",
        "Finish: obj=GenerateReqInput(rid='r'), out={{'text': {0!r}}}",
        '{{"timestamp": "2026-11-30T14:00:00", "event": "request.received", "rid": "r", "obj": {0!r}}}',
        "(APIServer pid=1) INFO 08-04 20:51:08 [logger.py:39] Received request cmpl-1: prompt: {0!r}",
    ],
)
def test_a_request_that_quotes_an_error_is_no_error(line: str, text: str) -> None:
    log = serving().raw(line.format(text)).decode()
    assert log.findings() == []


def test_what_the_server_itself_says_is_one() -> None:
    assert serving().say(QUOTED[0]).ids() == ["gpu.fault"]


def test_a_notice_about_another_unit_is_no_hole_of_this_log() -> None:
    def notice(unit: str) -> ServerLog:
        text = f"Suppressed 900 messages from {unit}"
        return serving().add(Log, SRC, 1.0, message=text, ident="systemd-journald")

    assert notice("chrony.service").findings() == []
    assert notice("/system.slice/" + UNIT).ids() == ["logs.incomplete"]


def test_a_stop_that_somebody_asked_for_is_said_to_be_one() -> None:
    log = serving().systemd(f"Stopping {UNIT}...").systemd(f"{UNIT}: Deactivated successfully.")
    log.probe("unit", False, f"{UNIT} is inactive (dead)")
    finding = log.of("serve.down")
    assert finding.severity == "warning" and finding.title.endswith("because somebody stopped it.")
    assert finding.next == (f"Start it again if it should run: `systemctl start {UNIT}`.",)
    assert finding.ruled_out[0].what == "a crash"


def test_a_unit_that_ended_by_itself_keeps_its_grade_and_says_how_to_look() -> None:
    log = serving().exit("code=exited, status=1/FAILURE").probe("unit", False, f"{UNIT} is failed (failed)")
    finding = next(f for f in log.findings() if (f.id, f.kind) == ("serve.down", "unit"))
    assert finding.severity == "high" and f"`systemctl status {UNIT}`" in finding.next[0]


@pytest.mark.parametrize("child", ["crashed with exit code -15.", "crashed with exit code -9."])
def test_children_that_end_after_sigterm_did_not_crash(child: str) -> None:
    """`docker stop`: no systemd tells that somebody asked; the server does."""
    log = serving("log/docker", pid=None)
    log.say("SIGTERM received. signum=<Signals.SIGTERM: 15> frame=None. Draining requests and shutting down...")
    assert log.say(f"Subprocess scheduler_0 (pid=3) {child}").findings() == []


def test_a_sigterm_after_a_death_excuses_nothing() -> None:
    log = serving("log/docker", pid=None).say("Subprocess scheduler_0 (pid=3) crashed with exit code -9.")
    assert log.say("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...").ids() == [
        "serve.down"
    ]


def test_the_drivers_clean_up_after_an_asked_stop_is_no_fault() -> None:
    xid = "NVRM: Xid (PCI:0000:01:00): 45, pid=4100, name=python3, Ch 00000008"
    log = serving().systemd(f"Stopping {UNIT}...").kernel(xid).systemd(f"{UNIT}: Deactivated successfully.")
    assert log.findings() == []
    assert "gpu.fault" in serving().kernel(xid).exit().ids()


def test_errors_of_single_requests_and_of_other_processes_are_none_of_the_servers() -> None:
    log = serving().raw(
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in y',
        "ValueError: The input (99999 tokens) is longer than the model's context length",
    )
    log.decode().kernel("Out of memory: Killed process 777 (chrome) total-vm:1kB").decode(after=3)
    log.say("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)").decode()
    assert log.findings() == []
