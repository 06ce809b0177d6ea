"""A server that is a unit of a user's own manager, on a host with a real systemd: found, watched, its journal read."""

from __future__ import annotations

from typing import Any

import pytest

from ddscope.remote import Host
from ddscope.remote.agent import look
from ddscope.remote.attached import AttachedHost, Wanted
from tests.integration.host.container import NAME, Container
from tests.integration.host.service import Kept
from tests.integration.host.test_attached import FAST
from tests.integration.host.test_container import box  # noqa: F401 - a fixture
from tests.unit.emit_support import wait_for

pytestmark = pytest.mark.slow
UNIT = "sglang-own.service"
# The host of the tests has no PAM module that would tell a user's manager where it lives.
ALONE = "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n"


@pytest.fixture(params=["root", "alice"])
def owner(box: Container, request: pytest.FixtureRequest) -> str:  # noqa: F811
    """A user with a manager that runs a server; the system's own server rests meanwhile."""
    user = str(request.param)
    port = box.server_port + 1
    system = box.root / "etc/systemd/system/sglang-qwen.service"
    if system.exists():
        box.text = system.read_text().replace(str(box.server_port), str(port))  # type: ignore[attr-defined]
    drop_in = box.root / "etc/systemd/system/user@.service.d"
    drop_in.mkdir(exist_ok=True)
    (drop_in / "alone.conf").write_text(ALONE)
    box.run(f"id {user} || useradd --create-home {user}", check=True)
    home = box.run(f"echo ~{user}").stdout.strip()
    folder = box.root / home.lstrip("/") / ".config/systemd/user"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNIT).write_text(box.text)  # type: ignore[attr-defined]
    own = f"runuser -u {user} -- env XDG_RUNTIME_DIR=/run/user/$(id -u {user}) systemctl --user"
    box.run("systemctl stop sglang-qwen; rm -f /etc/systemd/system/sglang-qwen.service; systemctl daemon-reload")
    box.run(f"systemctl start user@$(id -u {user}) && {own} daemon-reload && {own} start {UNIT}", check=True)
    request.addfinalizer(lambda: box.run(f"systemctl stop user@$(id -u {user})"))
    return user


def test_a_users_unit_is_found_watched_and_read(box: Container, owner: str) -> None:  # noqa: F811
    attached = AttachedHost(NAME, Wanted(**FAST), ssh=box.ssh)
    kept = Kept()
    attached.open(kept, lambda _: None)
    try:
        server: dict[str, Any] = attached.server
        assert (server["unit"], server["user_unit"]) == (UNIT, owner)
        for _, source in attached.sources:
            source.start()
        said = kept.await_rung("unit", True).detail or ""
        assert said.startswith(f"{UNIT} is active (running)")
        kept.await_rung("generate", True)
        wait_for(lambda: any("fired up" in text for text in kept.messages()), "its own lines")
        wait_for(lambda: any(f"Started {UNIT}" in text for text in kept.messages()), "its manager's lines")
    finally:
        for _, source in attached.sources:
            source.stop()
        attached.close()


def test_a_users_unit_that_rests_is_said_to_be_there(box: Container) -> None:  # noqa: F811
    box.run("systemctl start user@0", check=True)
    with Host(NAME, ssh=box.ssh) as host:
        for unit in ("", "sglang-own"):
            seen = look(host, unit)
            told = [one for one in seen["idle"] if one["unit"] == UNIT]
            assert told == [{"unit": UNIT, "state": "inactive", "user_unit": "root", "user_id": 0}]
            assert seen["servers"] == [] and seen["problems"] == []
