"""Reaching a host: a real sshd over loopback, the real ssh, every refusal as one sentence."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddscope.remote import Host, HostError
from tests.integration.host.sshd import NAME, Sshd
from tests.unit.emit_support import wait_for


def refusal(host: Host) -> str:
    with host, pytest.raises(HostError) as caught:
        host.run(["true"])
    return str(caught.value)


# commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ssh", "localhost"])
def test_a_command_gets_its_words_and_input_as_they_are(kind: str, request: pytest.FixtureRequest) -> None:
    host = request.getfixturevalue("host") if kind == "ssh" else Host("localhost")
    words = ["a b", "$HOME", "it's", '"', "", "*", "é\n\\", "`id`;true"]
    script = "import sys; sys.stdout.write(repr(sys.argv[1:]) + sys.stdin.read()); sys.stderr.write('E'); sys.exit(7)"
    done = host.run([sys.executable, "-c", script, *words], input=b"\x00\xc3\xa9in")
    assert (done.status, done.out.decode(), done.err) == (7, repr(words) + "\x00éin", b"E")


@pytest.mark.parametrize("kind", ["ssh", "localhost"])
def test_a_program_that_is_not_there_is_status_127(kind: str, request: pytest.FixtureRequest) -> None:
    host = request.getfixturevalue("host") if kind == "ssh" else Host("localhost")
    done = host.run(["no-such-program-here"])
    assert done.status == 127 and b"not found" in done.err


def test_status_255_of_a_command_is_its_own(host: Host) -> None:
    assert host.run(["sh", "-c", "exit 255"]).status == 255


@pytest.mark.parametrize("kind", ["ssh", "localhost"])
def test_a_command_that_takes_too_long_is_one_sentence(kind: str, request: pytest.FixtureRequest) -> None:
    host = request.getfixturevalue("host") if kind == "ssh" else Host("localhost")
    with pytest.raises(HostError, match=rf"^{host.name} did not answer `sleep` within 0.3 s\.$"):
        host.run(["sleep", "30"], timeout=0.3)
    assert host.run(["true"]).status == 0


def test_all_commands_share_one_connection(host: Host, sshd: Sshd) -> None:
    outs: list[bytes] = []
    threads = [threading.Thread(target=lambda: outs.append(host.run(["echo", "x"]).out)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outs == [b"x\n"] * 4 and host.connections == 1
    assert (sshd.folder / "sshd.log").read_text().count("Accepted publickey") == 1


def test_nothing_is_left_when_it_is_closed(sshd: Sshd) -> None:
    host = Host(NAME, ssh=sshd.ssh)
    host.run(["true"])
    assert stat.S_IMODE(host.folder.stat().st_mode) == 0o700
    assert len(_ssh_clients(sshd)) == 1
    host.close()
    assert not host.folder.exists()
    wait_for(lambda: not _ssh_clients(sshd), "the end of ssh")
    with pytest.raises(HostError, match="was closed"):
        host.run(["true"])


def test_the_connection_ends_with_its_process(sshd: Sshd) -> None:
    code = (
        "import os, sys; from ddscope.remote import Host\n"
        f"h = Host({NAME!r}, ssh={sshd.ssh!r}); h.run(['true']); print(h.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    wait_for(lambda: not _ssh_clients(sshd), "the end of ssh")
    shutil.rmtree(done.stdout.strip(), ignore_errors=True)


@pytest.mark.parametrize("name", ["", "-oProxyCommand=x", "a b", "a\nb", "\x1b[2J"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(HostError, match="cannot be the name of a host"):
        Host(name)


def test_the_ssh_command_can_be_named_in_the_environment(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDSCOPE_SSH", sshd.environ["DDSCOPE_SSH"])
    with Host(NAME) as host:
        assert host.run(["echo", "hi"]).out == b"hi\n"


# losing it ------------------------------------------------------------------------------------------------------


def test_a_lost_connection_is_told_and_made_again(host: Host, sshd: Sshd) -> None:
    failed: list[str] = []

    def long() -> None:
        try:
            host.run(["sh", "-c", "echo begun >&2; sleep 60"])
        except HostError as problem:
            failed.append(str(problem))

    host.connect()
    thread = threading.Thread(target=long)
    thread.start()
    wait_for(lambda: _sleeping(sshd), "the command")
    sshd.drop()
    thread.join(60)
    assert failed == [f"The connection to {NAME} was lost while `sh` ran there."]
    wait_for(lambda: not host.connected, "the loss")
    assert host.run(["echo", "again"]).out == b"again\n"
    assert host.connections == 2


def test_a_host_that_is_away_is_not_asked_at_every_call(
    host: Host, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddscope.remote.host.BACKOFF_S", (600.0, 600.0))
    host.connect()
    sshd.vanish()
    wait_for(lambda: not host.connected, "the loss")
    refused = f"^{NAME} refuses connections on port {sshd.port}: is sshd running there"
    with pytest.raises(HostError, match=refused):
        host.run(["true"])
    sshd.start()
    for _ in range(3):
        with pytest.raises(HostError, match=refused):  # told the same, although it would be there now
            host.run(["true"])
    host._not_before = 0.0
    wait_for(lambda: _works(host), "the reconnection")


def test_when_ssh_itself_was_killed_the_next_connection_is_shared_again_and_forwards(host: Host, sshd: Sshd) -> None:
    remote = sshd.folder / "hook.sock"
    echo = Echo(remote)
    local = host.forward(str(remote))
    assert host._master is not None
    host._master.kill()  # its control socket stays behind
    wait_for(lambda: not host.connected, "the loss")
    assert [host.run(["echo", "x"]).out for _ in range(3)] == [b"x\n"] * 3 and host.connections == 2
    assert hello(local) == b"hello"
    assert (sshd.folder / "sshd.log").read_text().count("Accepted publickey") == 2
    echo.close()


def test_a_connection_that_is_being_made_can_be_broken_off(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECT_S", "READY_S"):
        monkeypatch.setattr(f"ddscope.remote.host.{name}", 3600)
    said: list[str] = []

    def connect() -> None:
        with pytest.raises(HostError) as caught:
            host.run(["true"])
        said.append(str(caught.value))

    with socket.create_server(("127.0.0.1", 0)) as silent:
        sshd.write_client(f"  Port {silent.getsockname()[1]}")
        with Host(NAME, ssh=sshd.ssh) as host:
            thread = threading.Thread(target=connect)
            thread.start()
            silent.settimeout(60)
            silent.accept()
            host.leave()
            thread.join(60)
    assert said == [f"The connection to {NAME} was closed."]


def _works(host: Host) -> bool:
    try:
        return host.run(["true"]).status == 0
    except HostError:
        return False


# refusals -------------------------------------------------------------------------------------------------------


def test_an_unknown_name() -> None:
    said = refusal(Host("no-such-host.invalid", ssh=["ssh", "-F", "/dev/null"]))
    assert said == ("There is no host no-such-host.invalid: neither ~/.ssh/config nor the name service knows it.")


def test_an_alias_to_an_unknown_name(sshd: Sshd) -> None:
    sshd.write_client("  HostName gone.invalid")
    assert refusal(Host(NAME, ssh=sshd.ssh)).startswith(
        f"There is no host gone.invalid, which ~/.ssh/config gives for {NAME},: neither"
    )


def test_nobody_listens(sshd: Sshd) -> None:
    sshd.stop()
    said = refusal(Host(NAME, ssh=sshd.ssh))
    assert said == f"{NAME} refuses connections on port {sshd.port}: is sshd running there, and on that port?"


def test_a_key_that_does_not_open(sshd: Sshd) -> None:
    sshd.write_client(key="other_key")
    said = refusal(Host(NAME, ssh=sshd.ssh))
    assert said.startswith(f"{NAME} does not let this user in without a question (publickey): load a key")


def test_a_password_is_never_asked_for(sshd: Sshd) -> None:
    sshd.stop()
    sshd.write_config()
    config = sshd.folder / "sshd_config"
    config.write_text(config.read_text().replace("PasswordAuthentication no", "PasswordAuthentication yes"))
    sshd.start()
    sshd.write_client(key="other_key")
    assert "ddscope never asks for passwords" in refusal(Host(NAME, ssh=sshd.ssh))


def test_a_host_key_that_changed(sshd: Sshd) -> None:
    sshd.know(sshd.folder / "other_key.pub")
    said = refusal(Host(NAME, ssh=sshd.ssh))
    assert said.startswith(f"The host key of {NAME} is not the one that is known")
    assert f"ssh-keygen -R {NAME}" in said


def test_a_host_key_that_is_not_known(sshd: Sshd) -> None:
    sshd.know(None)
    said = refusal(Host(NAME, ssh=sshd.ssh))
    assert said == f"The host key of {NAME} is not known yet: run `ssh {NAME}` once and confirm its fingerprint."


def test_a_host_that_says_nothing(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddscope.remote.host.CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sshd.write_client(f"  Port {silent.getsockname()[1]}")
        said = refusal(Host(NAME, ssh=sshd.ssh))
    assert said.startswith(f"{NAME} does not answer") and "is it up" in said


def test_a_configuration_that_is_wrong(sshd: Sshd) -> None:
    sshd.write_client("  NoSuchOption yes")
    assert refusal(Host(NAME, ssh=sshd.ssh)).startswith("ssh does not accept its configuration: ")


def test_no_ssh_at_all() -> None:
    said = refusal(Host(NAME, ssh=["no-such-ssh"]))
    assert said.startswith("no-such-ssh cannot be run: install the OpenSSH client")


# sockets --------------------------------------------------------------------------------------------------------


class Echo:
    """A unix socket that says hello to whoever comes."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(str(path))
        self._sock.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._sock.accept()
            except OSError:
                return
            with client:
                client.sendall(b"hello")

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def hello(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        try:
            sock.connect(str(path))
            return sock.recv(5)
        except OSError:
            return b""


def test_a_socket_of_the_host_is_reached_here_also_after_a_drop(host: Host, sshd: Sshd) -> None:
    remote = sshd.folder / "hook.sock"
    echo = Echo(remote)
    local = host.forward(str(remote))
    assert local != remote and local.parent.parent == host.folder
    assert hello(local) == b"hello"
    assert stat.S_IMODE(os.lstat(local).st_mode) & 0o077 == 0
    sshd.drop()
    wait_for(lambda: not host.connected, "the loss")
    assert hello(local) == b""
    host.connect()
    assert host.forward(str(remote)) == local
    assert hello(local) == b"hello"
    others = [host.forward(f"/{folder}/hook.sock") for folder in "ab"]
    host.unforward("/a/hook.sock")
    assert host.forward("/c/hook.sock") not in [local, *others], "each has a path of its own"
    host.unforward(str(remote))
    assert not local.exists()
    echo.close()


def test_on_this_machine_a_socket_is_itself(tmp_path: Path) -> None:
    with Host("localhost") as host:
        assert host.forward(str(tmp_path / "x.sock")) == tmp_path / "x.sock"


def _ssh_clients(sshd: Sshd) -> list[int]:
    return [pid for pid in _pids() if str(sshd.folder / "ssh_config").encode() in _words(pid)]


def _sleeping(sshd: Sshd) -> bool:
    from tests.integration.host.sshd import descendants

    assert sshd.process is not None
    return any(b"60" in _words(pid) for pid in descendants(sshd.process.pid))


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
