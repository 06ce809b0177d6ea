"""The one exception of the trace package. Its message is a sentence a person can act on; it is shown as it is."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace cannot be opened, written or understood. `str(error)` is one sentence, safe to print."""
