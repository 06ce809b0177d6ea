"""The exceptions of the trace package. Their messages are sentences a person can act on; they are shown as they are."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace cannot be opened, written or understood. `str(error)` is one sentence, safe to print."""


class NewerFormatError(TraceError):
    """The trace says that a newer reader is needed; the sentence says which."""
