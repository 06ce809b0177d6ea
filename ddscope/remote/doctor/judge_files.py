"""What the audit of files means: patched files, predicates and who asks them, enum members that moved."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ddscope.remote.doctor.audit import Audit, FileChange, PackageAudit, PredicateChange, algorithm
from ddscope.remote.doctor.collected import Collected
from ddscope.remote.doctor.enums import EnumChange
from ddscope.remote.doctor.items import Item, Severity, count, several, shown

DIFF_SHOWN = 24
SITES_SHOWN = 8
SERVER = ("sglang", "vllm")


def judge(found: Collected, audited: Audit) -> Iterator[Item]:
    """Items about the files of all packages."""
    for package in audited.packages:
        if package.skew.why is not None:
            yield _not_compared(package)
        elif package.files:
            yield _skew(found, package)
            for file in package.files:
                for change in file.enums:
                    yield from _enum(package, file, change)
                for predicate in file.predicates:
                    yield _predicate(found, predicate)
                for member in file.members:
                    title = f"{shown(member.enum)}.{shown(member.name)} is new: which gates let it through?"
                    gates = (
                        f"true: {several(member.true, 40) or 'none'}",
                        f"false: {several(member.false, 40) or 'none'}",
                    )
                    yield Item("skew.files", "info", title, gates)
        else:
            yield _as_in_wheel(package)
    yield from _elsewhere(found)
    if found.unmet:
        pins = tuple(f"{row.package} {row.version}, wanted {row.wanted}" for row in found.unmet)
        yield Item(
            "env.abi",
            "warning",
            f"{count(len(found.unmet), 'package')} are not of the version that sglang pins.",
            pins,
        )


def _elsewhere(found: Collected) -> Iterator[Item]:
    """What runs is not what is installed."""
    process = found.process
    if process is None:
        return
    for path in process.shadows:
        title = f"The server takes {shown(path.rpartition('/')[2])} from {shown(path)}, not from its environment."
        lines = (
            f"it was started in {shown(process.cwd)}",
            "what is said here about the installed files is not about it",
        )
        yield Item("skew.files", "high", title, lines, ("Start it in another folder, or without PYTHONPATH.",))
    for skew in found.skew:
        if skew.installed and process.started and skew.installed > process.started + 1 and skew.package in SERVER:
            title = (
                f"{shown(skew.package)} {shown(skew.version)} was installed after the server (pid {process.pid}) began."
            )
            yield Item("skew.files", "high", title, ("it runs what was there before",), ("Restart the server.",))


def _as_in_wheel(package: PackageAudit) -> Item:
    skew = package.skew
    sized = f" ({skew.sized:,} big ones by size only)" if skew.sized else ""
    return Item(
        "skew.files", "fine", f"{skew.package} {skew.version}: {skew.checked:,} files are as in its wheel{sized}."
    )


def _not_compared(package: PackageAudit) -> Item:
    skew = package.skew
    where = f"{shown(skew.editable)} at commit {shown(skew.commit or '?', 12)}" if skew.editable else shown(skew.root)
    lines = tuple(shown(line) for line in skew.git[:12])
    title = f"{shown(skew.package)} {shown(skew.version)} cannot be compared: {shown(skew.why)}."
    severity: Severity = "warning" if skew.git and skew.package in SERVER else "info"
    next_ = (f"git -C {shown(skew.editable)} diff",) if skew.git else ()
    return Item("skew.files", severity, title, (where, *lines), next_)


def _skew(found: Collected, package: PackageAudit) -> Item:
    skew, files = package.skew, package.files
    real = [file for file in files if file.row.change != "added"]
    severity: Severity = "high" if real and skew.package in SERVER else "warning"
    kinds = ", ".join(
        f"{sum(file.row.change == kind for file in files):,} {kind}"
        for kind in ("changed", "missing", "added")
        if any(file.row.change == kind for file in files)
    )
    name = f"{shown(skew.package)} {shown(skew.version)}"
    title = f"{name} is not what its wheel installed: {kinds} of {skew.checked:,} files."
    if len(real) > max(20, skew.checked // 3):
        title += " So many differ that the files are of another version than the name says."
    lines = [line for file in files[:20] for line in _file_lines(found, file)]
    if len(files) > 20:
        lines.append(f"and {len(files) - 20:,} more files")
    if package.pristine_why:
        lines.append(f"Not shown by function: {shown(package.pristine_why)}.")
    return Item("skew.files", severity, title, tuple(lines), package.restore)


def _file_lines(found: Collected, file: FileChange) -> Iterator[str]:
    row = file.row
    when = f", {datetime.fromtimestamp(row.mtime, UTC):%Y-%m-%d %H:%M} UTC" if row.mtime else ""
    yield f"{row.change}: {shown(row.path)}{when}" + (f" ({shown(row.error)})" if row.error else "")
    started = found.process.started if found.process is not None else None
    if row.mtime and started and row.mtime > started and found.process is not None:
        yield f"  changed after the server (pid {found.process.pid}) began: it runs what was there before"
    for backup in file.backups:
        same = file.pristine is not None and file.pristine.backup == backup
        yield f"  backup beside it: {shown(backup)}" + (" (equal to the wheel's file)" if same else "")
    if file.functions is None:
        yield from (f"    {shown(line)}" for line in file.diff[2 : 2 + DIFF_SHOWN])
        return
    if not file.functions and row.change == "changed":
        yield "  nothing but comments or layout"
    left = DIFF_SHOWN
    for change in file.functions:
        yield f"  {change.change}: {shown(change.name)}"
        for line in change.lines[:left]:
            yield f"    {shown(line)}"
        left = max(0, left - len(change.lines))


def _enum(package: PackageAudit, file: FileChange, change: EnumChange) -> Iterator[Item]:
    where = f"{shown(file.row.path)}, {shown(change.name)}"
    added = f" New: {several(change.added)}." if change.added else ""
    if change.moved:
        yield Item(
            "skew.files",
            "high" if package.skew.package in SERVER else "warning",
            f"{shown(change.name)}: {count(len(change.moved), 'member')} moved to another value.{added}",
            (
                where,
                *(f"  {shown(name)}: {shown(was)} → {shown(now)}" for name, was, now in change.moved),
                "Values cross processes and hosts as numbers: all sides must be of one version.",
            ),
            ("Put the new member last, so that the others keep their values; or put the file back as said above.",),
        )
    elif change.removed:
        yield Item("skew.files", "high", f"{shown(change.name)} lost {several(change.removed)}.", (where,))
    elif change.added:
        title = f"{shown(change.name)}: all {change.kept} existing members kept their values.{added}"
        yield Item("skew.files", "fine", title, (where,))


def _predicate(found: Collected, change: PredicateChange) -> Item:
    running = algorithm(found)
    lines = []
    if change.was is not None and change.now is not None:
        lines.append(f"true for {several(change.now, 12) or 'none'}; was true for {several(change.was, 12) or 'none'}")
    lines += [
        f"  {shown(site.file)}:{site.line}  {shown(site.function)}  {shown(site.code, 100)}"
        for site in sorted(change.sites, key=lambda site: "/hardware_backend/" in site.file)[:SITES_SHOWN]
    ]
    if len(change.sites) > SITES_SHOWN:
        lines.append(f"  and {len(change.sites) - SITES_SHOWN:,} more")
    asked = f"{shown(change.name)} changed; {count(len(change.sites), 'place')} ask it."
    if running is not None and change.was is not None and change.now is not None:
        if (running in change.was) == (running in change.now):
            answer = "true" if running in change.now else "false"
            title = f"{asked} For {shown(running)}, which this server runs, it is {answer} as before: not on its path."
            return Item("skew.files", "info", title, tuple(lines))
        title = f"{asked} For {shown(running)}, which this server runs, its answer is another than before."
        return Item("skew.files", "high", title, tuple(lines))
    return Item("skew.files", "warning", asked, tuple(lines))
