"""Token ids to text a person can read: bytes joined over token borders, nothing lost, nothing invisible.

What is shown is plain text, never markup. The ids' texts are those of the trace's `tokens` records.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import islice

from ddscope.model import Text, text_bytes

SPACE = "␣"
NEWLINE = "⏎"
TAB = "⇥"
LOOK_BACK = 4096

_TEMPLATE = re.compile(r"<\|[^|<>]{1,40}\|>|<(?:start|end)_of_turn>|<<?/?SYS>?>|\[/?INST\]|</?s>|<bos>")
_ROLE = re.compile(r"\A\s*(?:system|user|assistant|model|tool|developer)[ \t]*\n", re.IGNORECASE)
_ROLES = frozenset({"system", "user", "assistant", "model", "tool", "developer"})
_ESCAPED = re.compile("[\udc80-\udcff]+")


def pending_bytes(data: bytes) -> int:
    """How many bytes at the end of data (0–3) begin a UTF-8 character that later bytes could complete."""
    for k in range(1, min(3, len(data)) + 1):
        byte = data[-k]
        if 0x80 <= byte <= 0xBF:
            continue
        need = 2 if 0xC2 <= byte <= 0xDF else 3 if 0xE0 <= byte <= 0xEF else 4 if 0xF0 <= byte <= 0xF4 else 0
        if need <= k:
            return 0
        if k >= 2:
            low = {0xE0: 0xA0, 0xF0: 0x90}.get(byte, 0x80)
            high = {0xED: 0x9F, 0xF4: 0x8F}.get(byte, 0xBF)
            if not low <= data[-k + 1] <= high:
                return 0
        return k
    return 0


def decode_stream(data: bytes, carry: bytes = b"") -> tuple[str, bytes]:
    """Decode what is complete of carry + data; returns (text, the bytes of a character that has only begun).

    Bytes that are no UTF-8 become lone surrogates U+DC80–U+DCFF, which `visible` shows as ⟨hex⟩.
    """
    data = carry + data
    k = pending_bytes(data)
    return data[: len(data) - k].decode("utf-8", "surrogateescape"), data[len(data) - k :]


def hex_mark(data: bytes) -> str:
    """Bytes that are no character, as ⟨hex⟩."""
    return f"⟨{data.hex()}⟩" if data else ""


def _visible_char(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return TAB if char == "\t" else chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    # Not printable: bidi overrides, zero-width characters, spaces that look like the plain one, odd line breaks.
    return char if char.isprintable() else f"⟨U+{code:04X}⟩"


def visible(text: str) -> str:
    """Text in which every control, invisible or undecodable character is seen; spaces and newlines stay as they are."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPED.sub(lambda m: hex_mark(m.group().encode("utf-8", "surrogateescape")), text)
    return "".join(c if c in " \n" or (" " < c < "\x7f") else _visible_char(c) for c in text)


def marked(text: str) -> str:
    """`visible`, with spaces as ␣ and newlines as ⏎ too: one line, for a node or a cell."""
    shown = visible(text).replace(" ", SPACE).replace("\n", NEWLINE)
    # A lone combining mark would sit on the neighbouring cell.
    return "◌" + shown if shown and unicodedata.combining(shown[0]) else shown


def show_bytes(data: bytes) -> str:
    """Bytes of unknown encoding as one visible line."""
    return marked(data.decode("utf-8", "surrogateescape"))


def unknown(token: int) -> str:
    """How a token id without text is shown."""
    return f"⟨#{token}⟩"


class TokenTable:
    """Text of the ids that a trace has told so far. An id told twice keeps its last text."""

    def __init__(self) -> None:
        self._text: dict[int, bytes] = {}
        self._display: dict[int, str] = {}
        self.version = 0  # moves with every text told
        self.retold = 0  # moves when an id that was told gets another text

    def __len__(self) -> int:
        return len(self._text)

    def add(self, ids: Sequence[int], text: Sequence[Text]) -> None:
        """Take one `tokens` record. Lists that differ in length give what they share."""
        for token, foreign in zip(ids, text, strict=False):
            data = text_bytes(foreign)
            before = self._text.get(token)
            if before != data:
                self.retold += before is not None
                self._text[token] = data
                self._display.pop(token, None)
                self.version += 1

    def text(self, token: int) -> bytes | None:
        """The bytes of a token, None when the trace has not told them."""
        return self._text.get(token)

    def display(self, token: int) -> str:
        """One visible line for a token: ␣ and ⏎ marked, bytes that are no character as ⟨hex⟩, unknown ids as ⟨#123⟩."""
        shown = self._display.get(token)
        if shown is None:
            data = self._text.get(token)
            if data is None:
                return unknown(token)
            shown = show_bytes(data) if data else f"⟨#{token} empty⟩"
            self._display[token] = shown
        return shown

    def join_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of a run of tokens; an unknown id contributes its ⟨#123⟩."""
        known = self._text
        return b"".join(known[i] if i in known else unknown(i).encode() for i in ids)

    def decode(self, ids: Iterable[int], carry: bytes = b"") -> tuple[str, bytes]:
        """Visible text of a run of tokens after `carry`, and the bytes of a character that has only begun."""
        text, rest = decode_stream(self.join_bytes(ids), carry)
        return visible(text), rest

    def join(self, ids: Iterable[int]) -> str:
        """Visible text of tokens taken as one whole, split characters joined, a begun character as ⟨hex⟩."""
        text, rest = self.decode(ids)
        return text + hex_mark(rest)

    def carry(self, backward: Iterable[int]) -> bytes:
        """Bytes of a character that has only begun at the end of a run of tokens, given from its end backward.

        Three bytes decide; LOOK_BACK bounds the way to them through tokens that are empty.
        """
        tail = b""
        for token in islice(backward, LOOK_BACK):
            data = self._text.get(token)
            tail = (unknown(token).encode() if data is None else data) + tail
            if len(tail) >= 3:
                break
        return tail[len(tail) - pending_bytes(tail) :]


def preview(text: str, limit: int = 80) -> str:
    """A request's title: the last part of the prompt that somebody wrote, without the chat template around it."""
    parts = (_ROLE.sub("", part).strip() for part in _TEMPLATE.split(text))
    written = [part for part in parts if part and part.lower() not in _ROLES]
    title = " ".join((written[-1] if written else text).split())
    return title if len(title) <= limit else title[: limit - 1] + "…"
