"""Traces: lines and records, writing, reading, indexing, checking and repairing files. No screen, no torch.

Checking, repairing, counting and the schema are imported when they are asked for: the viewer starts without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ddscope.trace.codec import Damaged, Unknown, decode, encode
from ddscope.trace.errors import NewerFormatError, TraceError
from ddscope.trace.file import TraceFile
from ddscope.trace.index import RECORD_KINDS, Counters, TraceIndex
from ddscope.trace.writer import TraceWriter

if TYPE_CHECKING:
    from ddscope.trace.checker import verify
    from ddscope.trace.recovery import RecoverReport, recover
    from ddscope.trace.report import Problem, Report
    from ddscope.trace.schemas import json_schema
    from ddscope.trace.summary import RequestStats, Stats, stats

_LATER = {
    "Problem": "report",
    "RecoverReport": "recovery",
    "Report": "report",
    "RequestStats": "summary",
    "Stats": "summary",
    "json_schema": "schemas",
    "recover": "recovery",
    "stats": "summary",
    "verify": "checker",
}
"""Name → module that has it."""

__all__ = [
    "RECORD_KINDS",
    "Counters",
    "Damaged",
    "NewerFormatError",
    "Problem",
    "RecoverReport",
    "Report",
    "RequestStats",
    "Stats",
    "TraceError",
    "TraceFile",
    "TraceIndex",
    "TraceWriter",
    "Unknown",
    "decode",
    "encode",
    "json_schema",
    "recover",
    "stats",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
