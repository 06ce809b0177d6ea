"""Fixtures of a host that is reached over a real ssh connection."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.remote import Host
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
