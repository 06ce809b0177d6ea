"""`attach --host localhost` on SGLang's own HTTP server: found by itself, its ladder, its hooks, its stacks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.remote.attached import AttachedHost, Wanted
from ddscope.session import Session
from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.server import HttpServer

WAIT_S = 120
QUICK = {"every": 0.5, "health_every": 1.0, "probe_every": 3.0, "probe_timeout": 60.0}


@pytest.fixture(scope="module")
def server(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("host")
    folder.chmod(0o700)
    more = {"enable_metrics": True, "served_model_name": "tiny"}
    env = {"DDSCOPE": f"unix:{folder}/%p.sock"}
    server = HttpServer(tiny.tree("STANDALONE", tiny.standalone) | more, folder, env)
    yield server
    server.stop()


def test_a_real_server_is_found_probed_and_streams_and_a_stopped_scheduler_is_seen(
    server: HttpServer, tmp_path: Path
) -> None:
    host = AttachedHost("localhost", Wanted(port=server.port, log_files=[str(server.log_path)], **QUICK))
    told = host.server
    assert (told["kind"], told["port"]) == ("sglang", server.port)
    assert told["packages"]["sglang"] and told["packages"]["torch"]
    names = {one["name"]: one["pid"] for one in told["processes"]}
    scheduler = next(pid for name, pid in names.items() if name.startswith("sglang::scheduler"))
    assert any(name.startswith("sglang::detokenizer") for name in names)
    with Session.run(hosts=[host], out=tmp_path / "t.jsonl") as session:

        def ladder() -> dict[str, bool]:
            return {row.rung: row.ok for row in session.store.probes()}

        assert session.wait_for(lambda _: ladder().get("generate") is True, WAIT_S), session.store.probes()
        assert session.wait_for(
            lambda store: any(row.rid.startswith("ddscope-probe-") and row.steps for row in store.requests()), WAIT_S
        ), "the probe's own steps come through the hooks"
        assert session.wait_for(lambda _: ladder().get("progress") is True, WAIT_S)
        assert all(ladder()[rung] for rung in ("process", "port", "health"))
        os.kill(scheduler, signal.SIGSTOP)
        try:
            assert session.wait_for(lambda _: ladder()["process"] is False, WAIT_S)
            assert session.wait_for(lambda store: scheduler in [view.pid for view in store.stacks()], WAIT_S)
        finally:
            os.kill(scheduler, signal.SIGCONT)
        (view,) = [view for view in session.store.stacks() if view.pid == scheduler]
        assert view.threads[0].name == "MainThread" and "sglang" in view.threads[0].at
        assert session.wait_for(lambda _: ladder()["process"] is True, WAIT_S)
