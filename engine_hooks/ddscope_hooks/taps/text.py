"""Text of token ids, from the server's own tokenizer, one id at a time and on the writer thread.

Only looks ids up, which is safe beside other threads: a lookup keeps the interpreter's lock and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """The bytes that ids stand for. Nothing is told before `use` was called, and nothing when it gave no tokenizer."""

    def __init__(self) -> None:
        self._piece: Callable[[int], str | None] | None = None
        self._added: dict[int, str] = {}
        self._byte_level = False

    def use(self, tokenizer: Any) -> None:
        """Take the server's tokenizer; None (it was started without one) is fine."""
        if tokenizer is None:
            return
        inner = getattr(tokenizer, "backend_tokenizer", None) or getattr(tokenizer, "_tokenizer", None)
        if inner is not None and hasattr(inner, "id_to_token"):
            self._piece = inner.id_to_token
            self._byte_level = "ByteLevel" in repr(getattr(inner, "decoder", ""))
        elif hasattr(tokenizer, "convert_ids_to_tokens"):
            self._piece = tokenizer.convert_ids_to_tokens
        added = getattr(tokenizer, "added_tokens_decoder", None)
        if isinstance(added, dict):
            self._added = {int(number): str(token) for number, token in added.items()}

    def __call__(self, ids: Sequence[int]) -> list[bytes]:
        """One for each id; empty for what the vocabulary does not have."""
        return [self._bytes(number) for number in ids]

    def _bytes(self, number: int) -> bytes:
        added = self._added.get(number)
        if added is not None:
            return added.encode("utf-8", "replace")
        piece = self._piece(number) if self._piece is not None and 0 <= number < 1 << 31 else None
        if piece is None:
            return b""
        if self._byte_level:
            table = _byte_values()
            return b"".join(bytes([table[c]]) if c in table else c.encode("utf-8", "replace") for c in piece)
        if match := _BYTE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("▁", " ").encode("utf-8", "replace")


@lru_cache(maxsize=1)
def _byte_values() -> dict[str, int]:
    """Character of a byte-level vocabulary → byte: printable Latin-1 is itself, the rest is moved to U+0100 …"""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    moved = (byte for byte in range(256) if byte not in plain)
    return table | {chr(0x100 + i): byte for i, byte in enumerate(moved)}
