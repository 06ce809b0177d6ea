"""A systemd unit as it runs, as the manager has loaded it, as its files say, and as their backups said. Pure.

Only what changes how a server runs is compared: command, environment, folder, user.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddscope.remote.doctor.collected import Process, Unit, UnitFile

HIDDEN = "(hidden)"
SIMPLE = ("WorkingDirectory", "User", "EnvironmentFile")
Settings = dict[str, str]
"""Directive (`ExecStart`, `Environment=NAME`, `User`) → value."""


@dataclass(frozen=True)
class Difference:
    """One directive with two values; None: not set on that side."""

    what: str
    one: str | None
    other: str | None


@dataclass(frozen=True)
class BackupDrift:
    """A backup and how the file beside it differs: one is the file's, other the backup's."""

    path: str
    of: str
    differ: tuple[Difference, ...]


@dataclass(frozen=True)
class Drift:
    """running: one is what runs, other what is on disk. newer: files changed after the process began."""

    need_reload: bool
    running: tuple[Difference, ...]
    newer: tuple[str, ...]
    backups: tuple[BackupDrift, ...]

    @property
    def any(self) -> bool:
        """Whether what runs is not what is on disk."""
        return self.need_reload or bool(self.running)


def drift(unit: Unit, process: Process | None) -> Drift:
    """Compare. process: the unit's main process, where it is known."""
    disk = merge(parse(file.text) for file in unit.files)
    loaded = _loaded(unit)
    main = process if process is not None and str(process.pid) == unit.shown.get("MainPID") else None
    running = _running(loaded, main)
    names = [name for name in dict.fromkeys([*running, *disk]) if _comparable(name, loaded, main)]
    differ = tuple(
        Difference(name, running.get(name), disk.get(name))
        for name in names
        if not same(running.get(name), disk.get(name))
    )
    started = main.started if main is not None else None
    newer = tuple(file.path for file in unit.files if started is not None and file.mtime > started)
    return Drift(
        unit.shown.get("NeedDaemonReload") == "yes", differ if unit.files else (), newer, tuple(_backups(unit))
    )


def parse(text: str) -> list[tuple[str, str]]:
    """(directive, value) of the [Service] section in order, lines that go on joined. An empty value resets a list."""
    found: list[tuple[str, str]] = []
    section, held = "", ""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")):
            continue
        whole = held + line.strip()
        if whole.endswith("\\"):
            held = whole[:-1] + " "
            continue
        held = ""
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
        elif section == "Service" and "=" in whole:
            name, _, value = whole.partition("=")
            found.append((name.strip(), value.strip()))
    return found


def merge(files: Iterable[list[tuple[str, str]]]) -> Settings:
    """What files say together, in the order in which systemd reads them."""
    settings: Settings = {}
    for name, value in (pair for file in files for pair in file):
        if name == "ExecStart":
            settings.pop(name, None)
            if value:
                settings[name] = _command(value)
        elif name == "Environment":
            if not value:
                for key in [key for key in settings if key.startswith("Environment=")]:
                    del settings[key]
            for key, inner in variables(value).items():
                settings[f"Environment={key}"] = inner
        elif name in SIMPLE:
            settings[name] = value
    return settings


def variables(value: str) -> dict[str, str]:
    """Assignments of an `Environment=` line: words, quoted or not."""
    found = {}
    for word in _words(value):
        name, equals, inner = word.partition("=")
        if equals:
            found[name] = inner
    return found


def same(one: str | None, other: str | None) -> bool:
    """Whether two values mean the same; what is hidden, or holds a specifier of systemd, is not told apart."""
    if one is None or other is None:
        return one is other
    if HIDDEN in one or HIDDEN in other or re.search(r"%[A-Za-z]|\$\{?\w", other):
        return True
    return _words(one) == _words(other)


def compare_files(now: UnitFile, was: UnitFile) -> tuple[Difference, ...]:
    """What a file says that its backup does not, and the other way round."""
    if now.sha256 == was.sha256:
        return ()
    one, other = merge([parse(now.text)]), merge([parse(was.text)])
    names = dict.fromkeys([*one, *other])
    found = tuple(Difference(n, one.get(n), other.get(n)) for n in names if one.get(n) != other.get(n))
    return found or (Difference("file", None, None),)


def _backups(unit: Unit) -> Iterable[BackupDrift]:
    files = {file.path: file for file in unit.files}
    for backup in unit.backups:
        if backup.of in files:
            yield BackupDrift(backup.path, backup.of, compare_files(files[backup.of], backup))


def _loaded(unit: Unit) -> Settings:
    """As `systemctl show` tells it."""
    settings: Settings = {}
    command = re.search(r"argv\[\]=(.*?) ; ignore_errors=", unit.shown.get("ExecStart", ""), re.S)
    if command:
        settings["ExecStart"] = command[1].strip()
    for name, value in variables(unit.shown.get("Environment", "")).items():
        settings[f"Environment={name}"] = value
    for name in ("WorkingDirectory", "User"):
        if unit.shown.get(name):
            settings[name] = unit.shown[name].lstrip("!-")
    return settings


def _running(loaded: Settings, process: Process | None) -> Settings:
    """What the process says where it can be asked, else what is loaded."""
    settings = dict(loaded)
    if process is None:
        return settings
    words = _words(loaded.get("ExecStart", ""))
    # A wrapper that does not exec, or a program that renames itself, has another command line than its unit.
    if words and process.argv and os.path.basename(words[0]) == os.path.basename(process.argv[0]):
        settings["ExecStart"] = shlex.join(process.argv)
    for name in [name for name in settings if name.startswith("Environment=")]:
        key = name.partition("=")[2]
        if key in process.env:
            settings[name] = process.env[key]
    return settings


def _comparable(name: str, loaded: Mapping[str, str], process: Process | None) -> bool:
    if name == "EnvironmentFile":
        return False  # `show` tells it in another form, and its contents are not ours to read
    return name in loaded or name in ("ExecStart", "WorkingDirectory", "User") or name.startswith("Environment=")


def _command(value: str) -> str:
    return value.lstrip("@-:+!|").strip()


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value, posix=True)
    except ValueError:
        return value.split()
