"""A real sshd on a private port of this machine with keys and configuration of its own; nothing of the user is read.

`drop` cuts every connection, as a client sees a pulled cable; `stop` and `start` take the host away and bring it back.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.unit.emit_support import wait_for

SSHD = next((p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if os.path.exists(p)), "")
MISSING = next(
    (
        f"{program} is not installed (apt-get install openssh-server openssh-client)"
        for program, found in (("sshd", SSHD), ("ssh", shutil.which("ssh")), ("ssh-keygen", shutil.which("ssh-keygen")))
        if not found
    ),
    "",
)
NAME = "ct129"


def free_port() -> int:
    """A port that nobody has now, nor is given for a connection of its own before it is used (ip_local_port_range)."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


class Sshd:
    """One server. `ssh` is the command that reaches it as NAME; `environ` lets ddscope use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        for key in ("host_key", "user_key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        self.write_config()
        self.know(self.folder / "host_key.pub")
        self.write_client()

    def write_config(self, *lines: str) -> None:
        """The server's configuration, with more lines."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        said = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder}/host_key", "PidFile none",
            f"AuthorizedKeysFile {self.folder}/authorized_keys", "StrictModes no", "UsePAM no",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin yes", *lines,
        ]  # fmt: skip
        (self.folder / "sshd_config").write_text("\n".join(said) + "\n")

    def write_client(self, *lines: str, key: str = "user_key") -> None:
        """The client's configuration, with more lines before all others."""
        said = [
            f"Host {NAME}", *lines, "  HostName 127.0.0.1", f"  Port {self.port}", f"  User {getpass.getuser()}",
            f"  IdentityFile {self.folder}/{key}", "  IdentitiesOnly yes", "  IdentityAgent none",
            f"  UserKnownHostsFile {self.folder}/known_hosts", "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
        ]  # fmt: skip
        (self.folder / "ssh_config").write_text("\n".join(said) + "\n")

    def know(self, key: Path | None) -> None:
        """What the client knows of the host: this key, or none."""
        line = "" if key is None else f"[127.0.0.1]:{self.port} {key.read_text()}"
        (self.folder / "known_hosts").write_text(line)

    @property
    def ssh(self) -> list[str]:
        return ["ssh", "-F", str(self.folder / "ssh_config")]

    @property
    def environ(self) -> dict[str, str]:
        return {"DDSCOPE_SSH": shlex.join(self.ssh)}

    def start(self) -> None:
        with (self.folder / "sshd.log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._answers, f"sshd on port {self.port}: {(self.folder / 'sshd.log').read_text()[-500:]}")

    def _answers(self) -> bool:
        with socket.socket() as sock:
            sock.settimeout(1)
            return sock.connect_ex(("127.0.0.1", self.port)) == 0 and sock.recv(4) == b"SSH-"

    @property
    def sessions(self) -> list[int]:
        """Processes that serve the connections that stand."""
        found = [] if self.process is None else descendants(self.process.pid)
        return [pid for pid in found if _comm(pid).startswith("sshd")]

    def drop(self) -> int:
        """Kill what serves the connections that stand; how many processes that were."""
        return _kill(self.sessions)

    def stop(self) -> None:
        """Nobody listens any more; connections that stand go on."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def vanish(self) -> None:
        """Both: no connection stands, and none can be made."""
        sessions = self.sessions
        self.stop()
        _kill(sessions)


def _kill(pids: list[int]) -> int:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """Processes that descend from one, itself left out."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found
