"""The Journal Export Format: bytes of `journalctl -o export` to entries. Pure.

A field is `NAME=value\\n`, or `NAME\\n`, the value's length in 8 bytes, little-endian, the value, `\\n`. An empty line
ends an entry. Values are cut by their length, never searched for an end (systemd.io/JOURNAL_EXPORT_FORMATS).
"""

from __future__ import annotations

import struct

Entry = dict[bytes, bytes]

MAX_FIELD = 800 << 20
"""journald itself takes fields of at most 768 MiB; a greater length means that we lost our place."""
_LENGTH = struct.Struct("<Q")


class ExportError(ValueError):
    """The bytes are not in the export format. The message is one sentence."""


class ExportParser:
    """Cuts a stream into entries, however it arrives. Where a name comes twice, its values are joined by newlines."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0  # where in _data the next field begins
        self._need = 0  # no use in trying with fewer bytes than this
        self._entry: Entry = {}

    def feed(self, data: bytes) -> list[Entry]:
        """The entries that are complete now. Raises ExportError."""
        self._data = self._data[self._at :] + data if self._at else self._data + data
        self._at = 0
        entries: list[Entry] = []
        if len(self._data) >= self._need:
            while self._text_entry(entries) or self._field(entries):
                pass
        return entries

    def finish(self) -> list[Entry]:
        """The last entry, when the stream ended after a whole field but without the empty line."""
        if not self._entry or self._at < len(self._data):
            return []
        entry, self._entry = self._entry, {}
        return [entry]

    @property
    def pending(self) -> bool:
        """Whether an entry has begun that is not complete."""
        return bool(self._entry) or self._at < len(self._data)

    def _text_entry(self, entries: list[Entry]) -> bool:
        """Take a whole entry whose fields are all text, as nearly every one is: three times as fast as field by field.

        The line that begins a binary field is the only one without a `=`. So when all lines up to the empty one have
        one, none of them is inside a value.
        """
        end = self._data.find(b"\n\n", self._at)
        if end < 0 or self._entry:
            return False
        lines = self._data[self._at : end].split(b"\n")
        try:
            entry = dict([line.split(b"=", 1) for line in lines])
        except ValueError:
            return False
        if len(entry) != len(lines) or b"" in entry:
            return False
        entries.append(entry)
        self._at = end + 2
        return True

    def _field(self, entries: list[Entry]) -> bool:
        """Take one field, or the end of an entry. False when more bytes are needed."""
        data, start = self._data, self._at
        end = data.find(b"\n", start)
        if end < 0:
            self._need = len(data) - start + 1
            return False
        if end == start:
            if self._entry:
                entries.append(self._entry)
                self._entry = {}
            self._at = end + 1
            return True
        equals = data.find(b"=", start, end)
        if equals > start:
            name, value, after = data[start:equals], data[equals + 1 : end], end + 1
        else:
            name = data[start:end]
            begin = end + 1 + _LENGTH.size
            if equals == start or len(name) > 255:
                raise ExportError("The journal's export is damaged: a field has no name.")
            if len(data) < begin:
                self._need = begin - start
                return False
            length = _LENGTH.unpack_from(data, end + 1)[0]
            if length > MAX_FIELD:
                raise ExportError(f"The journal's export is damaged: it claims a field of {length:,} bytes.")
            after = begin + length + 1
            if len(data) < after:
                self._need = after - start
                return False
            if data[after - 1] != 0x0A:
                raise ExportError("The journal's export is damaged: a field does not end where its length says.")
            value = data[begin : after - 1]
        entry = self._entry
        entry[name] = entry[name] + b"\n" + value if name in entry else value
        self._at = after
        self._need = 0
        return True
