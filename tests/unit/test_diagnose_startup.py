"""Why a server did not start, what only looks like it, and what it does while it is quiet."""

from __future__ import annotations

import pytest

from tests.serverlogs import ARGS, READY, UNIT, ServerLog, torchcodec

OTHER_ERROR = (
    "Traceback (most recent call last):",
    '  File "/x.py", line 1, in <module>',
    "ValueError: no such model",
)


def test_a_block_before_ready_is_noise() -> None:
    log = ServerLog().say(ARGS).raw(*torchcodec("libavutil.so.60")).say(READY)
    finding = log.of("startup.optional_import")
    assert finding.severity == "info" and "noise" in finding.title
    assert log.ids(info=False) == []


def test_a_batch_is_as_good_as_ready() -> None:
    log = ServerLog().say(ARGS).raw(*torchcodec("libavutil.so.60")).decode()
    assert log.ids() == ["startup.optional_import"]


def test_what_a_sound_server_does_without_is_not_told() -> None:
    log = ServerLog().say(ARGS, "Ignore import error when loading sglang.srt.models.inkling: No module named 'cutlass'")
    assert log.say(READY).decode().ids() == []


def test_several_libraries_are_one_finding() -> None:
    log = ServerLog().say(ARGS).raw(*torchcodec("libavutil.so.60"), "Traceback (most recent call last):", "  File x")
    finding = log.raw("ModuleNotFoundError: No module named 'cutlass'").say(READY).of("startup.optional_import")
    assert finding.title.startswith("torchcodec, cutlass could not be loaded")


def test_a_block_after_which_nothing_is_known_is_not_judged() -> None:
    assert ServerLog().say(ARGS).raw(*torchcodec("libnvrtc.so.13")).ids() == []


def test_ready_of_another_run_excuses_nothing() -> None:
    log = ServerLog().start().exit("code=killed, status=15/TERM").say(ARGS, pid=4200)
    log.pid = 4200
    log.raw(*torchcodec("libnvrtc.so.13")).exit()
    assert "startup.optional_import" not in log.ids()
    assert log.of("startup.import_fatal").severity == "critical"


def test_the_innermost_error_is_the_cause_and_not_the_headline() -> None:
    finding = ServerLog().say(ARGS).raw(*torchcodec("libnvrtc.so.13")).exit().of("startup.import_fatal")
    assert "libnvrtc.so.13" in finding.title and "FFmpeg" not in finding.title
    assert finding.ruled_out[0].what == "FFmpeg" and "2 attempts" in finding.ruled_out[0].why


def test_where_only_files_of_ffmpeg_are_missing_that_is_the_cause() -> None:
    finding = ServerLog().say(ARGS).raw(*torchcodec("libavutil.so.60")).exit().of("startup.import_fatal")
    assert "libavutil.so.60" in finding.title and finding.ruled_out == ()


def test_a_module_that_is_not_there_ends_the_start() -> None:
    log = ServerLog().say(ARGS).raw("Traceback (most recent call last):", '  File "a.py", line 1')
    log.raw("ModuleNotFoundError: No module named 'flashinfer'").exit()
    assert "flashinfer could not be loaded" in log.of("startup.import_fatal").title


@pytest.mark.parametrize(
    "between",
    [
        lambda log: log.raw(*OTHER_ERROR),  # another exception ended it
        lambda log: log.say("Ignore import error when loading a.model: Could not load libtorchcodec."),
        lambda log: log.say("Load weight begin. avail mem=1 GB"),  # it went on
        lambda log: log.systemd(f"Stopping {UNIT}..."),  # somebody stopped it
    ],
    ids=["another exception", "ignored", "went on", "was stopped"],
)
def test_a_block_that_did_not_end_the_run_is_not_blamed(between: object) -> None:
    log = ServerLog().say(ARGS).raw(*torchcodec("libnvrtc.so.13"))
    between(log).exit()  # type: ignore[operator]
    assert "startup.import_fatal" not in log.ids()


@pytest.mark.parametrize("how", ["code=killed, status=9/KILL", "code=exited, status=0/SUCCESS"])
def test_a_run_that_was_killed_or_ended_well_is_not_blamed_on_an_import(how: str) -> None:
    assert "startup.import_fatal" not in ServerLog().say(ARGS).raw(*torchcodec("libnvrtc.so.13")).exit(how).ids()


def crash_loop(starts: int, *lines: str) -> ServerLog:
    log = ServerLog()
    for start in range(starts):
        log.pid = 4100 + start
        log.say(ARGS, pid=log.pid).raw(*lines).exit()
        log.systemd(f"{UNIT}: Failed with result 'exit-code'.")
        log.systemd(f"{UNIT}: Scheduled restart job, restart counter is at {start + 1}.", after=1)
    return log


def test_a_crash_loop_tells_how_its_first_run_ended() -> None:
    log = crash_loop(2, *OTHER_ERROR)
    assert "startup.crash_loop" not in log.ids()  # two failures are no loop
    log = crash_loop(4, *OTHER_ERROR)
    finding = log.of("startup.crash_loop")
    assert "ValueError: no such model" in finding.detail and "4 runs failed" in finding.detail
    assert finding.consequences and finding.consequences[0].startswith("serve.down")


def test_a_start_limit_is_a_loop_even_of_two() -> None:
    log = crash_loop(2, *OTHER_ERROR).systemd(f"{UNIT}: Start request repeated too quickly.")
    assert "systemd has given up" in log.of("startup.crash_loop").title


def test_the_cause_of_a_loop_takes_it_in() -> None:
    log = crash_loop(4, *torchcodec("libnvrtc.so.13"))
    assert [finding.id for finding in log.findings()] == ["startup.import_fatal"]
    assert any(text.startswith("startup.crash_loop") for text in log.findings()[0].consequences)


def test_later_runs_of_a_loop_may_fail_for_another_reason() -> None:
    log = ServerLog().say(ARGS).raw(*OTHER_ERROR).exit()
    for start in range(3):
        log.systemd(f"{UNIT}: Scheduled restart job, restart counter is at {start + 1}.", after=1)
        log.pid = 5000 + start
        log.say(ARGS, "ERROR: [Errno 98] address already in use").exit()
    finding = log.of("startup.crash_loop")
    assert "no such model" in finding.detail and "already in use" not in finding.detail


def test_restarts_by_hand_are_no_loop() -> None:
    log = ServerLog()
    for start in range(5):
        log.start(pid=4100 + start).decode().systemd(f"Stopping {UNIT}...").exit("code=killed, status=15/TERM")
    assert log.ids(info=False) == []


def test_crashes_weeks_apart_are_no_loop() -> None:
    log = ServerLog()
    for start in range(4):
        log.t += 7 * 24 * 3_600_000_000
        log.start(pid=4100 + start).exit()
        log.systemd(f"{UNIT}: Scheduled restart job, restart counter is at {start + 1}.", after=1)
    assert "startup.crash_loop" not in log.ids()


def test_what_is_over_is_told_as_past() -> None:
    log = crash_loop(4, *torchcodec("libnvrtc.so.13")).start(pid=6000).decode()
    assert log.ids(info=False) == []
    assert "did not start" in log.of("startup.import_fatal").title


def test_a_long_phase_is_named_with_its_progress() -> None:
    log = ServerLog().say(ARGS, "Load weight begin. avail mem=1 GB")
    log.say("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02]", after=20).wait(40)
    finding = log.of("startup.phase")
    assert finding.severity == "info" and "loading weights for 60 s, 2/5 so far" in finding.title
    assert log.ids() == ["startup.phase"]


@pytest.mark.parametrize("then", [READY, "Load weight end. avail mem=1 GB"])
def test_a_phase_that_is_over_is_not_told(then: str) -> None:
    log = ServerLog().say(ARGS, "Load weight begin. avail mem=1 GB", then).wait(5)
    assert "startup.phase" not in log.ids()


def test_exceptions_that_are_one_chain_are_one() -> None:
    log = ServerLog().say(ARGS).raw("Traceback (most recent call last):", '  File "a", line 1')
    log.raw("OSError: libavutil.so.60: cannot open shared object file")
    log.raw("The above exception was the direct cause of the following exception:", "")
    log.raw(*torchcodec("libnvrtc.so.13")).say(READY)
    assert [finding.id for finding in log.findings()] == ["startup.optional_import"]
    assert log.findings()[0].title.startswith("torchcodec")


def test_tracebacks_of_two_processes_may_be_interleaved() -> None:
    log = ServerLog().say(ARGS)
    for one, two in zip(torchcodec("libnvrtc.so.13"), (*OTHER_ERROR, *["  more"] * 5), strict=True):
        log.raw(one).say(two, pid=4101, stamp=False, after=0.001)
    assert "startup.optional_import" in log.say(READY).ids()


def test_another_service_of_the_same_journal_is_left_alone() -> None:
    log = ServerLog().start()
    log.src = "journal/backup.service"
    for _ in range(4):
        log.raw(*OTHER_ERROR).systemd("backup.service: Main process exited, code=exited, status=1/FAILURE")
        log.systemd("backup.service: Scheduled restart job, restart counter is at 4.")
    assert log.ids() == []
