"""A host by its name: commands there over the system's OpenSSH and one multiplexed connection; `localhost` without ssh.

Aliases, jumps, agents, hardware keys and known hosts are OpenSSH's own business. What is run there is not known here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ddscope.remote.refusals import sentence

CONNECT_S = 10
"""Seconds one address may take to answer; OpenSSH may try several."""
READY_S = 30.0
ALIVE_S, ALIVE_COUNT = 5, 3
"""A connection over which nothing came for 15 s although it was asked is given up."""
BACKOFF_S = (0.5, 15.0)
READY = b"ddscope: ready"
SSH = "DDSCOPE_SSH"
"""Environment variable with another ssh command, options included: `ssh -F FILE`."""
LOCAL = ("localhost", "local")
CONTROL = "m"
ASK_S = 20.0
NOT_FOUND = 127
SSH_FAILED = 255


class HostError(ValueError):
    """A host cannot be reached, or does not do what was asked. The message is one sentence a person can act on."""


class Done(NamedTuple):
    """A command that ended: exit status (127: there is no such program), standard output, standard error."""

    status: int
    out: bytes
    err: bytes


class Host:
    """One host; connects when first needed, and again after it was lost. All methods may be called from any thread.

    name: as in `ssh NAME`; `localhost` (or `local`) is this machine, without ssh. Raises HostError for what cannot be
    a name. ssh: the command to use instead of `ssh` or what DDSCOPE_SSH says.
    """

    def __init__(self, name: str, *, ssh: Sequence[str] | None = None) -> None:
        if not name or name.startswith("-") or any(c.isspace() or not c.isprintable() for c in name):
            raise HostError(f"{name!r} cannot be the name of a host.")
        self.name = name
        self.is_local = name in LOCAL
        self._ssh = list(ssh) if ssh is not None else shlex.split(os.environ.get(SSH, "")) or ["ssh"]
        # Short, because a socket's path has at most 107 bytes and ssh adds 17 while it makes it; mode 0700.
        self.folder = Path(tempfile.mkdtemp(prefix="ddscope-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)  # where nobody closes it
        self._lock = threading.RLock()
        self._master: subprocess.Popen[bytes] | None = None
        self._making: subprocess.Popen[bytes] | None = None
        self._forwards: dict[str, Path] = {}
        self._forwarded = 0
        self._closed = False
        self._why = ""
        self._wait = 0.0
        self._not_before = 0.0
        self.connections = 0
        """How often a connection was made."""

    # commands -------------------------------------------------------------------------------------------------

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = 30.0) -> Done:
        """Run a command there until it ends. A status other than 0 is an answer, not an error.

        Raises HostError when the host cannot be reached, is lost meanwhile, or does not answer within `timeout` s.
        """
        local = self.command(argv)
        try:
            done = subprocess.run(
                local, input=input, capture_output=True, timeout=timeout, check=False, start_new_session=True
            )
        except subprocess.TimeoutExpired:
            raise HostError(f"{self.name} did not answer `{argv[0]}` within {timeout:g} s.") from None
        except FileNotFoundError:
            if not self.is_local:
                raise HostError(self._no_ssh()) from None
            return Done(NOT_FOUND, b"", f"{argv[0]}: not found\n".encode())
        except OSError as error:
            raise HostError(f"`{argv[0]}` cannot be run: {error.strerror or error}.") from None
        if not self.is_local and done.returncode == SSH_FAILED and not self._stands(done.stderr):
            raise HostError(f"The connection to {self.name} was lost while `{argv[0]}` ran there.")
        return Done(done.returncode, done.stdout, done.stderr)

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs `argv` there, for a Popen of one's own. Connects; raises HostError."""
        if self.is_local:
            return list(argv)
        self.connect()
        return [*self._client(), "-T", "--", self.name, shlex.join(argv)]

    def _stands(self, said: bytes) -> bool:
        """Whether the connection answers, and took the command: status 255 was the command's then, else ssh's."""
        return b"mux_client" not in said and self.connected and self._ask("check") == 0

    # the connection -------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known; always for this machine."""
        return self.is_local or (self._master is not None and self._master.poll() is None)

    def connect(self) -> None:
        """Connect if that is not so. Raises HostError with why it cannot be; the same again while it backs off."""
        if self.is_local:
            return
        with self._lock:
            if self.connected:
                return
            if self._closed:
                raise HostError(f"The connection to {self.name} was closed.")
            if time.monotonic() < self._not_before:
                raise HostError(self._why)
            self._drop()
            try:
                self._begin()
            except HostError as problem:
                self._why = str(problem)
                self._wait = min(max(self._wait * 2, BACKOFF_S[0]), BACKOFF_S[1])
                self._not_before = time.monotonic() + self._wait
                raise
            self._wait = self._not_before = 0.0
            self.connections += 1
            for remote, local in self._forwards.items():
                self._forward(remote, local)

    def leave(self) -> None:
        """Connect no more, and break off a connection that is being made; one that stands goes on until `close`."""
        self._closed = True
        making = self._making
        if making is not None:
            making.terminate()

    def close(self) -> None:
        """Disconnect and remove what was made here. What still runs there over `command` loses its connection."""
        self.leave()
        with self._lock:
            self._drop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _options(self) -> list[str]:
        said = {
            "BatchMode": "yes",  # never ask: a question nobody sees would hang the screen
            "ConnectTimeout": str(CONNECT_S),
            "ServerAliveInterval": str(ALIVE_S),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ControlPath": str(self.folder / CONTROL),
            "ControlPersist": "no",
            "ClearAllForwardings": "no",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "PermitLocalCommand": "no",
            "RemoteCommand": "none",
            "RequestTTY": "no",
            "LogLevel": "ERROR",
        }
        return [word for name, value in said.items() for word in ("-o", f"{name}={value}")]

    def _client(self) -> list[str]:
        return [*self._ssh, *self._options(), "-o", "ControlMaster=no"]

    def _begin(self) -> None:
        """Start the connection that all others go through. It ends with the pipe to it, so with this process, too."""
        (self.folder / CONTROL).unlink(missing_ok=True)  # of one that was killed: ssh would do without, and say nothing
        said = self.folder / "said"
        command = [*self._ssh, *self._options(), "-o", "ControlMaster=yes", "-o", "ExitOnForwardFailure=no"]
        command += ["-T", "--", self.name, f"echo {shlex.quote(READY.decode())}; exec cat >/dev/null"]
        try:
            with said.open("wb") as err:
                made = self._making = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, start_new_session=True
                )
        except OSError:
            raise HostError(self._no_ssh()) from None
        if self._closed:  # `leave` may not have seen it
            made.terminate()
        why = self._await_ready(made)
        self._making = None
        if why:
            words = said.read_text("utf-8", "replace") if said.exists() else ""
            _end(made)
            if self._closed:
                why, words = f"The connection to {self.name} was closed.", ""
            raise HostError(sentence(self.name, words) or why)
        self._master = made  # only now: until it is ready nothing can go through it

    def _await_ready(self, master: subprocess.Popen[bytes]) -> str:
        """Until the host's shell has spoken; why not, else."""
        assert master.stdout is not None
        deadline, heard = time.monotonic() + READY_S, b""
        while READY not in heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([master.stdout], [], [], left)[0]:
                return f"{self.name} did not let this user in within {READY_S:g} s."
            data = os.read(master.stdout.fileno(), 1 << 16)
            if not data:
                return f"ssh to {self.name} ended with status {master.wait()} before a command could be run."
            heard = (heard + data)[-(1 << 16) :]
        return ""

    def _drop(self) -> None:
        master, self._master = self._master, None
        if master is not None:
            _end(master)

    def _no_ssh(self) -> str:
        return f"{self._ssh[0]} cannot be run: install the OpenSSH client, or say in {SSH} which command to use."

    # sockets --------------------------------------------------------------------------------------------------

    def forward(self, remote: str) -> Path:
        """A local path at which a unix socket of the host can be reached, over reconnections too. Raises HostError."""
        if self.is_local:
            return Path(remote)
        if ":" in remote or not remote.startswith("/"):
            raise HostError(f"{remote} cannot be forwarded: an absolute path without a colon is needed.")
        self.connect()
        with self._lock:
            if remote not in self._forwards:
                folder = self.folder / f"f{self._forwarded}"
                self._forwarded += 1
                folder.mkdir(mode=0o700)
                self._forwards[remote] = folder / (Path(remote).name[-40:] or "socket")
                self._forward(remote, self._forwards[remote])
            return self._forwards[remote]

    def unforward(self, remote: str) -> None:
        """Forward a socket no longer: it has gone."""
        with self._lock:
            local = self._forwards.pop(remote, None)
            if local is not None and self.connected:
                self._ask("cancel", "-L", f"{local}:{remote}")
            if local is not None:
                local.unlink(missing_ok=True)

    def _forward(self, remote: str, local: Path) -> None:
        """A server that forbids it is found out by who connects."""
        local.unlink(missing_ok=True)
        self._ask("forward", "-L", f"{local}:{remote}")

    def _ask(self, what: str, *words: str) -> int:
        """Ask ssh here that holds the connection for something; 0 when it does. The host has no part in it."""
        command = [*self._client(), "-O", what, *words, "--", self.name]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=ASK_S, check=False)
            return done.returncode
        return SSH_FAILED


def _end(ssh: subprocess.Popen[bytes]) -> None:
    """Not only its pipe: other sessions would keep it."""
    for stream in (ssh.stdin, ssh.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    ssh.terminate()
    try:
        ssh.wait(2)
    except subprocess.TimeoutExpired:
        ssh.kill()
        ssh.wait()
