"""`shape.mismatch`: a tensor does not have the width that the module it enters expects.

Seen in `tensor` records, and in the words of the framework in log lines and engine errors; the same two widths are one
finding, wherever they were seen. Traps: a factor of exactly 2 is packed 4-bit weights, another factor is a number of
layers; and the first fix often uncovers a second fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddscope.diagnose.base import MAX_EVIDENCE, Detector, Evidence, Finding, RuledOut, Severity, evidence_of
from ddscope.diagnose.drafter_inputs import DrafterInputs
from ddscope.diagnose.messages import error_rid, message_of
from ddscope.diagnose.shape_messages import Widths, parse
from ddscope.diagnose.shape_words import explain
from ddscope.diagnose.words import excerpt, listed
from ddscope.model import Fact, Header, Log, Record, Tensor

MAX_KINDS = 16  # different pairs of widths that are told apart


@dataclass(slots=True)
class _Mismatch:
    """One pair of widths, and everything that shows it."""

    widths: Widths
    dtype: str = ""
    tensor: str = ""  # name of the tensor record
    denied: bool = False  # the source itself called the shape right
    fatal: bool = False  # it ended a request
    rids: dict[str, None] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    healed: bool = False


class ShapeMismatch(Detector):
    """Collects widths that disagree and says what they mean."""

    id = "shape.mismatch"
    wants = (Tensor, Log, Fact, Header)

    def __init__(self) -> None:
        self._hidden: int | None = None
        self._inputs = DrafterInputs()
        self._found: dict[tuple[int, int, bool], _Mismatch] = {}

    def observe(self, record: Record, index: int | None = None) -> None:
        if isinstance(record, Tensor):
            self._observe_tensor(record, index)
        elif isinstance(record, Header):
            if record.engine is not None or record.model is not None:  # the doctor's header knows of no model
                self._hidden = record.model.hidden_size if record.model is not None else None
        else:
            if isinstance(record, Fact):
                self._inputs.observe(record, index)
            message = message_of(record)
            widths = parse(message) if message else None
            if widths is not None:
                self._add(widths, record, index, f"“{excerpt(message or '')}”")

    def _observe_tensor(self, tensor: Tensor, index: int | None) -> None:
        place = _first_misfit(tensor)
        if place is None:
            for found in self._found.values():
                if found.tensor == tensor.name and tensor.ok is not False:
                    found.healed = True
            if tensor.ok is not False:
                return
        given, expected = place if place is not None else (0, 0)
        shape = f"{tensor.name} is [{listed(tensor.shape)}]"
        if tensor.expect is not None:
            shape += f", expected [{listed('any' if size is None else size for size in tensor.expect)}]"
        added = self._add(Widths(given, expected, tensor.name), tensor, index, shape)
        if added is not None:
            added.tensor, added.dtype, added.healed = tensor.name, tensor.dtype, False
            added.denied = tensor.ok is True

    def _add(self, widths: Widths, record: Record, index: int | None, text: str) -> _Mismatch | None:
        key = (widths.given, widths.expected, widths.by == "weights")
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= MAX_KINDS:
                return None
            found = self._found[key] = _Mismatch(widths)
        if isinstance(record, Fact):
            found.fatal = True
            rid = error_rid(record)
            if rid is not None and len(found.rids) < 2:
                found.rids[rid] = None
        if len(found.evidence) < MAX_EVIDENCE and all(e.text != text for e in found.evidence):
            found.evidence.append(evidence_of(record, index, text))
        return found

    def findings(self) -> Iterable[Finding]:
        for found in self._found.values():
            yield self._finding(found)

    def _finding(self, found: _Mismatch) -> Finding:
        layers = self._inputs.checkpoint_layers()
        meaning = explain(found.widths, self._hidden or self._inputs.hidden_size(), layers, found.dtype)
        severity: Severity = "critical" if found.fatal else "high"
        if found.denied:
            severity = "warning"
        return Finding(
            id=self.id,
            kind=meaning.kind,
            severity=severity,
            confidence=0.5 if found.denied else meaning.confidence,
            title=_sentence(meaning.words, found.widths),
            detail=self._detail(found, layers),
            evidence=tuple(found.evidence),
            next=meaning.next,
            ruled_out=_ruled_out(meaning.kind, found),
            rid=next(iter(found.rids)) if len(found.rids) == 1 else None,
        )

    def _detail(self, found: _Mismatch, layers: int | None) -> str:
        parts = []
        if found.tensor:
            parts.append(f"Seen at {found.tensor}.")
        if found.fatal:
            parts.append("It ended the request.")
        if found.healed:
            parts.append("A later record of the same tensor fits.")
        if found.denied:
            parts.append("The source that recorded it calls the shape right.")
        if layers is not None:
            parts.append(f"The drafter's own configuration names {layers} target layers.")
        return " ".join(parts)


def _sentence(words: str, widths: Widths) -> str:
    """Words as a sentence. A tensor's name keeps its case, also at the start."""
    if words.startswith(widths.what) and not widths.what.startswith(("the ", "one ")):
        return words + "."
    return words[:1].upper() + words[1:] + "."


def _ruled_out(kind: str, found: _Mismatch) -> tuple[RuledOut, ...]:
    widths = found.widths
    if kind != "layers" or not widths.given:
        return ()
    ratio = widths.expected / widths.given
    if ratio != 2:
        return (RuledOut("packed 4-bit weights", f"packing halves a width; here the ratio is {ratio:g}"),)
    if found.dtype:
        why = f"the tensor is {found.dtype}, and both widths are whole layers"
        return (RuledOut("packed 4-bit weights", why),)
    return ()


def _first_misfit(tensor: Tensor) -> tuple[int, int] | None:
    """(given, expected) of the last dimension that does not fit; (0, 0) when the number of dimensions differs."""
    expect = tensor.expect
    if expect is None:
        return None
    if len(expect) != len(tensor.shape):
        return (0, 0)
    for given, wanted in zip(reversed(tensor.shape), reversed(expect), strict=True):
        if wanted is not None and given != wanted:
            return given, wanted
    return None
