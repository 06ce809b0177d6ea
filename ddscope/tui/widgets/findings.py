"""Findings: what is wrong, the most pressing first; each opens to its evidence, what was ruled out and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from ddscope.diagnose import Finding
from ddscope.tui.foreign import cells, safe, wrap
from ddscope.tui.widgets.lines import Line, LineView
from ddscope.tui.widgets.pane import Piece

LABEL = 11  # cells of "ruled out  "
SIGNS = {"critical": "✗✗", "high": "✗ ", "warning": "! ", "info": "i "}


class Findings(LineView):
    """Ranked findings as one line each. A finding keeps being open while its evidence grows."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.findings: tuple[Finding, ...] = ()
        self.at: int | None = None

    def show(self, findings: Sequence[Finding], at: int | None = None) -> None:
        """Findings in their order. at: the record of the time cursor; what came first after it is marked later."""
        new = tuple(findings)
        if new == self.findings and at == self.at:
            return
        held = {_name(self.findings[entry]) for entry in self.opened}
        self.findings, self.at = new, at
        self.content_changed([entry for entry, finding in enumerate(new) if _name(finding) in held])

    def worst(self) -> str:
        """Severity of the first finding, empty when there is none."""
        return self.findings[0].severity if self.findings else ""

    def entry_count(self) -> int:
        """One entry a finding."""
        return len(self.findings)

    def ink(self, severity: str) -> Style:
        """The style of a severity."""
        palette = self.palette
        return {"critical": palette.bad, "high": palette.bad, "warning": palette.warn}.get(severity, palette.info)

    def entry_line(self, entry: int, width: int) -> Line:
        """Severity, the sentence, how sure, the id."""
        finding = self.findings[entry]
        palette = self.palette
        mark = "▾ " if self.is_open(entry) else "▸ "
        sign = SIGNS.get(finding.severity, "? ")
        word = f"{sign} {finding.severity:<9}"
        where = f" {safe(finding.rid)}" if finding.rid is not None else ""
        tail = f"  {finding.confidence:.0%} sure"
        name = f"  {finding.id}" + (f" ({safe(finding.kind)})" if finding.kind else "")
        later = "  later than the cursor" if self._is_later(finding) else ""
        head: list[Piece] = [(mark, palette.muted), (word, self.ink(finding.severity))]
        room = width - sum(cells(text) for text, _ in head)
        title = safe(finding.title)
        spare = room - cells(title)
        for text in (tail, name, where, later):
            spare -= cells(text)
        extras: list[Piece] = [
            (later, palette.warn),
            (where, palette.root),
            (tail, palette.text),
            (name, palette.faint),
        ]
        if spare < 0:  # the name is in the detail too
            extras = [(later, palette.warn), (tail, palette.text)]
            spare = room - cells(title) - cells(tail) - cells(later)
        if spare < 0:
            extras = [(tail, palette.text)]
            title = wrap(title, max(room - cells(tail) - 1, 10))[0] + "…"
            spare = max(room - cells(title) - cells(tail), 0)
        return Line(
            (*head, (title, palette.strong), (" " * max(spare, 0), Style()), *extras),
            target=_first_record(finding),
            copy=finding.title,
        )

    def _is_later(self, finding: Finding) -> bool:
        first = _first_record(finding)
        return self.at is not None and first is not None and first > self.at

    def entry_detail(self, entry: int, width: int) -> list[Line]:
        """Detail, evidence (each a jump), what it explains, what was ruled out and why, what to do next."""
        finding = self.findings[entry]
        palette = self.palette
        cut_off = self.entry_line(entry, width).text.find(safe(finding.title)) < 0
        lines = self._block("what", finding.title, width, palette.text) if cut_off else []
        if finding.detail:
            lines += self._block("numbers", finding.detail, width, palette.text)
        for place, evidence in enumerate(finding.evidence):
            arrow = "→ " if evidence.record is not None else "· "
            where = f"{arrow}{evidence.src} #{evidence.seq}  {evidence.text}"
            lines += self._block("" if place else "evidence", where, width, palette.info, evidence.record)
        for place, text in enumerate(finding.consequences):
            lines += self._block("" if place else "explains", f"· {text}", width, palette.text)
        for place, ruled in enumerate(finding.ruled_out):
            lines += self._block("" if place else "ruled out", f"· {ruled.what}: {ruled.why}", width, palette.muted)
        for place, text in enumerate(finding.next):
            lines += self._block("" if place else "next", f"{place + 1}. {text}", width, palette.good)
        kind = f" ({finding.kind})" if finding.kind else ""
        lines += self._block(
            "id", f"{finding.id}{kind} · {finding.severity} · {finding.confidence:.0%} sure", width, palette.faint
        )
        return lines

    def _block(self, label: str, text: str, width: int, ink: Style, target: int | None = None) -> list[Line]:
        pieces = wrap(safe(text), max(width - LABEL - 5, 20))
        hang = "  " if text[:2] in ("→ ", "· ") or text[1:3] == ". " else ""
        lines = []
        for number, piece in enumerate(pieces):
            head = f"    {label if not number else '':<{LABEL}}"
            body = piece if not number else hang + piece
            lines.append(Line(((head, self.palette.muted), (body, ink)), target=target, copy=text))
        return lines


def _name(finding: Finding) -> tuple[str, str, str | None]:
    return finding.id, finding.kind, finding.rid


def _first_record(finding: Finding) -> int | None:
    return next((evidence.record for evidence in finding.evidence if evidence.record is not None), None)
