"""The Journal Export Format (systemd, "Journal Export Formats"): bytes in, entries out, parsed by length."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Entry = dict[bytes, bytes]
"""Field name → value. Of a field given several times the last one counts."""

LARGEST = 64 << 20
"""Bytes a binary field may claim; a larger claim means that the stream is not what it should be."""


class ExportError(ValueError):
    """The stream is not in the export format. The message is one sentence."""


class ExportParser:
    """Takes chunks as they come and yields the entries that are complete. `fields()` order within an entry is kept."""

    def __init__(self) -> None:
        self._data = b""
        self._entry: Entry = {}

    def feed(self, chunk: bytes) -> Iterator[Entry]:
        """Entries that this chunk completes. Raises ExportError when a binary field's length cannot be true."""
        self._data += chunk
        at = 0
        while (end := self._data.find(b"\n", at)) >= 0:
            line = self._data[at:end]
            if not line:
                at = end + 1
                if self._entry:
                    entry, self._entry = self._entry, {}
                    yield entry
                continue
            name, equals, value = line.partition(b"=")
            if equals:
                at = end + 1
            else:
                start = end + 9
                if len(self._data) < start:
                    break
                (size,) = struct.unpack_from("<Q", self._data, end + 1)
                if size > LARGEST:
                    raise ExportError(f"The journal claims a field of {size:,} bytes; the stream is damaged.")
                if len(self._data) <= start + size:
                    break
                value = self._data[start : start + size]
                at = start + size + 1
            self._entry[name] = value
        self._data = self._data[at:]

    def finish(self) -> Iterator[Entry]:
        """The last entry, when the stream ended without an empty line."""
        if self._entry and not self._data:
            entry, self._entry = self._entry, {}
            yield entry
