"""A session on a host: steps of the hooks through the forwarded socket, the command line, the workbench."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddscope.cli import main
from ddscope.remote.attached import AttachedHost, Wanted
from ddscope.session import Session
from ddscope.trace import verify
from tests.integration.emitting_server import ROOT, Server
from tests.integration.host.service import Service, connections
from tests.integration.host.sshd import NAME, Sshd
from tests.integration.host.test_attached import FAST
from tests.unit.emit_support import wait_for


def test_steps_come_through_ssh_and_go_on_after_cuts(hooked: Server, sshd: Sshd, tmp_path: Path) -> None:
    host = AttachedHost(NAME, Wanted(pid=hooked.process.pid, probe=False, **_fast()), ssh=sshd.ssh)
    with Session.run(hosts=[host], out=tmp_path / "t.jsonl") as session:
        for part in range(4):
            before, made = connections(session), part + 1
            if part:
                sshd.drop()
                hooked.tell("fact while.away true")  # nobody hears it, so it is a gap
            assert session.wait_for(lambda _, n=before: connections(session) > n, 60), session.sources
            hooked.tell("request r1" if not part else "fact back true", "steps 50")
            assert session.wait_for(lambda store, n=50 * made: store.totals().steps >= n, 60), session.sources
        hooked.tell("finish")
        assert session.wait_for(lambda store: store.requests()[0].state == "finished", 60)
        assert session.wait_for(lambda store: ("progress", True) in [(r.rung, r.ok) for r in store.probes()], 60)
        assert [row.step for row in session.store.steps("r1")] == list(range(200))
    hooked.end()
    assert verify(tmp_path / "t.jsonl").problems == []


def _fast() -> dict[str, float]:
    return {name: value for name, value in FAST.items() if name not in ("probe",)}


def test_two_hosts_are_told_apart(service: Service, sshd: Sshd, tmp_path: Path) -> None:
    wanted = Wanted(port=service.port, log_files=[str(service.log)], **FAST)
    hosts = [
        AttachedHost(name, wanted, several=True, ssh=sshd.ssh if name == NAME else None) for name in (NAME, "localhost")
    ]
    with Session.run(hosts=hosts, out=tmp_path / "t.jsonl") as session:
        assert session.wait_for(
            lambda store: len([row for row in store.probes() if row.rung == "generate" and row.ok]) == 2, 60
        )
        assert {view.src: view.name for view in session.store.hosts()} == {
            f"probe/{NAME}": NAME, "probe/localhost": "localhost",
        }  # fmt: skip
        names = {status.name for status in session.sources}
        assert {NAME, "localhost", f"log/{NAME}/service.log", "log/localhost/service.log"} <= names
    assert verify(tmp_path / "t.jsonl").problems == []


def test_record_on_a_host_from_the_command_line(service: Service, sshd: Sshd, tmp_path: Path) -> None:
    out, wanted = tmp_path / "t.jsonl", (b"ready to roll", b'"rung":"health"')
    with subprocess.Popen(
        [
            sys.executable, "-m", "ddscope", "record", "--host", NAME, "--port", str(service.port), "--log-file",
            str(service.log), "-o", str(out), "--json",
        ],
        env={**os.environ, **sshd.environ}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            wait_for(lambda: out.exists() and all(words in out.read_bytes() for words in wanted), "the records")
        finally:
            process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    assert {"probe", "log/service.log"} <= set(json.loads(said)["sources"]), errors
    assert process.returncode == 0 and verify(out).problems == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--host", "no-such-host.invalid"], "There is no host no-such-host.invalid"),
        (["--host", "-oProxyCommand=x"], "cannot be the name of a host"),
        (["--host", "localhost", "--port", "1"], "On localhost, nobody listens on port 1."),
    ],
)
def test_what_cannot_be_attached_to_is_one_sentence_and_exit_2(
    args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDSCOPE_SSH", "ssh -F /dev/null")
    command = ["record", f"{args[0]}={args[1]}", *args[2:], "-o", str(tmp_path / "t.jsonl")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
