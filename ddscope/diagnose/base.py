"""What a detector is and what it says: Detector, Finding, Evidence, RuledOut.

A detector reads records, one at a time and in file order, and yields findings when asked. It knows no file, no screen
and no other detector; how findings relate to each other is decided in `relations.py`, their order in
`ranking.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddscope.model import Record

Severity = Literal["info", "warning", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "high", "critical")
SEVERITY_RANK: Mapping[str, int] = {name: rank for rank, name in enumerate(SEVERITIES)}

MAX_EVIDENCE = 8
"""Evidence kept for one finding: the first ones, because the first occurrence is nearest to the cause."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A record that shows it. `record` is the record's number in its file (None when the caller gave none).

    file: the file's name, where several were read together.
    """

    src: str
    seq: int
    record: int | None
    text: str
    file: str = ""

    def with_(self, **changes: Any) -> Evidence:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Something that would look alike (`what`), and the observation that speaks against it (`why`)."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    id:           stable name, `area.what`; several findings of one run may share it and then differ in `kind`.
    kind:         machine-readable variant of the id (`mask.siblings`, `root_row`); "" where there is only one.
    confidence:   0..1, that the sentence in `title` is true.
    title:        one sentence a tired person understands; detail: the numbers behind it.
    evidence:     records to jump to, first occurrence first.
    next:         what to check or do, in order.
    ruled_out:    what looks alike, and why it is not that.
    consequences: what else was seen and is explained by this finding, so it is not listed as a finding of its own.
    rid:          the request, when exactly one is affected.
    symptom:      what was observed, without the cause; how it reads among the consequences of another finding.
    """

    id: str
    severity: Severity
    confidence: float
    title: str
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    next: tuple[str, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    rid: str | None = None
    kind: str = ""
    consequences: tuple[str, ...] = ()
    symptom: str = ""

    def with_(self, **changes: Any) -> Finding:
        """A copy with some fields replaced."""
        return replace(self, **changes)


class Detector:
    """One rule of diagnosis.

    A subclass sets `id`, lists the record classes it wants in `wants`, and implements both methods. `observe` must be
    cheap, must not raise on any record that `ddscope.trace.decode` can return, and must keep memory bounded in the
    number of steps. `findings` reports what is known so far; it can be called at any moment and changes nothing.
    """

    id: ClassVar[str]
    wants: tuple[type[Record], ...] = (Record,)
    ranks: ClassVar[bool] = False
    """Whether it wants the steps that further ranks repeat, which tell counts and no tree, and would count twice."""

    def observe(self, record: Record, index: int | None = None) -> None:
        """Take in the next record; index is its number in the file."""
        raise NotImplementedError

    def findings(self) -> Iterable[Finding]:
        """What is known so far, in no particular order."""
        raise NotImplementedError


def evidence_of(record: Record, index: int | None, text: str) -> Evidence:
    """Evidence that points at a record."""
    return Evidence(record.src, record.seq, index, text)
