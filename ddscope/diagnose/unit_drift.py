"""`unit.drift`: the unit that runs is not the one on disk, or the one on disk is not its backup.

Read from the doctor's fact `unit.drift`. The usual trap is a `daemon-reload` that was forgotten: the file looks right
and the server runs what it said before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddscope.diagnose.base import Detector, Evidence, Finding, RuledOut, evidence_of
from ddscope.diagnose.values import host_of, items, mapping, on, shown, text, texts
from ddscope.diagnose.words import excerpt, listed, plural
from ddscope.model import Fact, Record

MAX_UNITS = 64


class UnitDrift(Detector):
    """The last fact of every unit."""

    id = "unit.drift"
    wants = (Fact,)

    def __init__(self) -> None:
        self._units: dict[tuple[str, str], tuple[dict[str, Any], Evidence]] = {}

    def observe(self, record: Record, index: int | None = None) -> None:
        if not isinstance(record, Fact) or record.name != self.id:
            return
        value = mapping(record.value)
        key = (host_of(record.src, value), text(value.get("unit"), "a unit"))
        if value and (key in self._units or len(self._units) < MAX_UNITS):
            said = "the unit as it runs, against its file and backups"
            self._units[key] = (value, evidence_of(record, index, said))

    def findings(self) -> Iterable[Finding]:
        for (host, unit), (value, evidence) in self._units.items():
            differ = items(value.get("differ"))
            if differ or value.get("need_reload") is True:
                yield self._running(host, unit, value, differ, evidence)
            for backup in items(value.get("backups")):
                if items(backup.get("differ")):
                    yield self._backup(host, unit, value, backup, evidence)

    def _running(
        self, host: str, unit: str, value: dict[str, Any], differ: list[dict[str, Any]], evidence: Evidence
    ) -> Finding:
        reload_ = value.get("need_reload") is True
        what = listed((text(item.get("what"), "?") for item in differ), 4) or "its file"
        return Finding(
            id=self.id,
            kind="reload" if reload_ else "running",
            severity="warning",
            confidence=0.95,
            title=f"{unit}{on(host)} does not run what its file says: {what}.",
            detail=" ".join(_difference(item, "running", "disk") for item in differ[:4])
            + (" systemd has not read the file since it was written." if reload_ else ""),
            evidence=(evidence,),
            next=(
                *(("`systemctl daemon-reload`, so that systemd knows the file.",) if reload_ else ()),
                "Decide which of the two is meant, then restart the service: until then it runs as it was started.",
                *_restore(value),
            ),
        )

    def _backup(
        self, host: str, unit: str, value: dict[str, Any], backup: dict[str, Any], evidence: Evidence
    ) -> Finding:
        differ = items(backup.get("differ"))
        path = text(backup.get("path"), "a backup")
        return Finding(
            id=self.id,
            kind="backup",
            severity="info",
            confidence=0.9,
            title=f"The file of {unit}{on(host)} differs from its backup {path} in {plural(len(differ), 'setting')}.",
            detail=" ".join(_difference(item, "disk", "backup") for item in differ[:4]),
            evidence=(evidence,),
            next=("If the unit worked with the backup, these settings are what to look at first.", *_restore(value)),
            ruled_out=(RuledOut("a fault by itself", "backups are older on purpose"),),
        )


def _difference(item: dict[str, Any], one: str, two: str) -> str:
    what = text(item.get("what"), "?")
    return f"{what}: {one} {excerpt(shown(item.get(one)), 120)}, {two} {excerpt(shown(item.get(two)), 120)}."


def _restore(value: dict[str, Any]) -> tuple[str, ...]:
    commands = texts(value.get("restore"))
    return (f"To put it back: {' && '.join(commands[:4])}",) if commands else ()
