"""On a host with its own systemd and journald: discovery and ladder by unit, a journal through all that befalls it.

The host is a container that is thrown away; see `container`. Skipped, with the reason, where none can be booted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Gap, Log
from ddscope.remote import Host
from ddscope.remote.attached import AttachedHost, Wanted
from ddscope.session import Session
from ddscope.sources import JournalSource
from tests.integration.host.container import NAME, Container, booted
from tests.integration.host.service import Kept
from tests.integration.host.test_attached import FAST
from tests.unit.emit_support import wait_for

pytestmark = pytest.mark.slow
LINES = 50_000
CHATTY = f"""
import time
said = 0
while said < {LINES}:
    until = int(open("/opt/until").read() or 0)
    for said in range(said, until):
        print("line", said, flush=said % 50 == 49)
        if said % 50 == 49:
            time.sleep(0.012)
    said = max(said, until)
    print(end="", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with booted(tmp_path_factory.mktemp("host")) as made:
        yield made


def attach(box: Container, **options: Any) -> AttachedHost:
    return AttachedHost(NAME, Wanted(**{**FAST, **options}), ssh=box.ssh)


def test_the_unit_is_found_by_itself(box: Container) -> None:
    host = attach(box)
    server = host.server
    host.close()
    assert (server["unit"], server["kind"], server["port"]) == ("sglang-qwen.service", "sglang", box.server_port)
    assert server["algorithm"] == "DFLASH"
    assert [one["name"] for one in server["processes"]] == ["python3", "sglang::scheduler_TP0"]


def test_fifty_thousand_lines_through_cuts_a_restart_a_rotation_and_a_vacuum(box: Container) -> None:
    (box.root / "opt/chatty.py").write_text(CHATTY)
    until, kept, events = box.root / "opt/until", Kept(), 6
    until.write_text("0")
    with Host(NAME, ssh=box.ssh) as host:
        box.run("systemd-run --unit=chatty python3 /opt/chatty.py", check=True)
        source = JournalSource("chatty.service", kept, last="all", there=host.command, host=NAME)
        source.start()

        def all_read() -> None:  # what is vacuumed before anybody read it is lost for everybody
            last = f'"line {int(until.read_text()) - 1}"'.encode()
            try:  # systemd may have added lines of its own
                wait_for(lambda: any(last in line for line in kept.lines[-50:]), f"{last!r}: {source.reason}", 120)
            except AssertionError as late:
                raise AssertionError(f"{late}; last came {kept.messages()[-5:]}") from None

        drops = 0
        for number, event in enumerate(
            (
                box.drop,
                lambda: box.run("systemctl restart systemd-journald"),
                box.drop,
                lambda: box.run("journalctl --rotate"),
                lambda: (all_read(), box.run("journalctl --rotate --vacuum-size=1M")),
                box.drop,
            )
        ):
            # Lines of the connection before may still be read: this must be the next one.
            wait_for(lambda drops=drops: host.connections > drops, f"the connection: {source.reason}")  # type: ignore[misc]
            before = len(kept.lines)
            until.write_text(str((number + 1) * LINES // events))
            wait_for(lambda before=before: len(kept.lines) > before + 500, f"lines: {source.reason}")  # type: ignore[misc]
            event()
            drops += event == box.drop
        all_read()
        source.stop()
        assert host.connections >= 4
    numbers = [int(log.message.split()[1]) for log in kept.of(Log) if str(log.message).startswith("line ")]
    assert numbers == list(range(LINES)), "none lost, none twice, in order"
    assert kept.of(Gap) == []
    kept.check_books()


def test_the_ladder_goes_down_and_up_with_the_unit_and_its_processes(box: Container, tmp_path: Path) -> None:
    host = attach(box, probe_timeout=2.0)
    with Session.run(hosts=[host], out=tmp_path / "t.jsonl") as session:
        assert session.wait_for(lambda store: len(store.hosts()) == 1 and _ok(store, "generate"), 60), session.sources
        assert session.wait_for(lambda store: len(store.logs()) > 0, 60)

        box.run("systemctl stop sglang-qwen", check=True)
        assert session.wait_for(lambda store: _failing(store) == "unit", 60)
        box.run("systemctl start sglang-qwen", check=True)
        assert session.wait_for(lambda store: _failing(store) is None and _ok(store, "generate"), 60)

        box.run("kill -STOP $(systemctl show -P MainPID sglang-qwen)", check=True)
        assert session.wait_for(lambda store: _failing(store) == "process", 60)
        box.run("kill -CONT $(systemctl show -P MainPID sglang-qwen)", check=True)
        assert session.wait_for(lambda store: _failing(store) is None, 60)


def _failing(store: Any) -> str | None:
    row = store.hosts()[0].failing
    return row.rung if row is not None else None


def _ok(store: Any, rung: str) -> bool:
    return any(row.ok for row in store.probes() if row.rung == rung)
