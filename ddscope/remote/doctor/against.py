"""Two hosts side by side: what differs between them, worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddscope.remote.doctor import arguments
from ddscope.remote.doctor.drift import merge, parse
from ddscope.remote.doctor.examine import Examined
from ddscope.remote.doctor.items import SEVERITIES, Severity
from ddscope.remote.doctor.judge_files import SERVER

ABSENT = "–"
MANY = 3  # members of an enum, from which on they share a row of a page
_ALONE = ("host", "port", "model_path", "served_model_name", "nccl_port", "dist_init_addr", "random_seed", "node_rank")
"""Arguments that may differ from host to host and mean nothing by it."""


@dataclass(frozen=True)
class Row:
    """One thing that is not the same; ABSENT where a side does not have it."""

    severity: Severity
    area: str
    what: str
    here: str
    there: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"severity": self.severity, "area": self.area, "what": self.what, "here": self.here, "there": self.there}


def differences(here: Examined, there: Examined) -> list[Row]:
    """All differences, worst first."""
    rows = [*_enums(here, there), *_machine(here, there), *_versions(here, there), *_files(here, there)]
    rows += [*_libraries(here, there), *_arguments(here, there), *_unit(here, there)]
    return sorted(rows, key=lambda row: SEVERITIES.index(row.severity))


def meanings(rows: Sequence[Row], host: str, other: str) -> Iterator[str]:
    """What the differences mean and what to do, a line each, where a person can do something."""
    areas = {row.area for row in rows if row.severity in ("critical", "high", "warning")}
    moved = [row for row in rows if row.area == "skew.files" and row.severity == "critical"]
    if moved:
        yield (
            f"{len(moved)} members of an enum have other values. They cross processes and hosts as numbers, so one "
            "host means another member than the other."
        )
    if "skew.files" in areas:
        yield "Which functions of a file changed, and how it is put back, is said by:"
        files = [row for row in rows if row.area == "skew.files" and "/" in row.what]
        cells = {host: [row.here for row in files], other: [row.there for row in files]}
        for name, told in cells.items():
            if not files or any(cell.startswith(("changed", "added", "missing")) for cell in told):
                yield f"→ ddscope doctor --host {name}"
    if "env.abi" in areas:
        yield f"→ Install on one host what the other has; the one that works ({host} or {other}) is the model."
    if "config.requested_vs_effective" in areas:
        yield "→ Start both servers with the same arguments and variables before you compare what they do."


def folded(rows: Sequence[Row]) -> list[Row]:
    """For a page: the members of one enum in one row, as they have one cause. Values as `UNO 3, DSPARK 4`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.area == "skew.files" and row.severity == "critical":
            groups.setdefault(row.what.rpartition(".")[0], []).append(row)
    folding: list[Row] = []
    for row in rows:
        enum = row.what.rpartition(".")[0]
        group = groups.get(enum, [row]) if row.area == "skew.files" and row.severity == "critical" else [row]
        if len(group) < MANY:
            folding.append(row)
        elif row is group[0]:
            names = [one.what.rpartition(".")[2] for one in group]
            sides = (
                ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
                for values in ([one.here for one in group], [one.there for one in group])
            )
            folding.append(Row(row.severity, row.area, f"{enum}: {len(group)} members", *sides))
    return folding


def _rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*one, *other]):
        mine, theirs = (ABSENT if side.get(name) is None else str(side[name]) for side in (one, other))
        if mine != theirs:
            yield name, mine, theirs


def _enums(here: Examined, there: Examined) -> Iterator[Row]:
    for file in dict.fromkeys([*here.audit.values, *there.audit.values]):
        mine, theirs = here.audit.values.get(file), there.audit.values.get(file)
        if mine is None or theirs is None:
            continue
        for enum in mine:
            for member, one, other in _rows(mine[enum], theirs.get(enum, {})):
                severity: Severity = "critical" if ABSENT not in (one, other) else "warning"
                yield Row(severity, "skew.files", f"{enum}.{member}", one, other)


def _machine(here: Examined, there: Examined) -> Iterator[Row]:
    sides = []
    for side in (here, there):
        found = side.found
        sides.append(
            {
                "torch": found.torch.version if found.torch else None,
                "torch built for CUDA": found.torch.cuda if found.torch else None,
                "driver": found.gpu.driver,
                "driver takes CUDA": found.gpu.driver_cuda,
                "GPUs": ", ".join(gpu.name for gpu in found.gpu.gpus) or None,
                "Python": found.machine.get("python"),
                "C library": found.machine.get("libc"),
                "kernel": found.machine.get("kernel"),
            }
        )
    grades: dict[str, Severity] = {
        "torch": "high",
        "torch built for CUDA": "high",
        "driver takes CUDA": "warning",
        "GPUs": "warning",
        "driver": "warning",
    }
    for what, one, other in _rows(*sides):
        yield Row(grades.get(what, "info"), "env.abi", what, one, other)


def _versions(here: Examined, there: Examined) -> Iterator[Row]:
    for name, one, other in _rows(here.found.packages, there.found.packages):
        if name != "torch":  # told above, with its build
            severity: Severity = "high" if name in (*SERVER, "sglang-kernel", "sgl-kernel") else "warning"
            yield Row(severity, "env.abi", name, one, other)


def _files(here: Examined, there: Examined) -> Iterator[Row]:
    """Files that differ from their wheel on one side, or on both in another way."""
    sides = [
        {
            f"{package.skew.package}: {file.row.path}": (file.row.change, (file.row.sha256 or "")[:8])
            for package in side.audit.packages
            for file in package.files
        }
        for side in (here, there)
    ]
    for what in dict.fromkeys([*sides[0], *sides[1]]):
        mine, theirs = sides[0].get(what), sides[1].get(what)
        if mine == theirs:
            continue
        # Where both sides changed it, only the sum of each tells that they did so in another way.
        both = mine is not None and theirs is not None and mine[0] == theirs[0]
        one, other = (
            ABSENT if told is None else f"{told[0]} (sha256 {told[1]}…)" if both else told[0] for told in (mine, theirs)
        )
        package, _, path = what.partition(": ")
        added = "added" in one + other and "changed" not in one + other
        severity: Severity = "high" if package in SERVER and not added else "warning"
        yield Row(
            severity,
            "skew.files",
            path,
            *("as in its wheel" if cell == ABSENT and not added else cell for cell in (one, other)),
        )


def _libraries(here: Examined, there: Examined) -> Iterator[Row]:
    sides = [
        {row.module: "loads" if row.loads else "does not load" for row in side.found.loading or ()}
        for side in (here, there)
    ]
    for what, one, other in _rows(*sides):
        yield Row("warning" if "does not load" in (one, other) else "info", "env.abi", f"import {what}", one, other)


def _arguments(here: Examined, there: Examined) -> Iterator[Row]:
    sides = []
    for side in (here, there):
        told = arguments.effective(side.found)
        asked = {name: arguments.text(value) for name, value in arguments.requested(side.found).items()}
        kept = {name: value for name, value in told.items() if name in asked or arguments.TELLING.search(name)}
        sides.append({**asked, **{name: str(value) for name, value in kept.items()}})
    if all(sides):
        for what, one, other in _rows(*sides):
            severity: Severity = "info" if what in _ALONE else "high" if arguments.TELLING.search(what) else "warning"
            yield Row(severity, "config.requested_vs_effective", f"--{what.replace('_', '-')}", one, other)
    variables = [side.found.process.env if side.found.process is not None else {} for side in (here, there)]
    if all(variables):
        for what, one, other in _rows(*variables):
            if what != "PATH":
                yield Row("warning", "config.requested_vs_effective", what, one, other)


def _unit(here: Examined, there: Examined) -> Iterator[Row]:
    sides = []
    for side in (here, there):
        unit = side.found.unit
        sides.append(merge(parse(file.text) for file in unit.files) if unit is not None and not unit.why else {})
    if all(sides):
        for what, one, other in _rows(*sides):
            if not what.startswith("Environment="):
                yield Row("info", "unit.drift", f"unit on disk: {what}", one, other)
