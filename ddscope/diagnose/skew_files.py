"""`skew.files`: files of a package that are not those of its wheel, or of another host; what that means for the server.

Read from the doctor's facts `files.skew`, `enum.values` and `predicate.calls`. A version number says nothing here:
files copied by hand do not move it. That a predicate changed matters only on the path that the algorithm takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddscope.diagnose.base import MAX_EVIDENCE, Evidence, Finding, RuledOut, Severity, evidence_of
from ddscope.diagnose.config_effective import SAME
from ddscope.diagnose.journal import WANTS, Journal, JournalRule
from ddscope.diagnose.values import host_of, items, mapping, on, text, texts
from ddscope.diagnose.words import listed, plural, slug
from ddscope.model import Fact, Header, Record

MAX_PACKAGES = 32
FACTS = ("files.skew", "enum.values", "predicate.calls")


@dataclass(slots=True)
class _Package:
    """What is known of one package on one host. against → the last fact of it."""

    host: str
    name: str
    files: dict[str, tuple[dict[str, Any], Evidence]] = field(default_factory=dict)
    enums: dict[str, tuple[dict[str, Any], Evidence]] = field(default_factory=dict)
    predicates: dict[str, tuple[dict[str, Any], Evidence]] = field(default_factory=dict)


class SkewFiles(JournalRule):
    """The last facts of every package, put together."""

    id = "skew.files"
    wants = (*WANTS, Fact, Header)

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._packages: dict[tuple[str, str], _Package] = {}
        self._algorithms: dict[str, str] = {}  # host → algorithm in force, as a fact or a header says

    def observe(self, record: Record, index: int | None = None) -> None:
        self.journal.observe(record, index)
        if isinstance(record, Header) and record.engine is not None:
            self._algorithms.setdefault("", record.engine.algorithm)
        elif isinstance(record, Fact):
            self._fact(record, index)

    def _fact(self, fact: Fact, index: int | None) -> None:
        value = mapping(fact.value)
        host = host_of(fact.src, value)
        if fact.name == "server.args" and len(self._algorithms) < MAX_PACKAGES:
            algorithm = mapping(value.get("effective")).get("speculative_algorithm")
            if isinstance(algorithm, str):
                self._algorithms[host] = algorithm
        if fact.name not in FACTS or not value:
            return
        name = text(value.get("package"), "a package")
        package = self._packages.get((host, name))
        if package is None:
            package = _Package(host, name)
            if len(self._packages) < MAX_PACKAGES:
                self._packages[host, name] = package
        if fact.name == "files.skew":
            differ = items(value.get("differ"))
            told = evidence_of(fact, index, f"{plural(len(differ), 'file')} of {name} differ from {_against(value)}")
            package.files[text(value.get("against"), "RECORD")] = (value, told)
        elif fact.name == "enum.values":
            enum = text(value.get("enum"), "an enum")
            moved = [f"{m['member']} {m['was']} → {m['now']}" for m in map(_member, items(value.get("moved")))]
            told = evidence_of(
                fact, index, f"{enum}: {listed(moved, 4) if moved else 'its old members kept their values'}"
            )
            if len(package.enums) < MAX_PACKAGES:
                package.enums[enum] = (value, told)
        elif len(package.predicates) < MAX_PACKAGES:
            predicate = text(value.get("predicate"), "a predicate")
            sites = items(value.get("sites"))
            where = listed((_site(site) for site in sites), 3)
            told = evidence_of(fact, index, f"{predicate} is asked in {plural(len(sites), 'place')}: {where}")
            package.predicates[predicate] = (value, told)

    def findings(self) -> Iterable[Finding]:
        for package in self._packages.values():
            moved = [told for told in package.enums.values() if items(told[0].get("moved"))]
            for against, told in package.files.items():
                if items(told[0].get("differ")):
                    yield self._finding(package, told, moved if against == "RECORD" else [])
            if moved and not any(items(told[0].get("differ")) for told in package.files.values()):
                yield self._finding(package, moved[0], moved)

    def _finding(
        self, package: _Package, told: tuple[dict[str, Any], Evidence], moved: list[tuple[dict[str, Any], Evidence]]
    ) -> Finding:
        value, evidence = told
        differ = items(value.get("differ"))
        algorithm = self._algorithm(package.host)
        paths = [text(item.get("path"), "?") for item in differ]
        functions = [
            f"{text(function.get('name'), '?')} in {text(item.get('path'), '?').rpartition('/')[2]}"
            for item in differ
            for function in items(item.get("functions"))
        ]
        shifts = [shift for enum in moved for shift in _shifts(enum[0])]
        name, version = package.name, text(value.get("version"))
        severity: Severity = "high" if shifts else "warning"
        what = f"{plural(len(paths), 'file')} of {name}{on(package.host)} {'is' if len(paths) == 1 else 'are'} not what"
        title = f"{what} {_against(value)} has: {listed(paths, 3)}."
        if shifts:
            title = f"Members of an enum of {name}{on(package.host)} have moved: {listed(shifts, 3)}."
        detail = [f"Functions: {listed(functions, 8)}."] if functions else []
        detail += [f"The version is {version} all the same."] if version else []
        gates, ruled_out = self._gates(package, algorithm)
        kept = [enum for enum in package.enums if not items(package.enums[enum][0].get("moved"))]
        if kept and not shifts:
            ruled_out.append(
                RuledOut("enum values that moved", f"{listed(kept)}: the members that were there kept theirs")
            )
        shown = [evidence, *(e for _, e in moved), *(e for _, e in package.predicates.values())]
        shown += [e for enum, (_, e) in package.enums.items() if enum in kept]
        return Finding(
            id=self.id,
            kind=("enum" if shifts else "record" if text(value.get("against"), "RECORD") == "RECORD" else "host")
            + f".{slug(name)}",
            severity=severity,
            confidence=0.95,
            title=title,
            detail=" ".join((*detail, *gates)),
            evidence=tuple(dict.fromkeys(shown))[:MAX_EVIDENCE],
            next=_next(value, bool(shifts)),
            ruled_out=tuple(ruled_out),
        )  # fmt: skip

    def _algorithm(self, host: str) -> str:
        """The algorithm that runs there, as it was asked for, in lower case; "" where nobody says."""
        run = max((r for _, r in self.runs() if r.args), key=lambda run: run.t, default=None)
        found = (run.args.get("speculative_algorithm") if run is not None else None) or self._algorithms.get(host)
        return (found or self._algorithms.get("") or "").lower()

    def _gates(self, package: _Package, algorithm: str) -> tuple[list[str], list[RuledOut]]:
        """What changed predicates mean for the algorithm in force: sentences, and what is ruled out."""
        words: list[str] = []
        out: list[RuledOut] = []
        asked, algorithm = algorithm.upper(), SAME.get(algorithm, algorithm)
        shown = asked if asked.lower() == algorithm else f"{asked} (which is {algorithm.upper()})"
        for predicate, (value, _) in package.predicates.items():
            now, was = (
                {SAME.get(name.lower(), name.lower()) for name in texts(value.get(key))} if key in value else None
                for key in ("true_for", "was_true_for")
            )
            sites = items(value.get("sites"))
            if not algorithm or now is None:
                words.append(f"{predicate} is asked in {plural(len(sites), 'place')}.")
            elif algorithm in now or (was is not None and algorithm in was):
                turned = was is not None and (algorithm in now) != (algorithm in was)
                words.append(
                    f"{predicate} is {'now ' if turned else ''}{'true' if algorithm in now else 'false'} for "
                    f"{shown}, and is asked in {plural(len(sites), 'place')}."
                )
            else:
                where = listed((_site(site) for site in sites), 3)
                places = f"{plural(len(sites), 'place')} ({where})"
                why = f"it is false for {shown}, as it was before, wherever it is asked: {places}"
                out.append(RuledOut(f"{predicate} as the cause", why))
        return words, out


def _against(value: dict[str, Any]) -> str:
    against = text(value.get("against"), "RECORD")
    return f"host {against.partition(':')[2]}" if against.startswith("host:") else "its wheel"


def _member(item: dict[str, Any]) -> dict[str, str]:
    return {key: text(item.get(key), "?") for key in ("member", "was", "now")}


def _shifts(value: dict[str, Any]) -> list[str]:
    enum = text(value.get("enum"), "?")
    return [f"{enum}.{m['member']} is {m['now']}, was {m['was']}" for m in map(_member, items(value.get("moved")))]


def _site(site: dict[str, Any]) -> str:
    line = text(site.get("line"))
    function = text(site.get("function"))
    where = text(site.get("file"), "?").rpartition("/")[2] + (f":{line}" if line else "")
    return where + (f" {function}" if function else "")


def _next(value: dict[str, Any], shifts: bool) -> tuple[str, ...]:
    out = [
        "An enum that counts by itself gives new values to all members behind a new one: put new members last."
    ] if shifts else []  # fmt: skip
    restore = texts(value.get("restore"))
    if restore:
        out.append(f"Put the files back: {' && '.join(restore[:4])}")
    else:
        out.append(
            "Put the files back by installing the same version again (`pip install --force-reinstall --no-deps`)."
        )
    return (*out, "Restart the server after that: what runs now was imported before.")
