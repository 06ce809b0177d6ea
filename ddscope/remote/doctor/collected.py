"""What the doctor's script brings back from a host, as values; and bringing it back."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from ddscope.remote.bundle import script
from ddscope.remote.host import HostError
from ddscope.remote.sudo import Runs

ANSWER_LIMIT = 96 << 20
"""Bytes of an answer that are read; the script keeps to a fraction of it."""


SCRIPT = tuple(
    f"ddscope.remote.doctor.probe.{name}"
    for name in (
        "secret",
        "commands",
        "machine",
        "packages",
        "contents",
        "calls",
        "loading",
        "process",
        "units",
        "main",
    )
)
"""Modules of the script, each after those that it imports."""


class Differs(msgspec.Struct, frozen=True):
    """A file that is not as its package's list says. change: changed, missing or added; sha256 as in a RECORD."""

    path: str
    change: str
    sha256: str | None = None
    size: int | None = None
    mtime: int | None = None
    record: str | None = None
    error: str | None = None


class Skew(msgspec.Struct, frozen=True):
    """Files of one package against its RECORD; `why` where they could not be compared. installed: when, in seconds."""

    package: str
    version: str
    root: str
    checked: int
    sized: int
    differ: list[Differs]
    installed: float | None = None
    why: str | None = None
    editable: str | None = None
    commit: str | None = None
    git: list[str] = []


class Packed(msgspec.Struct, frozen=True):
    """A text file that came along. data: zlib, base64; empty where the file could not be read or is too big."""

    path: str
    sha256: str = ""
    data: str = ""

    def text(self) -> str | None:
        """The text, bytes that are not UTF-8 replaced; None where it did not come."""
        raw = self.raw()
        return None if raw is None else raw.decode("utf-8", "replace")

    def raw(self) -> bytes | None:
        """The bytes; None where they did not come, or not whole."""
        try:
            return zlib.decompress(base64.b64decode(self.data)) if self.data else None
        except (ValueError, zlib.error):
            return None


class Content(Packed, frozen=True):
    """A file of a package, and files beside it that are named like a backup of it."""

    package: str = ""
    backups: list[Packed] = []


class Site(msgspec.Struct, frozen=True):
    """A place that asks a predicate. function: the qualified name around it, "" at the top of the module."""

    predicate: str
    file: str
    line: int
    function: str = ""
    code: str = ""


class Import(msgspec.Struct, frozen=True):
    """A place that imports a package. how: `at import`, `guarded` or `later`."""

    file: str
    line: int
    how: str


class Needs(msgspec.Struct, frozen=True):
    """Who needs a package."""

    required_by: list[str] = []
    imported_by: list[Import] = []


class Loading(msgspec.Struct, frozen=True):
    """One import that was tried. error: the whole traceback."""

    package: str
    module: str
    loads: bool
    s: float | None = None
    error: str | None = None
    arch_list: list[str] | None = None
    abi: bool | None = None
    needs: Needs | None = None


class Gpu(msgspec.Struct, frozen=True, rename={"memory": "memory_total", "capability": "compute_cap"}):
    """One GPU, as nvidia-smi writes it."""

    name: str
    capability: str = ""
    memory: str = ""


class Gpus(msgspec.Struct, frozen=True):
    """GPUs and driver."""

    gpus: list[Gpu] = []
    driver: str | None = None
    driver_cuda: str | None = None
    why: str | None = None


class Torch(msgspec.Struct, frozen=True):
    """The torch build as its files say."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None


class Unmet(msgspec.Struct, frozen=True):
    """A pin of the server's package that the installed version does not meet."""

    package: str
    wanted: str
    version: str


class Process(msgspec.Struct, frozen=True):
    """The server's process. started: seconds since the epoch; shadows: folders that hide an installed package."""

    pid: int
    argv: list[str] = []
    env: dict[str, str] = {}
    started: float | None = None
    cwd: str | None = None
    shadows: list[str] = []
    why: str | None = None


class ServerInfo(msgspec.Struct, frozen=True):
    """What the server says of its settings, or why it does not."""

    url: str | None = None
    settings: dict[str, Any] | None = None
    why: str | None = None


class UnitFile(msgspec.Struct, frozen=True):
    """A unit file or a backup of the unit file `of`. mtime: seconds since the epoch."""

    path: str
    text: str
    mtime: float
    sha256: str
    of: str = ""


class Unit(msgspec.Struct, frozen=True):
    """A systemd unit: properties as loaded, files, backups; `why` where there is none."""

    unit: str
    user: bool = False
    shown: dict[str, str] = {}
    files: list[UnitFile] = []
    backups: list[UnitFile] = []
    why: str | None = None


class Collected(msgspec.Struct, frozen=True):
    """All that came from one host. failed: parts that could not be looked at, and why."""

    host: str = ""
    machine: dict[str, Any] = {}
    gpu: Gpus = Gpus()
    torch: Torch | None = None
    packages: dict[str, str] = {}
    unmet: list[Unmet] = []
    skew: list[Skew] = []
    contents: list[Content] = []
    predicates: list[str] = []
    calls: list[Site] = []
    loading: list[Loading] | None = None
    process: Process | None = None
    server_info: ServerInfo | None = None
    unit: Unit | None = None
    failed: dict[str, str] = {}

    def content(self, package: str, path: str) -> Content | None:
        """The text of a file of a package, where it came along."""
        return next((file for file in self.contents if file.package == package and file.path == path), None)

    def skew_of(self, package: str) -> Skew | None:
        """The comparison of a package with its RECORD."""
        return next((skew for skew in self.skew if skew.package == package), None)


def collect(host: Runs, python: str, plan: dict[str, Any], timeout: float = 600.0) -> Collected:
    """Run the doctor's script in `python` of the host. Raises HostError with one sentence.

    plan: what `probe.main.collect` takes.
    """
    # -B: nothing is written there, no byte code either.
    done = host.run([python, "-B", "-"], input=script(SCRIPT, "main", plan), timeout=timeout)
    said = done.err.decode("utf-8", "replace").strip().splitlines()
    if done.status in (126, 127):
        raise HostError(f"{host.name} has no {python} that can be run: name the server's Python with --python.")
    last = said[-1] if said else f"exit status {done.status}"
    if done.status or not done.out:
        raise HostError(f"{python} on {host.name} could not look around: {last}.")
    if len(done.out) > ANSWER_LIMIT:
        raise HostError(f"{python} on {host.name} answered with {len(done.out):,} bytes, which is more than it should.")
    return read(done.out, host.name)


def read(answer: bytes, name: str) -> Collected:
    """The script's answer as values. Raises HostError where it is something else."""
    try:
        found = msgspec.json.decode(answer, type=Collected)
    except (msgspec.DecodeError, RecursionError):
        raise HostError(f"{name} answered with something else than the doctor's findings.") from None
    return msgspec.structs.replace(found, host=name)
