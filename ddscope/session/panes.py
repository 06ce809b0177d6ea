"""Rows and words for the panes, made from single records and small values. No file, no state of its own."""

from __future__ import annotations

from typing import Any

from ddscope.model import Control, Fact, Gap, Log, Mark, Probe, Record, Tensor, text_bytes
from ddscope.session.tensors import tensor_words
from ddscope.session.tokens import visible
from ddscope.session.views import EngineState, GapRow, LogRow, MarkRow, ProbeRow, TensorRow
from ddscope.trace import Damaged, Unknown

_REASONS = {
    "ring_full": "the ring was full",
    "disconnected": "the connection was lost",
    "joined_late": "the viewer came later",
    "rate_limited": "the journal limited the rate",
    "cursor_lost": "the place in the journal was lost",
    "hook_fault": "a hook failed and was switched off",
}


def rid_named(record: Record | Unknown) -> str | None:
    """The request that a fact or a command names."""
    if isinstance(record, Fact) and isinstance(record.value, dict):
        rid = record.value.get("rid")
    elif isinstance(record, Control):
        rid = record.args.get("rid")
    else:
        return None
    return rid if isinstance(rid, str) else None


def gap_words(of: str, count: int | None, reason: str) -> str:
    """What a gap says."""
    engine = reason == "rate_limited" and of.startswith("engine/")
    why = "left out by its sampling, or nobody was there" if engine else _REASONS.get(reason, visible(reason))
    if reason == "hook_fault" and not count:
        return f"{visible(of)}: {why}"
    if count is None:
        return f"{visible(of)}: records are missing, nobody knows how many: {why}"
    return f"{visible(of)}: {count:,} {'record' if count == 1 else 'records'} missing: {why}"


def gap_row(number: int, record: Record | Unknown) -> GapRow:
    """A row for a gap."""
    if not isinstance(record, Gap):
        return GapRow(number, record.src, record.src, None, "", record.t, unreadable_words(record))
    words = gap_words(record.of, record.count, record.reason)
    return GapRow(number, record.src, record.of, record.count, record.reason, record.t, words)


def log_row(number: int, record: Record | Unknown) -> LogRow:
    """A row for a log line or a gap between lines."""
    if isinstance(record, Gap):
        words = gap_words(record.of, record.count, record.reason)
        return LogRow(number, "gap", record.t, record.of, None, None, None, None, words, False)
    if not isinstance(record, Log):
        words = unreadable_words(record)
        return LogRow(number, "log", record.t, record.src, None, None, None, None, words, False)
    message = record.message
    text = "" if message is None else visible(text_bytes(message).decode("utf-8", "surrogateescape"))
    return LogRow(
        record=number,
        kind="log",
        t=record.t,
        src=record.src,
        unit=record.unit,
        pid=record.pid,
        priority=record.priority,
        ident=record.ident,
        text=text,
        partial=bool(record.partial),
        null=message is None,
    )


def unreadable_words(record: Record | Unknown) -> str:
    """Why a record cannot be shown as what it claims to be."""
    if isinstance(record, Damaged):
        return f"this line cannot be read: {visible(record.reason)}"
    return f"this record is a `{visible(record.type)}`"


def tensor_row(number: int, record: Tensor, hidden_size: int | None, changes: int) -> TensorRow:
    """A row for a tensor as last told."""
    return TensorRow(
        name=record.name,
        shape=tuple(record.shape),
        expect=tuple(record.expect) if record.expect is not None else None,
        dtype=record.dtype,
        device=record.device,
        owner=record.owner,
        ok=record.ok,
        words=tensor_words(record, hidden_size),
        record=number,
        t=record.t,
        changes=changes,
    )


def probe_row(number: int, record: Probe) -> ProbeRow:
    """A row for a rung."""
    return ProbeRow(record.rung, record.ok, record.ms, visible(record.detail or ""), number, record.t, record.src)


def mark_row(number: int | None, record: Mark, target: int | None) -> MarkRow:
    """A row for a note."""
    return MarkRow(number, record.text, record.at.src, record.at.seq, record.t, target)


def engine_state(number: int | None, value: Any, breakpoints: Any, fault: str | None) -> EngineState:
    """What the facts `engine.state`, `breakpoints` and `fault` say; fields of another type count as not said."""
    told = value if isinstance(value, dict) else {}
    state, rid, step, reason = (told.get(name) for name in ("state", "rid", "step", "reason"))
    kinds = [item for item in breakpoints if isinstance(item, dict)] if isinstance(breakpoints, list) else []
    return EngineState(
        state=state if isinstance(state, str) else "unknown",
        rid=rid if isinstance(rid, str) else None,
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        reason=reason if isinstance(reason, str) else None,
        record=number,
        breakpoints=tuple((str(item.get("kind")), item.get("value")) for item in kinds),
        fault=fault,
    )
