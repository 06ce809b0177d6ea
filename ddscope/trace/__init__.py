"""Traces: lines and records, writing, reading, indexing, checking and repairing files. No screen, no torch."""

from ddscope.trace.codec import Damaged, Unknown, decode, encode
from ddscope.trace.errors import TraceError
from ddscope.trace.file import TraceFile
from ddscope.trace.index import RECORD_KINDS, Counters, TraceIndex
from ddscope.trace.writer import TraceWriter

__all__ = [
    "RECORD_KINDS",
    "Counters",
    "Damaged",
    "TraceError",
    "TraceFile",
    "TraceIndex",
    "TraceWriter",
    "Unknown",
    "decode",
    "encode",
]
