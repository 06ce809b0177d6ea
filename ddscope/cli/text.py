"""Foreign text on a plain terminal: made printable, never interpreted."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control characters and lone surrogates shown as escapes such as \\x1b; newlines stay."""
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
