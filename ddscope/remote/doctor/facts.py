"""What was found as `fact` records, in the shapes of docs/trace-format.md, and a trace of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddscope import __version__
from ddscope.model import FORMAT, VERSION, Fact, Header
from ddscope.model.records import Producer
from ddscope.remote.doctor import arguments
from ddscope.remote.doctor.audit import ALGORITHMS, FileChange, PackageAudit
from ddscope.remote.doctor.causes import cause
from ddscope.remote.doctor.collected import Collected
from ddscope.remote.doctor.drift import Difference, drift
from ddscope.remote.doctor.examine import Examined
from ddscope.remote.doctor.judge_machine import needed
from ddscope.remote.doctor.judge_unit import reload_commands
from ddscope.trace import TraceWriter

Told = tuple[str, dict[str, Any]]
SITES = 200


def facts(one: Examined) -> Iterator[Told]:
    """(name, value) of every fact about a host. Keys that are not known are absent."""
    found = one.found
    yield "host.env", _env(found)
    for row in found.loading or ():
        yield "host.library", _library(found, row.module)
    for package in one.audit.packages:
        if package.skew.why is None:
            yield "files.skew", _skew(found, package)
            for file in package.files:
                yield from _sources(found, package, file)
    yield from _unit(found)
    if found.process is not None:
        yield (
            "server.args",
            _known(
                host=found.host,
                pid=found.process.pid,
                unit=found.unit.unit if found.unit is not None else None,
                requested=arguments.requested(found),
                effective=arguments.effective(found),
                env=found.process.env or None,
            ),
        )


def records(hosts: Sequence[Examined]) -> list[Header | Fact]:
    """A header and the facts of all hosts: source `doctor`, or `doctor/<host>` where there are several."""
    told: list[Header | Fact] = []
    numbers: Counter[str] = Counter()
    for one in hosts:
        src = "doctor" if len(hosts) == 1 else f"doctor/{one.found.host}"
        if not told:
            told.append(_header(src, one.found))
            numbers[src] = 1
        for name, value in facts(one):
            now, mono = time.time_ns() // 1000, time.monotonic_ns() // 1000
            told.append(Fact(src=src, seq=numbers[src], t=now, mono=mono, name=name, value=value))
            numbers[src] += 1
    return told


def write(path: Path, hosts: Sequence[Examined]) -> None:
    """A finished trace with these facts. Raises TraceError where it cannot be written."""
    with TraceWriter(path) as writer:
        for record in records(hosts):
            writer.write(record)


def _header(src: str, found: Collected) -> Header:
    version = ".".join(map(str, VERSION))
    return Header(
        src=src,
        seq=0,
        t=time.time_ns() // 1000,
        mono=time.monotonic_ns() // 1000,
        format=FORMAT,
        version=version,
        min_reader=version,
        producer=Producer("ddscope doctor", __version__),
        host=found.host,
        boot_id=found.machine.get("boot_id"),
    )


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _env(found: Collected) -> dict[str, Any]:
    torch = next((row for row in found.loading or () if row.module == "torch"), None)
    return _known(
        host=found.host,
        python=found.machine.get("python"),
        executable=found.machine.get("executable"),
        torch=found.torch.version if found.torch is not None else None,
        torch_cuda=found.torch.cuda if found.torch is not None else None,
        torch_abi=torch.abi if torch is not None else None,
        arch_list=torch.arch_list if torch is not None else None,
        driver=found.gpu.driver,
        driver_cuda=found.gpu.driver_cuda,
        gpus=[{"name": gpu.name, "capability": gpu.capability} for gpu in found.gpu.gpus],
        packages=found.packages,
    )


def _library(found: Collected, module: str) -> dict[str, Any]:
    row = next(row for row in found.loading or () if row.module == module)
    if row.loads:
        return {"host": found.host, "library": module, "loads": True}
    why = cause(row.error or "")
    by = [] if row.needs is None else [*row.needs.required_by, *(one.file for one in row.needs.imported_by)]
    return _known(
        host=found.host,
        library=module,
        loads=False,
        needed=needed(found, row),
        needed_by=list(dict.fromkeys(by)),
        error=why.outer,
        cause=why.inner,
        missing=why.missing,
    )


def _skew(found: Collected, package: PackageAudit) -> dict[str, Any]:
    differ = []
    for file in package.files:
        functions = None
        if file.functions is not None:
            functions = [{"name": one.name, "change": one.change} for one in file.functions]
        differ.append(_known(path=file.row.path, change=file.row.change, functions=functions))
    skew = package.skew
    return _known(
        host=found.host,
        package=skew.package,
        version=skew.version,
        against="RECORD",
        root=skew.root,
        checked=skew.checked,
        differ=differ,
        restore=list(package.restore[:1]) or None,
    )


def _sources(found: Collected, package: PackageAudit, file: FileChange) -> Iterator[Told]:
    for change in file.enums:
        yield (
            "enum.values",
            {
                "host": found.host,
                "package": package.skew.package,
                "file": file.row.path,
                "enum": change.name,
                "against": "RECORD",
                "moved": [{"member": name, "was": was, "now": now} for name, was, now in change.moved],
                "added": list(change.added),
                "removed": list(change.removed),
            },
        )
    for predicate in file.predicates:
        sites = [_known(file=s.file, line=s.line, function=s.function or None) for s in predicate.sites[:SITES]]
        yield (
            "predicate.calls",
            _known(
                host=found.host,
                package=package.skew.package,
                predicate=predicate.name,
                file=predicate.file,
                sites=sites,
                true_for=None if predicate.now is None or predicate.enum != ALGORITHMS else list(predicate.now),
                was_true_for=None if predicate.was is None or predicate.enum != ALGORITHMS else list(predicate.was),
            ),
        )


def _unit(found: Collected) -> Iterator[Told]:
    unit = found.unit
    if unit is None or unit.why is not None:
        return
    seen = drift(unit, found.process)
    yield (
        "unit.drift",
        _known(
            host=found.host,
            unit=unit.unit,
            need_reload=seen.need_reload,
            differ=[_pair(one, "running", "disk") for one in seen.running],
            files=[file.path for file in unit.files],
            backups=[
                {"path": backup.path, "differ": [_pair(one, "disk", "backup") for one in backup.differ]}
                for backup in seen.backups
            ],
            restore=list(reload_commands(unit)) if seen.any else None,
        ),
    )


def _pair(one: Difference, first: str, second: str) -> dict[str, Any]:
    return _known(**{"what": one.what, first: one.one, second: one.other})
