"""Findings as JSON values and as plain text for headless output. No colours, no screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from ddscope.diagnose.base import Evidence, Finding

WIDTH = 100


def to_json(finding: Finding) -> dict[str, Any]:
    """A finding as a JSON-ready dict. Keys are stable; later versions only add."""
    return {
        "id": finding.id,
        "kind": finding.kind,
        "severity": finding.severity,
        "confidence": round(finding.confidence, 3),
        "title": finding.title,
        "detail": finding.detail,
        "rid": finding.rid,
        "evidence": [_evidence(e) for e in finding.evidence],
        "ruled_out": [{"what": r.what, "why": r.why} for r in finding.ruled_out],
        "consequences": list(finding.consequences),
        "next": list(finding.next),
    }


def _evidence(shown: Evidence) -> dict[str, Any]:
    """`file` is there where several files were read together."""
    told: dict[str, Any] = {"src": shown.src, "seq": shown.seq, "record": shown.record, "text": shown.text}
    return told | ({"file": shown.file} if shown.file else {})


def visible(text: str) -> str:
    """Foreign text on one line, control characters shown as ⟨hex⟩, so that no log line can steer a terminal."""
    return "".join(c if c.isprintable() else f"⟨{ord(c):02x}⟩" for c in text)


def render_text(findings: Iterable[Finding], width: int = WIDTH) -> str:
    """Findings as plain text in the order given, wrapped to `width` columns, ending in a newline."""
    blocks = [_block(number, finding, max(40, width)) for number, finding in enumerate(findings, 1)]
    if not blocks:
        return "No findings.\n"
    return "\n".join(blocks)


def _block(number: int, finding: Finding, width: int) -> str:
    where = f"  request {finding.rid}" if finding.rid is not None else ""
    kind = f" ({finding.kind})" if finding.kind else ""
    lines = [
        f"{number}. {finding.severity.upper()}  {finding.id}{kind}  confidence {finding.confidence:.0%}{visible(where)}"
    ]
    lines += _wrap(finding.title, width, "   ")
    if finding.detail:
        lines += _wrap(finding.detail, width, "   ")
    evidence = [f"{_place(e)}: {e.text}" for e in finding.evidence]
    ruled_out = [f"{r.what}: {r.why}" for r in finding.ruled_out]
    for head, items in (
        ("evidence", evidence),
        ("explains", finding.consequences),
        ("ruled out", ruled_out),
        ("next", finding.next),
    ):
        if items:
            lines.append(f"   {head}")
            for item in items:
                lines += _wrap(item, width, "     - ", "       ")
    return "\n".join(lines) + "\n"


def _place(shown: Evidence) -> str:
    record = "" if shown.record is None else f"record {shown.record}"
    where = f"{shown.file}, {record}" if shown.file and record else record
    return f"{shown.src} #{shown.seq}" + (f" ({where})" if where else "")


def _wrap(text: str, width: int, first: str, rest: str | None = None) -> list[str]:
    after = first if rest is None else rest
    return textwrap.wrap(visible(text), width, initial_indent=first, subsequent_indent=after) or [first.rstrip()]
