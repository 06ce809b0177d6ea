"""What is followed of a host: discovery, the ladder rung by rung, stacks, all over a real ssh connection."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Fact, Gap, Probe, Stack
from ddscope.remote import Host, HostError, pushing
from ddscope.remote.agent import look
from ddscope.remote.attached import AttachedHost, Wanted
from ddscope.session import Store
from ddscope.session.hosts import RUNGS, stack_view
from ddscope.trace import encode
from tests.integration.host.service import SECRET, Kept, Service
from tests.integration.host.sshd import NAME, Sshd
from tests.tracing import Clock, header
from tests.unit.emit_support import wait_for

FAST: dict[str, Any] = {"every": 0.1, "health_every": 0.2, "probe_every": 0.3, "probe_timeout": 1.0}


class Watching:
    """A host that is attached, without a session."""

    def __init__(self, sshd: Sshd | None, **options: Any) -> None:
        self.kept = Kept()
        self.sockets: list[Path] = []
        name = NAME if sshd is not None else "localhost"
        ssh = sshd.ssh if sshd is not None else None
        self.attached = AttachedHost(name, Wanted(**{**FAST, **options}), ssh=ssh)
        self.attached.open(self.kept, self.sockets.append)
        for _, source in self.attached.sources:
            source.start()

    def stop(self) -> None:
        for _, source in self.attached.sources:
            source.stop()
        self.attached.close()


@pytest.fixture
def watch(sshd: Sshd, service: Service) -> Iterator[Watching]:
    watching = Watching(sshd, port=service.port)
    yield watching
    watching.stop()


# discovery ------------------------------------------------------------------------------------------------------


def test_a_server_is_found_by_itself_with_its_port_processes_and_arguments(host: Host, service: Service) -> None:
    seen = look(host, port=service.port)
    assert seen["problems"] == [] and seen["uid"] == os.geteuid()
    (server,) = seen["servers"]
    assert (server["kind"], server["pid"], server["port"], server["address"]) == (
        "sglang", service.pid, service.port, "127.0.0.1",
    )  # fmt: skip
    assert [(one["pid"], one["name"]) for one in server["processes"]][1:] == [
        (service.scheduler, "sglang::scheduler_TP0")
    ]
    assert server["args"]["speculative-algorithm"] == server["algorithm"] == "DFLASH"
    assert server["args"]["tp-size"] == "2"
    assert server["python"] == sys.executable
    assert server["packages"]["ddscope"]
    assert SECRET not in repr(seen)


def test_without_a_choice_it_is_found_among_all_processes(service: Service) -> None:
    servers = look(Host("localhost"))["servers"]
    assert service.pid in [server["pid"] for server in servers]
    assert service.scheduler not in [server["pid"] for server in servers], "it belongs to the other"


def test_a_process_can_be_named(host: Host, service: Service) -> None:
    (server,) = look(host, pid=service.pid)["servers"]
    assert server["pid"] == service.pid and server["port"] == service.port


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 1}, "On localhost, nobody listens on port 1."),
        ({"pid": 4194000}, "On localhost, there is no process 4194000."),
    ],
)
def test_what_is_not_there_is_one_sentence(options: dict[str, int], words: str) -> None:
    with pytest.raises(HostError) as caught:
        AttachedHost("localhost", Wanted(**options))
    assert str(caught.value) == words


def test_two_servers_are_a_question(service: Service, tmp_path: Path) -> None:
    other = Service(tmp_path / "other.log")
    other.start()
    try:
        with pytest.raises(HostError) as caught:
            AttachedHost("localhost", Wanted())
    finally:
        other.stop()
    said = str(caught.value)
    assert f"sglang (pid {service.pid}, port {service.port})" in said
    assert said.endswith("Choose one with --unit, --pid or --port.")


# the ladder -----------------------------------------------------------------------------------------------------


def test_the_ladder_walks_down_rung_by_rung_and_up_again(watch: Watching, service: Service) -> None:
    kept = watch.kept
    for rung in ("process", "port", "health", "generate"):
        kept.await_rung(rung, True)
    assert kept.rung("generate").detail.startswith("4 tokens in ")  # type: ignore[union-attr]
    assert kept.fact("host.server")["pid"] == service.pid

    service.toggle_hang()
    late = kept.await_rung("generate", False, "no answer for ")
    assert late.ms is not None and late.ms >= 1000
    assert all(kept.ladder()[rung] for rung in ("process", "port", "health"))
    service.toggle_hang()
    kept.await_rung("generate", True)

    os.kill(service.scheduler, signal.SIGSTOP)
    stopped = kept.await_rung("process", False, "is stopped")
    assert f"pid {service.scheduler} sglang::scheduler_TP0 is stopped" in (stopped.detail or "")
    kept.await_rung("generate", False)
    assert kept.ladder()["health"], "the HTTP process answers by itself"
    os.kill(service.scheduler, signal.SIGCONT)
    kept.await_rung("process", True)
    kept.await_rung("generate", True)

    service.toggle_port()
    kept.await_rung("port", False, f"nobody listens on 127.0.0.1:{service.port}")
    kept.await_rung("health", False, "nobody listens")
    assert kept.ladder()["process"]
    service.toggle_port()
    kept.await_rung("health", True)

    first = service.pid
    service.stop()
    kept.await_rung("process", False, f"pid {first} is gone")
    service.start()
    kept.await_rung("process", True, f"pid {service.pid} since")
    kept.await_rung("generate", True)
    kept.check_books()
    assert not [line for line in kept.lines if SECRET.encode() in line]


def test_at_most_one_probe_is_in_flight_however_long_it_takes(watch: Watching, service: Service) -> None:
    watch.kept.await_rung("generate", True)
    os.kill(service.scheduler, signal.SIGSTOP)
    wait_for(lambda: any(p.rung == "generate" and (p.ms or 0) > 4000 for p in watch.kept.of(Probe)), "a late one")
    answered = service.probes()
    os.kill(service.scheduler, signal.SIGCONT)
    watch.kept.await_rung("generate", True)
    wait_for(lambda: service.probes() > answered, "an answer")
    waited = [p for p in watch.kept.of(Probe) if p.rung == "generate" and p.ok and (p.ms or 0) > 4000]
    assert len(waited) == 1, "only the one that was in flight waited"


def test_a_server_that_was_started_again_is_asked_at_once(sshd: Sshd, service: Service) -> None:
    watching = Watching(sshd, port=service.port, probe_every=3600.0, health_every=3600.0)
    kept = watching.kept
    kept.await_rung("generate", True)
    service.stop()
    service.start()
    wait_for(lambda: len([p for p in kept.of(Probe) if p.rung == "generate" and p.ok]) == 2, "the new one's answer")
    watching.stop()


def test_without_probes_nothing_is_generated(sshd: Sshd, service: Service) -> None:
    watching = Watching(sshd, port=service.port, probe=False)
    kept = watching.kept
    kept.await_rung("health", True)
    seen = len(kept.of(Probe))
    service.toggle_port()
    kept.await_rung("health", False)
    watching.stop()
    assert kept.rung("generate") is None and service.probes() == 0 and len(kept.of(Probe)) > seen


def test_a_lost_connection_is_a_gap_and_the_ladder_goes_on(watch: Watching, sshd: Sshd) -> None:
    kept = watch.kept
    kept.await_rung("health", True)
    sshd.drop()
    wait_for(lambda: any(gap.src == "probe" and gap.reason == "disconnected" for gap in kept.of(Gap)), "the gap")
    wait_for(lambda: watch.attached.host.connections == 2, "the reconnection")
    gap = next(n for n, record in enumerate(kept.records) if isinstance(record, Gap))
    after = lambda: {p.rung for p in kept.records[gap:] if isinstance(p, Probe)}  # noqa: E731
    wait_for(lambda: after() >= {"port", "health"}, "the rungs again")
    assert watch.attached.watch is not None and watch.attached.watch.state == "connected"
    kept.check_books()


def test_the_clock_is_measured(watch: Watching) -> None:
    wait_for(lambda: watch.kept.fact("host.clock"), "the clock")
    told = watch.kept.fact("host.clock")
    assert told["host"] == NAME and abs(told["offset_us"]) <= max(told["rtt_us"], 20_000), "it is the same clock"


def test_the_store_shows_what_was_watched(watch: Watching, service: Service, tmp_path: Path) -> None:
    watch.kept.await_rung("generate", True)
    service.toggle_port()
    watch.kept.await_rung("port", False)
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(header(Clock())) + b"".join(line + b"\n" for line in watch.kept.lines))
    store = Store(path)
    while store.poll(1.0):
        pass
    (view,) = store.hosts()
    assert [row.rung for row in view.rungs] == [rung for rung in RUNGS if rung in {row.rung for row in view.rungs}]
    assert view.failing is not None and view.failing.rung == "port"
    assert (view.name, view.algorithm) == (NAME, "DFLASH")
    store.close()


# stacks ---------------------------------------------------------------------------------------------------------

needs_py_spy = pytest.mark.skipif(
    not (Path(sys.executable).with_name("py-spy").exists() or shutil.which("py-spy")), reason="py-spy is not installed"
)


@needs_py_spy
def test_stacks_of_a_stopped_scheduler_come_by_themselves_and_are_compared(watch: Watching, service: Service) -> None:
    watch.kept.await_rung("generate", True)
    os.kill(service.scheduler, signal.SIGSTOP)
    try:
        stacks = watch.kept.await_stacks(2, lambda stack: stack.pid == service.scheduler)
    finally:
        os.kill(service.scheduler, signal.SIGCONT)
    assert all(stack.mode == "py-spy --nonblocking" for stack in stacks)
    assert stacks[-1].process == "sglang::scheduler_TP0"
    view = stack_view(0, stacks[-1], stacks[-2])
    first = view.threads[0]
    assert first.name == "MainThread" and "event_loop" in first.at and "launch_server.py" in first.at and first.still
    assert [thread.name for thread in view.threads if thread.idle] == ["watchdog"]
    assert stacks[-1].t - stacks[-2].t >= 9_000_000, "the second dump comes ten seconds later"


@needs_py_spy
def test_stacks_come_on_demand_of_all_processes(watch: Watching, service: Service) -> None:
    wait_for(lambda: watch.kept.fact("host.server"), "the server")
    both = {service.pid, service.scheduler}
    for _ in range(5):  # what runs may change while it is read, and is refused then
        answered = _dumps(watch.kept)
        assert watch.attached.ask_stacks()
        wait_for(lambda answered=answered: _dumps(watch.kept) >= answered + 2, "an answer for each process")  # type: ignore[misc]
        if {stack.pid for stack in watch.kept.of(Stack)} >= both:
            break
    assert {stack.pid for stack in watch.kept.of(Stack)} == both


def _dumps(kept: Kept) -> int:
    """Stacks that came, and refusals."""
    return len(kept.of(Stack)) + len([fact for fact in kept.of(Fact) if fact.name == "stack.refused"])


@needs_py_spy
def test_py_spy_is_pushed_where_there_is_none(host: Host) -> None:
    path = pushing.push_py_spy(host, os.uname().machine)
    assert b"py-spy" in host.run([path, "--version"]).out
    assert Path(path).stat().st_mode & 0o777 == 0o700 and Path(path).parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(Path(path).parent)
    with pytest.raises(HostError, match="not riscv64: install it there"):
        pushing.push_py_spy(host, "riscv64")
