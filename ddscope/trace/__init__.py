"""Traces: lines and records, writing, reading, indexing, checking and repairing files. No screen, no torch."""

from ddscope.trace.checker import verify
from ddscope.trace.codec import Damaged, Unknown, decode, encode
from ddscope.trace.errors import NewerFormatError, TraceError
from ddscope.trace.file import TraceFile
from ddscope.trace.index import RECORD_KINDS, Counters, TraceIndex
from ddscope.trace.recovery import RecoverReport, recover
from ddscope.trace.report import Problem, Report
from ddscope.trace.schemas import json_schema
from ddscope.trace.summary import RequestStats, Stats, stats
from ddscope.trace.writer import TraceWriter

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
