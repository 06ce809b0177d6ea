"""A server that is up and does not serve; and all that looks like it and is not."""

from __future__ import annotations

import pytest

from ddscope.model import Probe
from tests.serverlogs import ARGS, READY, UNIT, ServerLog

RUNGS = ("unit", "process", "port", "health")


def ladder(log: ServerLog, failing: str = "", detail: str = "") -> ServerLog:
    for rung in RUNGS:
        log.probe(rung, rung != failing, detail if rung == failing else "")
        if rung == failing:
            break
    return log


def busy(batches: int = 10) -> ServerLog:
    log = ServerLog().start().prefill()
    for _ in range(batches):
        log.decode()
    return log


def ask(log: ServerLog, ok: bool = False, detail: str = "no answer for 20 s", after: float = 20) -> ServerLog:
    return log.probe("generate", ok, detail, 20_000, after)


def test_health_answers_and_a_request_does_not() -> None:
    log = ask(ladder(busy()))
    finding = log.of("serve.alive_not_serving")
    assert (finding.kind, finding.severity) == ("generate", "critical")
    assert "no answer for 20 s" in finding.detail and "usually one comes every 0.5 s" in finding.detail
    assert {ruled.what for ruled in finding.ruled_out} >= {"an idle server", "a server that is still starting"}
    assert log.ids() == ["serve.alive_not_serving"]


def test_each_host_has_a_ladder_of_its_own() -> None:
    """On ct129 a request gets no answer; the server on ct200, which is heard last, computes batches."""
    log = ServerLog(src=f"journal/ct129/{UNIT}").start().decode()
    for rung in RUNGS:
        log.add(Probe, "probe/ct129", 0.1, rung=rung, ok=True)
        log.add(Probe, "probe/ct200", 0.1, rung=rung, ok=True)
    log.add(Probe, "probe/ct129", 20, rung="generate", ok=False)
    log.add(Probe, "probe/ct200", 0.1, rung="generate", ok=True)
    log.src = f"journal/ct200/{UNIT}"
    log.start().decode().step()
    finding = log.of("serve.alive_not_serving")
    assert {shown.src for shown in finding.evidence} == {"probe/ct129", f"journal/ct129/{UNIT}"}


def test_two_failed_probes_are_surer_than_one() -> None:
    once, twice = ask(ladder(busy())), ask(ask(ladder(busy())))
    assert twice.of("serve.alive_not_serving").confidence > once.of("serve.alive_not_serving").confidence
    assert "2 probes" in twice.of("serve.alive_not_serving").detail


def test_a_restored_service_that_never_computed_anything_does_not_serve_either() -> None:
    finding = ask(ladder(ServerLog().start())).of("serve.alive_not_serving")
    assert "No step and no batch of it was seen at all" in finding.detail


def test_work_of_the_server_that_ran_before_is_not_work_of_this_one() -> None:
    finding = ask(ladder(ServerLog().step().start())).of("serve.alive_not_serving")
    assert "of it was seen at all" in finding.detail
    assert all(shown.src != "engine/0" for shown in finding.evidence)


def test_without_any_log_the_probes_are_enough() -> None:
    assert ask(ladder(ServerLog())).of("serve.alive_not_serving").title.startswith("The server is alive")


def test_an_idle_server_is_not_reported() -> None:
    assert ladder(busy().wait(3600)).ids() == []


def test_a_probe_that_answers_is_the_end_of_it() -> None:
    assert ask(ask(ladder(busy())), ok=True, detail="4 tokens").ids() == []


def test_a_server_that_computes_batches_only_lets_the_probe_wait() -> None:
    log = ask(ladder(busy()))
    assert log.decode().ids() == []


def test_steps_of_a_trace_are_work_too() -> None:
    log = ask(ladder(busy()))
    assert log.step().ids() == []


def test_a_server_that_starts_is_not_called_dead() -> None:
    log = ask(ladder(ServerLog().say(ARGS, "Load weight begin. avail mem=1 GB")))
    assert "serve.alive_not_serving" not in log.ids()


def test_a_server_that_compiles_is_not_called_dead() -> None:
    log = busy().say("Entering DeepGEMM JIT Pre-Compile session. It may take a long time")
    assert ask(ladder(log)).ids() == []


def test_a_hole_in_the_log_makes_it_less_sure() -> None:
    whole, holed = ask(ladder(busy())), ask(ladder(busy().gap()))
    assert holed.of("serve.alive_not_serving").confidence < whole.of("serve.alive_not_serving").confidence
    assert "hole" in holed.of("serve.alive_not_serving").detail


@pytest.mark.parametrize(
    "detail", ["4 tokens were asked for: it answers 401: Unauthorized", "HTTP 400", "403 Forbidden"]
)
def test_a_probe_that_is_refused_is_no_evidence(detail: str) -> None:
    finding = ask(ladder(busy()), detail=detail).of("serve.alive_not_serving")
    assert (finding.kind, finding.severity) == ("refused", "info")


def test_a_time_of_400_ms_is_no_refusal() -> None:
    assert ask(ladder(busy()), detail="no answer for 400 ms").of("serve.alive_not_serving").kind == "generate"


def test_without_probes_of_its_own_the_metrics_tell() -> None:
    log = ladder(busy()).probe("progress", False, "3 requests run, and no token has come for 40 s", after=40)
    assert log.of("serve.alive_not_serving").kind == "progress"
    assert ask(log, ok=True, detail="4 tokens").ids() == []


@pytest.mark.parametrize("rung", RUNGS)
def test_a_lower_rung_that_fails_is_told_instead(rung: str) -> None:
    log = ladder(ask(ladder(busy())), rung, "it is not")
    assert log.ids() == ["serve.down"] and log.of("serve.down").kind == rung


def test_nobody_listens_while_the_server_starts() -> None:
    assert "serve.down" not in ladder(ServerLog().say(ARGS).wait(1), "port").ids()
    assert "serve.down" in ladder(ServerLog().start().wait(1), "port").ids()


def test_the_watchdog_of_the_server_is_believed() -> None:
    log = busy()
    log.say('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', after=100, stamp=False)
    log.say("Scheduler watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)", after=200)
    log.say("Subprocess scheduler_0 (pid=7) crashed with exit code -3. Triggering SIGQUIT for cleanup...")
    finding = log.of("serve.alive_not_serving")
    assert finding.kind == "watchdog" and any(ruled.what == "a sound server" for ruled in finding.ruled_out)
    assert log.ids() == ["serve.alive_not_serving"]


def test_a_watchdog_that_only_warned_before_work_went_on_is_over() -> None:
    log = busy().say("Scheduler watchdog timeout (self.watchdog_timeout=300.0, self.soft=True)", after=300)
    assert log.decode().ids() == []


def test_a_run_that_is_not_ready_is_told_by_its_own_line_only() -> None:
    log = ServerLog().start().systemd(f"Stopping {UNIT}...").exit("code=killed, status=15/TERM").say(ARGS, pid=4200)
    log.pid = 4200
    log.wait(30)
    assert log.of("serve.not_ready").severity == "info"
    log.probe("unit", True).probe("health", True)
    finding = log.of("serve.not_ready")
    assert finding.severity == "warning" and "older process" in finding.ruled_out[0].why
    assert "serve.not_ready" not in log.say(READY).ids()


def test_a_service_that_never_says_that_it_is_ready_is_not_waited_for() -> None:
    """Another server than SGLang: systemd has started it, and that is all there is to know."""
    log = ServerLog().systemd(f"Started {UNIT} - a small server.").say("vllm: hello").wait(1000)
    assert log.ids() == []
    assert ask(ladder(log)).ids() == ["serve.alive_not_serving"]


def test_a_run_that_died_is_not_waited_for() -> None:
    log = ServerLog().say(ARGS, "Load weight begin. avail mem=1 GB")
    log.say("Received sigquit from a child process. It usually means the child failed.")
    assert log.wait(100).ids() == ["serve.down"]


@pytest.mark.parametrize("rung", ["gap", "generate"])
def test_a_line_that_was_lost_or_a_probe_that_was_answered_ends_the_waiting(rung: str) -> None:
    log = ServerLog().say(ARGS)
    log = log.gap() if rung == "gap" else log.probe("generate", True, "4 tokens")
    assert "serve.not_ready" not in log.wait(100).ids()


def test_a_journal_that_begins_in_the_middle_knows_no_start() -> None:
    assert ServerLog().say("some line").wait(1000).ids() == []


def test_a_server_that_died_is_told_with_its_last_words() -> None:
    log = (
        busy()
        .say("Scheduler hit an exception: Traceback (most recent call last):")
        .raw("  File x", "KeyError: 'rid-7'")
    )
    log.say("Received sigquit from a child process. It usually means the child failed.").exit(
        "code=killed, status=9/KILL"
    )
    finding = log.of("serve.down")
    assert finding.kind == "crashed" and "KeyError: 'rid-7'" in finding.title


@pytest.mark.parametrize("how", ["code=killed, status=15/TERM", "code=exited, status=0/SUCCESS"])
def test_a_server_that_was_stopped_did_not_die(how: str) -> None:
    assert busy().systemd(f"Stopping {UNIT}...").exit(how).systemd(f"Stopped {UNIT}.").ids() == []


def test_a_death_before_the_present_run_is_past() -> None:
    log = busy().exit().start(pid=4200).decode()
    assert log.ids() == []


def test_a_shape_error_that_ended_the_server_takes_its_death_in() -> None:
    words = "ValueError: DFLASH target_hidden feature dim mismatch. Expected shape [N, 25600], got shape=(8, 5120)"
    log = busy().say("Scheduler hit an exception: Traceback (most recent call last):").raw("  File x", words).exit()
    assert log.ids() == ["shape.mismatch"]
    assert any(text.startswith("serve.down") for text in log.findings()[0].consequences)
