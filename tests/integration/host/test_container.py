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
    script = (
        "import sys, time\\n"
        f"for n in range({LINES}):\\n"
        " print('line', n, flush=n % 50 == 49)\\n"
        " if n % 50 == 49: time.sleep(0.012)\\n"
    )
    kept = Kept()
    with Host(NAME, ssh=box.ssh) as host:
        box.run(f'systemd-run --unit=chatty python3 -c "exec(\\"{script}\\")"', check=True)
        source = JournalSource("chatty.service", kept, last="all", there=host.command, host=NAME)
        source.start()
        for event in (
            box.drop,
            lambda: box.run("systemctl restart systemd-journald"),
            box.drop,
            lambda: box.run("journalctl --rotate"),
            lambda: box.run("journalctl --rotate --vacuum-size=1M"),
            box.drop,
        ):
            before = len(kept.lines)
            wait_for(lambda before=before: len(kept.lines) > before + 2000, f"lines: {source.reason}", 60)  # type: ignore[misc]
            event()
        last = f"line {LINES - 1}"
        wait_for(lambda: last.encode() in kept.lines[-1] or last in kept.messages()[-3:], source.reason, 90)
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
