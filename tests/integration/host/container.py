"""A throw-away host: a container with its own systemd, journald and sshd, reached over loopback as `ct129`.

Its root is made once with debootstrap (a minute, 290 MB) and kept in the user's cache; each run boots a copy-on-write
view of it, so nothing of a run is left. Needs root, systemd-nspawn and debootstrap.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.host.sshd import free_port
from tests.unit.emit_support import wait_for

PACKAGES = "systemd,systemd-sysv,dbus,openssh-server,iproute2,procps,python3-minimal,libpython3-stdlib"
SITE = Path(__file__).parent / "site"
NAME = "ct129"
UNIT = """[Unit]
Description=A server in a small form
[Service]
ExecStart=/usr/bin/python3 /opt/server/sglang/launch_server.py --model-path Qwen/Qwen3-8B --port {port} \\
  --speculative-algorithm DFLASH
[Install]
WantedBy=multi-user.target
"""


def missing() -> str:
    """Why there can be no such host on this machine; "" when there can."""
    if os.geteuid() != 0:
        return "a throw-away host needs root"
    for program in ("systemd-nspawn", "debootstrap", "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install systemd-container debootstrap openssh-client)"
    return ""


@contextmanager
def booted(folder: Path) -> Iterator[Container]:
    """A running host; the test is skipped, with the reason, where none can be booted."""
    why = missing()
    if why:
        pytest.skip(why)
    try:
        with Container(folder) as made:
            yield made
    except RuntimeError as problem:
        pytest.skip(str(problem))


def cached_root() -> Path:
    """The root file system, made when it is not there. Raises RuntimeError with the last words of debootstrap."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddscope" / "test-host"
    root = cache / "root"
    if (cache / "made").exists():
        return root
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    release = Path("/etc/os-release").read_text()
    suite = re.search(r"^VERSION_CODENAME=(\w+)", release, re.M)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite[1] if suite else "stable", str(root)]
    done = subprocess.run([*command, *_mirror()], capture_output=True, text=True, check=False, timeout=400)
    if done.returncode:
        raise RuntimeError(f"debootstrap: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    (cache / "made").touch()
    return root


def _mirror() -> list[str]:
    """The mirror that this machine itself uses."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if path.exists() and (found := re.search(r"^(?:URIs:|deb(?: \[[^]]*\])?) +(\S+)", path.read_text(), re.M)):
            return [found[1]]
    return []


class Container:
    """Boots on entering. Raises RuntimeError where it does not come up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.server_port = free_port(), free_port()
        self.root = folder / "root"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Container:
        upper, work = self.folder / "upper", self.folder / "work"
        for made in (self.root, upper, work):
            made.mkdir()
        layers = f"lowerdir={cached_root()},upperdir={upper},workdir={work}"
        mounted = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)], capture_output=True, check=False
        )
        if mounted.returncode:  # no overlay on this file system: a copy does as well, only slower
            self.root.rmdir()
            subprocess.run(["cp", "-a", "--reflink=auto", str(cached_root()), str(self.root)], check=True)
        try:
            self._furnish()
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _furnish(self) -> None:
        key = self.folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        home = self.root / "root" / ".ssh"
        home.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(f"{key}.pub", home / "authorized_keys")
        (home / "authorized_keys").chmod(0o600)
        (self.root / "etc/hostname").write_text(NAME + "\n")
        sshd = self.root / "etc/ssh/sshd_config.d"
        sshd.mkdir(exist_ok=True)
        (sshd / "loopback.conf").write_text(f"Port {self.port}\nListenAddress 127.0.0.1\n")
        journald = self.root / "etc/systemd/journald.conf.d"
        journald.mkdir(exist_ok=True)
        (journald / "test.conf").write_text("[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n")
        shutil.copytree(SITE, self.root / "opt/server", ignore=shutil.ignore_patterns("__pycache__"))
        unit = self.root / "etc/systemd/system/sglang-qwen.service"
        unit.write_text(UNIT.format(port=self.server_port))
        (self.folder / "ssh_config").write_text(
            f"Host {NAME}\n  HostName 127.0.0.1\n  Port {self.port}\n  User root\n  IdentityFile {key}\n"
            f"  IdentitiesOnly yes\n  IdentityAgent none\n  StrictHostKeyChecking accept-new\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        )

    def _boot(self) -> None:
        with (self.folder / "console.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "systemd-nspawn", "-q", "-D", str(self.root), "--boot", "--register=no", "--keep-unit",
                    f"--hostname={NAME}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            wait_for(lambda: self.run("true").returncode == 0 or self._ended(), "the host", 120)
        except AssertionError:
            raise RuntimeError("the container did not come up") from None
        if self._ended():
            said = (self.folder / "console.log").read_text(errors="replace").strip().splitlines()
            raise RuntimeError(f"systemd-nspawn cannot boot here: {said[-1:]}")
        self.run("systemctl start sglang-qwen.service", check=True)
        self.await_server()

    def await_server(self) -> None:
        """Until the server takes connections: a unit is active before its process is what it is called."""

        def listens() -> bool:
            with socket.socket() as sock:  # a container of this kind has no network of its own
                return sock.connect_ex(("127.0.0.1", self.server_port)) == 0

        wait_for(listens, "the server")

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def ssh(self) -> list[str]:
        return ["ssh", "-F", str(self.folder / "ssh_config")]

    def run(self, command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """A shell command there, over a connection of its own."""
        words = [*self.ssh, "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR", NAME, command]
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check, timeout=120)

    def drop(self) -> None:
        """Kill what serves the connections that stand, that of this command too."""
        self.run("pkill -KILL -f " + shlex.quote(r"^sshd: root@"))

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        subprocess.run(["umount", str(self.root)], capture_output=True, check=False)
