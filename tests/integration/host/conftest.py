"""Fixtures of a host that is reached over a real ssh connection."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.remote import Host
from tests.integration.emitting_server import Server
from tests.integration.host.service import Service
from tests.integration.host.sshd import MISSING, NAME, Sshd


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    """A running sshd; skipped where there is none to run."""
    if MISSING:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(prefix="ddscope-sshd-") as folder:
        server = Sshd(Path(folder))
        server.start()
        yield server
        server.drop()
        server.stop()


@pytest.fixture
def host(sshd: Sshd) -> Iterator[Host]:
    """The host behind it."""
    with Host(NAME, ssh=sshd.ssh) as made:
        yield made


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A running service in the shape of a server."""
    made = Service(tmp_path / "service.log")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def hooked(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A process that emits like a rank, started with DDSCOPE as a server is."""
    monkeypatch.setenv("DDSCOPE", f"unix:{sshd.folder}/%p.sock")
    return Server(Path(f"{sshd.folder}/%p.sock"))
