"""The file as its wheel had it: from a backup on the host, another host's copy, or the wheel itself. Always by hash.

Every text handed out has the sha256 that the installed RECORD gives, so where it came from needs no trust.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ddscope.remote.doctor.collected import Collected, Content, Differs, Skew

FILE_LIMIT = 64 << 20
DOWNLOAD_S = 300.0
GLIBC = (17, 24, 27, 28, 31, 34, 35, 36, 38, 39, 40)
"""Minor versions of glibc that wheels are built for."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,100}")


@dataclass(frozen=True)
class Pristine:
    """The bytes of a file as its wheel had them. origin: in words, `its wheel`; backup: its path on the host."""

    data: bytes
    origin: str
    backup: str | None = None

    @property
    def text(self) -> str:
        """As text, bytes that are not UTF-8 replaced."""
        return self.data.decode("utf-8", "replace")


def record_hash(data: bytes) -> str:
    """sha256 as a RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def cache_folder() -> Path:
    """Where wheels are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "ddscope" / "wheels"


def platforms(arch: str) -> list[str]:
    """Platform tags of the wheels that a Linux host of this processor can have; [] for an unknown one."""
    if arch not in ("x86_64", "aarch64"):
        return []
    return [f"manylinux2014_{arch}", *(f"manylinux_2_{minor}_{arch}" for minor in GLIBC), f"linux_{arch}"]


@dataclass
class PristineFiles:
    """Finds pristine files, cheapest first. `why`: what kept a wheel from being had, by package.

    others: what came from other hosts. download: whether a wheel may be fetched with pip.
    """

    others: Iterable[Collected] = ()
    download: bool = True
    why: dict[str, str] = field(default_factory=dict)
    _wheels: dict[tuple[str, str], Path | None] = field(default_factory=dict)

    def file(
        self, skew: Skew, row: Differs, content: Content | None, python: str = "", arch: str = ""
    ) -> Pristine | None:
        """A file that differs, as it was; None where it cannot be had (or was never in the wheel).

        python, arch: version of the host's Python and its processor (`x86_64`), for the right wheel.
        """
        if not row.record:
            return None
        for backup in content.backups if content is not None else ():
            data = backup.raw()
            if data is not None and record_hash(data) == row.record:
                return Pristine(data, f"its backup {backup.path}", backup.path)
        for other in self.others:
            theirs = other.content(skew.package, row.path)
            data = theirs.raw() if theirs is not None else None
            if data is not None and record_hash(data) == row.record:
                return Pristine(data, f"the copy on {other.host}")
        wheel = self._wheel(skew.package, skew.version, python, arch)
        data = None if wheel is None else self._member(wheel, row.path)
        if data is None:
            return None
        if record_hash(data) != row.record:
            self.why[skew.package] = (
                f"the wheel {skew.package} {skew.version} of the index has another {row.path} than was installed"
            )
            return None
        return Pristine(data, "its wheel")

    def _member(self, wheel: Path, path: str) -> bytes | None:
        try:
            with zipfile.ZipFile(wheel) as archive:
                info = archive.getinfo(path)
                return archive.read(info) if info.file_size <= FILE_LIMIT else None
        except (KeyError, OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError):
            return None

    def _wheel(self, package: str, version: str, python: str, arch: str) -> Path | None:
        key = package, version
        if key not in self._wheels:
            self._wheels[key] = self._find(package, version, python, arch)
        return self._wheels[key]

    def _find(self, package: str, version: str, python: str, arch: str) -> Path | None:
        # Both come from the host's files and become arguments here.
        if not _NAME.fullmatch(package) or not _VERSION.fullmatch(version):
            self.why[package] = "its name or version is not one that an index knows"
            return None
        tag = "".join(re.findall(r"\d+", python)[:2])
        folder = cache_folder() / "-".join(filter(None, (package, version, tag, arch if _NAME.fullmatch(arch) else "")))
        kept = sorted(folder.glob("*.whl"))
        if kept:
            return kept[0]
        if not self.download:
            self.why[package] = "its wheel was not downloaded (--no-download)"
            return None
        return self._download(package, version, tag, arch, folder)

    def _download(self, package: str, version: str, tag: str, arch: str, folder: Path) -> Path | None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
                command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
                command += ["--disable-pip-version-check", "--no-input", "-d", fresh]
                command += ["--python-version", tag] if tag else []
                # The wheel for the host, which may be newer than this machine, or no Linux like it.
                command += [word for name in platforms(arch) for word in ("--platform", name)]
                command += [f"{package}=={version}"]
                done = subprocess.run(command, capture_output=True, timeout=DOWNLOAD_S, stdin=subprocess.DEVNULL)
                wheels = sorted(Path(fresh).glob("*.whl"))
                if done.returncode or not wheels:
                    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
                    self.why[package] = f"its wheel cannot be had: {said[-1] if said else 'pip said nothing'}"
                    return None
                folder.mkdir(exist_ok=True)
                return Path(shutil.move(wheels[0], folder / wheels[0].name))
        except subprocess.TimeoutExpired:
            self.why[package] = f"its wheel did not come within {DOWNLOAD_S:g} s"
        except OSError as error:
            self.why[package] = f"its wheel cannot be kept: {error.strerror or error}"
        return None
