"""Packages audited: what changed in files that differ from their wheel, by function, enum member and predicate."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from ddscope.remote.doctor.collected import Collected, Content, Differs, Site, Skew
from ddscope.remote.doctor.enums import EnumChange, compare, enums, true_for
from ddscope.remote.doctor.pristine import Pristine, PristineFiles
from ddscope.remote.doctor.sources import FunctionChange, diff_functions, unified

ALGORITHMS = "SpeculativeAlgorithm"
ALIASES = {"NEXTN": "EAGLE"}
"""Names that the command line takes for an algorithm, and its member."""
DIFF_LINES = 4000


@dataclass(frozen=True)
class PredicateChange:
    """A predicate of an enum that changed. now, was: members it is true for; None where the files do not say."""

    name: str
    enum: str
    file: str
    now: tuple[str, ...] | None
    was: tuple[str, ...] | None
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class NewMember:
    """A member that the pristine enum does not have, and which predicates are true for it."""

    name: str
    enum: str
    true: tuple[str, ...]
    false: tuple[str, ...]


@dataclass(frozen=True)
class FileChange:
    """A file that differs from its package's list.

    functions: None where they cannot be told (no pristine file, or no Python); diff: unified, pristine to installed.
    """

    row: Differs
    pristine: Pristine | None = None
    functions: tuple[FunctionChange, ...] | None = None
    diff: tuple[str, ...] = ()
    enums: tuple[EnumChange, ...] = ()
    predicates: tuple[PredicateChange, ...] = ()
    members: tuple[NewMember, ...] = ()
    backups: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageAudit:
    """A package and its files that differ. unchanged: enums of files that are as in the wheel, or have no pristine."""

    skew: Skew
    files: tuple[FileChange, ...] = ()
    pristine_why: str | None = None
    restore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """All packages of a host, those with differences first."""

    host: str
    packages: tuple[PackageAudit, ...] = ()
    values: dict[str, dict[str, dict[str, str | None]]] = field(default_factory=dict)
    """Enums as installed: file → enum → member → value."""


def audit(found: Collected, pristine: PristineFiles) -> Audit:
    """Audit every package whose files were compared."""
    packages = []
    for skew in found.skew:
        files = tuple(_file(found, skew, row, pristine) for row in skew.differ)
        why = pristine.why.get(skew.package) if any(f.pristine is None and f.row.record for f in files) else None
        packages.append(PackageAudit(skew, files, why, restore_commands(found, skew)))
    values = {
        content.path: named
        for content in found.contents
        if (text := content.text()) is not None and content.path.endswith(".py") and (named := enums(text))
    }
    return Audit(found.host, tuple(sorted(packages, key=lambda one: not one.files)), values)


def restore_commands(found: Collected, skew: Skew) -> tuple[str, ...]:
    """Two commands, either of which puts a package's files back as its wheel has them: ours, and pip's."""
    restorable = [row for row in skew.differ if row.record]
    if not restorable:
        return ()
    where = "" if found.host in ("localhost", "local") else f" --host {shlex.quote(found.host)}"
    python = str(found.machine.get("executable", "python"))
    named = " ".join(f"--file {shlex.quote(row.path)}" for row in restorable[:20])
    return (
        f"ddscope hooks rollback{where} --python {shlex.quote(python)} {named}",
        f"{shlex.quote(python)} -m pip install --force-reinstall --no-deps {skew.package}=={skew.version}",
    )


def _file(found: Collected, skew: Skew, row: Differs, pristine: PristineFiles) -> FileChange:
    content = found.content(skew.package, row.path)
    backups = tuple(backup.path for backup in content.backups) if content is not None else ()
    machine = found.machine
    original = pristine.file(skew, row, content, str(machine.get("python", "")), str(machine.get("arch", "")))
    text = _text(content)
    if original is None or (text is None and row.change != "missing"):
        return FileChange(row, original, backups=backups)
    if text is None:
        return FileChange(row, original, (), backups=backups)
    functions = diff_functions(original.text, text) if row.path.endswith(".py") else None
    return FileChange(
        row,
        original,
        None if functions is None else tuple(functions),
        tuple(unified(original.text, text, f"{row.path} ({original.origin})", f"{row.path} (installed)")[:DIFF_LINES]),
        tuple(compare(enums(original.text), enums(text))),
        tuple(_predicates(found, row.path, original.text, text, functions or [])),
        tuple(_members(original.text, text)),
        backups,
    )


def _text(content: Content | None) -> str | None:
    return None if content is None else content.text()


def _predicates(
    found: Collected, path: str, was: str, now: str, functions: list[FunctionChange]
) -> list[PredicateChange]:
    """Predicates whose text changed, and those whose answers for older members did, because one that they ask changed.

    That a new member is true for `is_some` is no change of `is_some`.
    """
    changes = []
    for enum in enums(now):
        after, before = true_for(now, enum), true_for(was, enum)
        touched = {
            f.name.rpartition(".")[2] for f in functions if f.name.startswith(enum + ".") and f.change == "changed"
        }
        names = [name for name in found.predicates if name in touched]
        older = enums(was).get(enum, {})
        for name, members in after.items():
            if name in before and name not in names and [m for m in members if m in older] != before[name]:
                names.append(name)
        for name in names:
            sites = tuple(site for site in found.calls if site.predicate == name)
            told = [tuple(side[name]) if name in side else None for side in (after, before)]
            changes.append(PredicateChange(name, enum, path, told[0], told[1], sites))
    return changes


def _members(was: str, now: str) -> list[NewMember]:
    told = []
    for change in compare(enums(was), enums(now)):
        answers = true_for(now, change.name)
        for member in change.added if answers else ():
            sides = [
                tuple(name for name, members in answers.items() if (member in members) is side)
                for side in (True, False)
            ]
            told.append(NewMember(member, change.name, sides[0], sides[1]))
    return told


def algorithm(found: Collected) -> str | None:
    """Member of SpeculativeAlgorithm that the server runs: as it says itself, else as it was asked for."""
    from ddscope.remote.doctor.arguments import effective, requested

    for side in (effective(found), requested(found)):
        value = side.get("speculative_algorithm")
        if value not in (None, "", "None"):
            return ALIASES.get(str(value).upper(), str(value).upper())
    return None
