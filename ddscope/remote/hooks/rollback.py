"""Everything put back: drop-ins, the wheel, and files that somebody patched. Proved by a hash of all of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddscope.remote.doctor.audit import FileChange, PackageAudit, audit
from ddscope.remote.doctor.collected import Collected
from ddscope.remote.doctor.items import count, shown
from ddscope.remote.doctor.pristine import PristineFiles, record_hash
from ddscope.remote.doctor.sources import unified
from ddscope.remote.hooks.environment import Environment, Shot, State
from ddscope.remote.hooks.installing import uninstall
from ddscope.remote.hooks.ledger import RESTORE, Ledger
from ddscope.remote.hooks.steps import Step
from ddscope.remote.host import HostError

PROOF_LINES = 20


@dataclass(frozen=True)
class Patched:
    """A file that differs from its wheel and can be put back. diff: what putting it back changes."""

    package: PackageAudit
    file: FileChange
    diff: tuple[str, ...]


def patched(found: Collected, wanted: Sequence[str], pristine: PristineFiles) -> list[Patched]:
    """Files to put back: those named, or all when none is. Raises HostError where one cannot be had.

    wanted: paths as the doctor shows them, `sglang/srt/…`.
    """
    rows = [(package, file) for package in audit(found, pristine).packages for file in package.files]
    real = [(package, file) for package, file in rows if file.row.record]
    for name in wanted:
        if name in [file.row.path for _, file in rows if not file.row.record]:
            raise HostError(f"{name} was never in a wheel: there is nothing to put back; remove it by hand.")
        if name not in [file.row.path for _, file in real]:
            raise HostError(f"{name} on {found.host} is as its wheel has it, or is of no package that is checked.")
    chosen = [(package, file) for package, file in real if not wanted or file.row.path in wanted]
    for package, file in chosen:
        if file.pristine is None:
            why = pristine.why.get(package.skew.package, "neither a backup nor a wheel has it")
            raise HostError(f"{file.row.path} cannot be put back: {why}.")
    return [Patched(package, file, tuple(_back(found, package, file))) for package, file in chosen]


def _back(found: Collected, package: PackageAudit, file: FileChange) -> Iterator[str]:
    content = found.content(package.skew.package, file.row.path)
    text = content.text() if content is not None else None
    if file.pristine is not None:
        yield from unified(text or "", file.pristine.text, f"{file.row.path} (now)", f"{file.row.path} (put back)")


def restore(environment: Environment, one: Patched) -> Step:
    """The step that puts one file back from its backup or its wheel; the patched one is kept on the host."""
    row, pristine = one.file.row, one.file.pristine
    assert pristine is not None
    origin = pristine.origin

    def act() -> dict[str, Any]:
        return environment.ask(
            "restore",
            root=one.package.skew.root,
            path=row.path,
            was=row.sha256 if row.change != "missing" else None,
            data=base64.b64encode(pristine.data).decode(),
            sha256=record_hash(pristine.data),
        )

    text = f"{environment.python} - put {one.package.skew.root}/{row.path} back from {origin}"
    return Step(text, act=act, entry={"what": RESTORE, "file": row.path, "from": origin})


def removal(environment: Environment, state: State, ledger: Ledger) -> list[Step]:
    """Steps that take the wheel out. Raises HostError where the hooks were not installed by us."""
    if state.holder() is not None and ledger.installed is None:
        raise HostError(
            f"The hooks in {state.prefix} on {environment.host.name} were not put there by `ddscope hooks install`: "
            f"remove them with {environment.python} -m pip uninstall ddscope-hooks."
        )
    return uninstall(environment, state, ledger)


def proof(shot: Shot) -> Iterator[str]:
    """What the two hashes say, in lines."""
    before = shot.before
    if before is None:
        yield f"The environment's hash is {shot.hash} ({count(shot.files, 'file')}); none was taken before."
        return
    kept = " (big files by size and time)" if shot.quick else ""
    yield f"before  {before.hash}  {count(before.files, 'file')}, {before.bytes:,} bytes{kept}"
    yield f"now     {shot.hash}  {count(shot.files, 'file')}, {shot.bytes:,} bytes{kept}"
    if shot.hash == before.hash:
        yield "Equal: every byte of the environment is as it was before."
        return
    rest = [row for row in shot.differences if len(row) == 2]
    if shot.code == before.code:
        yield f"Equal but for byte code that Python compiled or dropped meanwhile ({count(len(rest), 'file')})."
    else:
        yield "Not equal: something else was changed in the environment meanwhile."
    for change, path in rest[:PROOF_LINES]:
        yield f"  {shown(change)}: {shown(path)}"
    if len(rest) > PROOF_LINES:
        yield f"  and {len(rest) - PROOF_LINES:,} more"
