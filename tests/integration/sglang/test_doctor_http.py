"""The doctor on a real SGLang server that answers over HTTP: nothing is called wrong that is as it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ddscope.remote import Host
from ddscope.remote.doctor import arguments
from ddscope.remote.doctor.examine import Examined, examine, look
from ddscope.remote.doctor.locate import locate
from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support.server import HttpServer


@pytest.fixture(scope="module")
def asked(tiny: Tiny) -> dict[str, Any]:
    return tiny.tree("STANDALONE", tiny.standalone)


@pytest.fixture(scope="module")
def server(asked: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    server = HttpServer(asked, tmp_path_factory.mktemp("doctor"), {})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def examined(server: HttpServer, asked: dict[str, Any]) -> Examined:
    """As if these arguments had been given on a command line, which this server was not started with."""
    with Host("localhost") as host:
        one = locate(host, pid=server.process.pid, port=server.port)
        found = look(host, one, load=False)
    assert found.process is not None
    words = [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    process = replace(found.process, argv=["python", "-m", "sglang.launch_server", *words])
    return examine(one, replace(found, process=process), download=False)


def test_the_server_is_found_with_its_python_and_port(examined: Examined, server: HttpServer) -> None:
    assert examined.server.port == server.port
    assert Path(examined.server.python).parts[-3:] == (".venv-sglang", "bin", "python")


def test_what_was_asked_for_is_in_force(examined: Examined) -> None:
    asked, given = arguments.requested(examined.found), arguments.effective(examined.found)
    assert asked["speculative_algorithm"] == given["speculative_algorithm"] == "STANDALONE"
    assert set(asked) <= set(given)
    assert [change for change in arguments.changes(examined.found) if not change.benign] == []
    assert [item.title for item in examined.items if item.severity in ("critical", "high")] == []
